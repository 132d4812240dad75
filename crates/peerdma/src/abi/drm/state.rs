//! All that a process has open, made when it opens the first node.

use std::ffi::c_int;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use gpu::GpuConfig;
use rustix::fs::FileType;

use super::file::File;
use super::known::{Inodes, Kind};
use super::maps::Maps;
use super::node::Node;
use super::prime::Export;
use super::{Result, inode};
use crate::gpus::{self, PRESET};

/// Where fake offsets for `mmap` begin, as in the kernel.
#[doc(alias = "DRM_FILE_PAGE_OFFSET_START")]
const FIRST_OFFSET: u64 = 1 << 32;

/// The newest state. It belongs to the process that made it: a child of a fork sees its parent's and makes its own at
/// its first open. (The child of a vfork sees the parent's, too, and must not change it.) States are never freed.
static STATE: AtomicPtr<State> = AtomicPtr::new(std::ptr::null_mut());

/// What a process has open.
pub(super) struct State {
    pid: u32,
    /// That of the process this one was forked from, whose descriptors may still be open here.
    parent: Option<&'static Self>,
    nodes: Vec<Arc<Node>>,
    files: Inodes,
    exports: Inodes,
    next_offset: AtomicU64,
    /// The CPU's mappings of buffers.
    pub(super) maps: Maps,
    open: Mutex<Open>,
}

#[derive(Default)]
struct Open {
    files: Vec<Arc<File>>,
    exports: Vec<Arc<Export>>,
}

impl State {
    /// The newest state, be it of this process or of a parent.
    pub(super) fn last() -> Option<&'static Self> {
        // ORDERING: pairs with the release in `here_or_new`.
        let state = STATE.load(Ordering::Acquire);
        // SAFETY: null, or a state that was leaked.
        unsafe { state.as_ref() }
    }

    /// That of this process.
    pub(super) fn here() -> Option<&'static Self> {
        Self::last().filter(|state| state.pid == std::process::id())
    }

    /// That of this process, made if it is not there.
    pub(super) fn here_or_new() -> Result<&'static Self> {
        if let Some(state) = Self::here() {
            return Ok(state);
        }
        let preset = environment::var(PRESET).unwrap_or_default();
        let machine = gpus::machine(&preset).map_err(|error| {
            tracing::warn!(target: "peerdma::drm", "{error}");
            libc::ENODEV
        })?;
        let node = |gpu: &GpuConfig| Arc::new(Node::new(gpu.clone(), Arc::clone(machine.tree())));
        let nodes = machine.gpus().iter().map(node);
        let last = STATE.load(Ordering::Acquire);
        let new = Box::new(Self {
            pid: std::process::id(),
            // SAFETY: null, or a state that was leaked.
            parent: unsafe { last.as_ref() },
            nodes: nodes.collect(),
            files: Inodes::new(),
            exports: Inodes::new(),
            next_offset: AtomicU64::new(FIRST_OFFSET),
            maps: Maps::new(),
            open: Mutex::default(),
        });
        let new = Box::into_raw(new);
        let won = STATE.compare_exchange(last, new, Ordering::AcqRel, Ordering::Acquire);
        if won.is_err() {
            // SAFETY: nobody else has seen it. (A thread that opened at the same time has made one.)
            drop(unsafe { Box::from_raw(new) });
        }
        Self::here().ok_or(libc::ENODEV)
    }

    /// What a descriptor is, its inode, and whether this process made it.
    pub(super) fn kind(&self, fd: c_int) -> Option<(Kind, u64, bool)> {
        let stat = inode(fd)?;
        let (dev, ino) = (stat.st_dev, stat.st_ino);
        let (kind, set): (_, fn(&Self) -> &Inodes) = match FileType::from_raw_mode(stat.st_mode) {
            FileType::Socket => (Kind::File, |state| &state.files),
            FileType::RegularFile => (Kind::Export, |state| &state.exports),
            _ => return None,
        };
        let mut state = self;
        loop {
            if set(state).has(dev, ino) {
                return Some((kind, ino, state.pid == std::process::id()));
            }
            state = state.parent?;
        }
    }

    /// Opens a node.
    pub(super) fn open(&self, node: usize, is_card: bool, flags: c_int) -> Result<OwnedFd> {
        self.sweep();
        let node = self.nodes.get(node).ok_or(libc::ENXIO)?;
        node.gpu()?;
        let (fd, file) = File::open(Arc::clone(node), is_card, flags)?;
        let stat = rustix::fs::fstat(fd.as_fd()).map_err(rustix::io::Errno::raw_os_error)?;
        let file = Arc::new(file);
        let mut open = self.lock();
        if !self.files.add(stat.st_dev, stat.st_ino) {
            drop(open);
            return Err(libc::ENFILE);
        }
        open.files.push(file);
        Ok(fd)
    }

    /// The open file with this inode.
    pub(super) fn file(&self, ino: u64) -> Option<Arc<File>> {
        self.lock().files.iter().find(|file| file.ino == ino).cloned()
    }

    /// Which node a file is of, and whether it is the card.
    pub(super) fn number(&self, file: &File) -> Option<(usize, bool)> {
        let index = self.nodes.iter().position(|node| Arc::ptr_eq(node, &file.node));
        Some((index?, file.is_card))
    }

    /// All open files.
    pub(super) fn files(&self) -> Vec<Arc<File>> {
        self.lock().files.clone()
    }

    /// The buffer whose memfd has this inode.
    pub(super) fn export(&self, ino: u64) -> Option<Arc<Export>> {
        self.lock().exports.iter().find(|export| export.ino == ino).cloned()
    }

    /// Keeps a buffer for as long as anybody has its memfd open. One that is kept already stays as it is.
    pub(super) fn keep(&self, export: Export) -> Result<Arc<Export>> {
        let export = Arc::new(export);
        let mut open = self.lock();
        if let Some(kept) = open.exports.iter().find(|kept| kept.ino == export.ino).cloned() {
            drop(open);
            return Ok(kept);
        }
        if !self.exports.add(export.dev, export.ino) {
            drop(open);
            return Err(libc::ENFILE);
        }
        open.exports.push(Arc::clone(&export));
        Ok(export)
    }

    /// An offset for `mmap` that nothing else has.
    pub(super) fn new_offset(&self, size: u64) -> u64 {
        self.next_offset.fetch_add(size, Ordering::Relaxed)
    }

    /// Lets go what nobody can reach any more: files whose last descriptor is closed, and buffers of which only we have
    /// the file.
    pub(super) fn sweep(&self) {
        let mut open = self.lock();
        let files: Vec<_> = open.files.extract_if(.., |file| file.has_hung_up()).collect();
        let exports: Vec<_> = open.exports.extract_if(.., |export| export.is_only_ours()).collect();
        for file in &files {
            self.files.remove(file.ino);
        }
        for export in &exports {
            self.exports.remove(export.ino);
        }
        // What goes is dropped without the lock.
        drop(open);
    }

    /// Does something that must not meet a sweep. It must drop nothing of ours.
    pub(super) fn between_sweeps<T>(&self, body: impl FnOnce() -> T) -> T {
        let _open = self.lock();
        body()
    }

    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
