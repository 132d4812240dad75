//! Everything a process has open. Created when it opens its first node.

use std::ffi::c_int;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gpu::GpuConfig;
use rustix::fs::FileType;

use crate::file::{File, Kind};
use crate::known::Inodes;
use crate::node::Node;
use crate::{Result, inode};
use gpu::nodes::{self, PRESET};

/// Where fake offsets for `mmap` begin, as in the kernel.
#[doc(alias = "DRM_FILE_PAGE_OFFSET_START")]
const FIRST_OFFSET: u64 = 1 << 32;

/// The newest state. It belongs to the process that made it: a forked child sees its parent's
/// state and makes its own at its first open. (The child of a vfork also sees the parent's, and
/// must not change it.) States are never freed.
static STATE: AtomicPtr<State> = AtomicPtr::new(std::ptr::null_mut());

/// In whose call files are released.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Caller {
    /// The program's call, which holds none of our locks.
    Program,
    /// A call of this library may be in progress.
    Anybody,
}

/// What a process has open.
pub(crate) struct State {
    pid: u32,
    /// The state of the process that this one was forked from, whose descriptors may still be open
    /// here.
    parent: Option<&'static Self>,
    nodes: Vec<Arc<Node>>,
    inodes: Inodes,
    next_offset: AtomicU64,
    open: Mutex<Vec<Arc<File>>>,
}

impl State {
    /// The newest state, whether of this process or of a parent.
    pub(crate) fn last() -> Option<&'static Self> {
        // ORDERING: pairs with the release in `here_or_new`.
        let state = STATE.load(Ordering::Acquire);
        // SAFETY: the pointer is null, or that of a leaked state.
        unsafe { state.as_ref() }
    }

    /// The state of this process.
    pub(crate) fn here() -> Option<&'static Self> {
        Self::last().filter(|state| state.pid == std::process::id())
    }

    /// The state of this process, made if there is none.
    pub(crate) fn here_or_new() -> Result<&'static Self> {
        if let Some(state) = Self::here() {
            return Ok(state);
        }
        let preset = environment::var(PRESET).unwrap_or_default();
        let machine = nodes::machine(&preset).map_err(|error| {
            tracing::warn!(target: "peerdma::drm", "{error}");
            libc::ENODEV
        })?;
        let node = |gpu: &GpuConfig| Arc::new(Node::new(gpu.clone(), Arc::clone(machine.tree())));
        let nodes = machine.gpus().iter().map(node);
        let last = STATE.load(Ordering::Acquire);
        let new = Box::new(Self {
            pid: std::process::id(),
            // SAFETY: the pointer is null, or that of a leaked state.
            parent: unsafe { last.as_ref() },
            nodes: nodes.collect(),
            inodes: Inodes::new(),
            next_offset: AtomicU64::new(FIRST_OFFSET),
            open: Mutex::default(),
        });
        let new = Box::into_raw(new);
        let won = STATE.compare_exchange(last, new, Ordering::AcqRel, Ordering::Acquire);
        if won.is_err() {
            // SAFETY: a thread that opened at the same time was first, so nobody else has seen
            // this one.
            drop(unsafe { Box::from_raw(new) });
        }
        Self::here().ok_or(libc::ENODEV)
    }

    /// The inode of a descriptor of a node, and whether this process made it.
    pub(crate) fn known(&self, fd: c_int) -> Option<(u64, bool)> {
        let stat = inode(fd)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::Socket {
            return None;
        }
        let mut state = self;
        loop {
            if state.inodes.has(stat.st_dev, stat.st_ino) {
                return Some((stat.st_ino, state.pid == std::process::id()));
            }
            state = state.parent?;
        }
    }

    /// Opens a node.
    pub(crate) fn open(&self, node: usize, kind: Kind, flags: c_int) -> Result<OwnedFd> {
        self.sweep(Caller::Program);
        let node = self.nodes.get(node).ok_or(libc::ENXIO)?;
        node.gpu()?;
        let (fd, file) = File::open(Arc::clone(node), kind, flags)?;
        let stat = rustix::fs::fstat(fd.as_fd()).map_err(rustix::io::Errno::raw_os_error)?;
        let file = Arc::new(file);
        let mut open = self.lock();
        if !self.inodes.add(stat.st_dev, stat.st_ino) {
            drop(open);
            return Err(libc::ENFILE);
        }
        open.push(file);
        Ok(fd)
    }

    /// The open file with this inode.
    pub(crate) fn file(&self, ino: u64) -> Option<Arc<File>> {
        self.lock().iter().find(|file| file.ino == ino).cloned()
    }

    /// The index of a file's GPU, and which of its nodes the file is.
    pub(crate) fn number(&self, file: &File) -> Option<(usize, Kind)> {
        let index = self.nodes.iter().position(|node| Arc::ptr_eq(node, &file.node));
        Some((index?, file.kind))
    }

    /// All open files.
    pub(crate) fn files(&self) -> Vec<Arc<File>> {
        self.lock().clone()
    }

    /// A unique offset for `mmap`.
    pub(crate) fn new_offset(&self, size: u64) -> u64 {
        self.next_offset.fetch_add(size, Ordering::Relaxed)
    }

    /// Releases files that nobody needs any more.
    pub(crate) fn sweep(&self, caller: Caller) {
        let mut open = self.lock();
        let files: Vec<_> = open.extract_if(.., |file| file.is_over()).collect();
        for file in &files {
            self.inodes.remove(file.ino);
        }
        // Dropped without the lock.
        drop(open);
        if caller == Caller::Program {
            files.iter().for_each(|file| file.end());
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Arc<File>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
