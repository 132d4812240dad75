//! CPU mappings of buffers. Each mapping pins its buffer.

use std::any::Any;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use dmabuf::MmapBacking;
use gpu::{Domain, PinPolicy};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use crate::node::Object;
use crate::{Result, pages};

/// The most mappings there may be at once: fewer than the kernel allows a process in all.
const ROOM: usize = 16384;

/// What the program asked of `mmap`.
pub(crate) struct Wanted {
    pub(crate) addr: *mut c_void,
    pub(crate) len: usize,
    pub(crate) prot: c_int,
    pub(crate) flags: c_int,
}

/// What keeps a buffer in place while it is mapped. It is dropped with the last range of the
/// mapping, or when the buffer is taken away.
type Hold = Arc<Mapped>;

struct Mapped {
    /// Device and inode of the file.
    file: (u64, u64),
    prot: ProtFlags,
    hold: Mutex<Option<Box<dyn Any + Send + Sync>>>,
}

/// The newest table. It belongs to the process that made it, and so do the mappings that a forked
/// child inherits. Tables are never freed.
static MAPS: AtomicPtr<Maps> = AtomicPtr::new(std::ptr::null_mut());

/// The mappings. The check whether a range touches one takes no lock.
pub(crate) struct Maps {
    pid: u32,
    /// Slots from here on were never used.
    top: AtomicUsize,
    spans: Box<[Span]>,
    /// What holds the buffer of each slot in use.
    holds: Mutex<Vec<Option<Hold>>>,
}

/// A range of addresses, empty if the end is 0. Changed with the lock held.
struct Span {
    start: AtomicUsize,
    end: AtomicUsize,
}

impl Mapped {
    /// How much of its file is still mapped from `start` to `end`: the program may have unmapped it
    /// by a raw system call, and mapped something else there.
    fn still_mapped(&self, start: usize, end: usize) -> Vec<(usize, usize)> {
        let mapped = dmabuf::peer::shared_mappings(start as u64, (end - start) as u64);
        let ours = mapped.into_iter().filter(|mapping| mapping.file == self.file);
        // CAST: addresses of this process.
        let inside = ours.map(|at| ((at.start as usize).max(start), (at.end as usize).min(end)));
        inside.filter(|(start, end)| start < end).collect()
    }
}

impl Wanted {
    /// Whether the mapping is writable.
    pub(crate) fn writes(&self) -> bool {
        self.prot & libc::PROT_WRITE != 0
    }

    /// Whole pages of a buffer, mapped shared: there is no copy on write.
    pub(crate) fn check(&self) -> Result<u64> {
        let len = pages(self.len as u64).filter(|len| *len > 0).ok_or(libc::EINVAL)?;
        if self.flags & libc::MAP_SHARED == 0 {
            return Err(libc::EINVAL);
        }
        Ok(len)
    }
}

impl Span {
    // ORDERING, for both: a thread that unmaps a range learnt of it from the thread that mapped
    // it, which orders the two.
    fn get(&self) -> (usize, usize) {
        (self.start.load(Ordering::Relaxed), self.end.load(Ordering::Relaxed))
    }

    fn set(&self, start: usize, end: usize) {
        self.start.store(start, Ordering::Relaxed);
        self.end.store(end, Ordering::Relaxed);
    }

    fn touches(&self, from: usize, to: usize) -> bool {
        let (start, end) = self.get();
        end != 0 && start < to && from < end
    }
}

impl Maps {
    /// The table of this process, if it has mapped anything.
    pub(crate) fn here() -> Option<&'static Self> {
        // ORDERING: pairs with the release in `here_or_new`.
        let maps = MAPS.load(Ordering::Acquire);
        // SAFETY: the pointer is null, or that of a leaked table.
        unsafe { maps.as_ref() }.filter(|maps| maps.pid == std::process::id())
    }

    fn here_or_new() -> &'static Self {
        loop {
            if let Some(maps) = Self::here() {
                return maps;
            }
            let last = MAPS.load(Ordering::Acquire);
            let span = |_| Span { start: AtomicUsize::new(0), end: AtomicUsize::new(0) };
            let new = Box::into_raw(Box::new(Self {
                pid: std::process::id(),
                top: AtomicUsize::new(0),
                spans: (0..ROOM).map(span).collect(),
                holds: Mutex::default(),
            }));
            let won = MAPS.compare_exchange(last, new, Ordering::AcqRel, Ordering::Acquire);
            if won.is_err() {
                // SAFETY: another thread was first, so nobody else has seen this one.
                drop(unsafe { Box::from_raw(new) });
            }
        }
    }

    /// Maps what a buffer offers.
    ///
    /// # Safety
    ///
    /// Whatever is mapped at a fixed address may be replaced.
    pub(crate) unsafe fn map(wanted: &Wanted, offered: MmapBacking) -> Result<*mut c_void> {
        let maps = Self::here_or_new();
        let MmapBacking { backing, hold, zap } = offered;
        let stat = rustix::fs::fstat(&*backing.file).map_err(Errno::raw_os_error)?;
        // CAST: keeps the bits.
        let prot = ProtFlags::from_bits_retain(wanted.prot as u32);
        // CAST: keeps the bits.
        let flags = MapFlags::from_bits_retain(wanted.flags as u32);
        if flags.contains(MapFlags::FIXED) {
            maps.forget(wanted.addr as usize, wanted.len);
        }
        let (file, start) = (&*backing.file, backing.offset);
        // SAFETY: the caller's promise.
        let addr = unsafe { rustix::mm::mmap(wanted.addr, wanted.len, prot, flags, file, start) };
        let addr = addr.map_err(Errno::raw_os_error)?;
        let start = addr as usize;
        let end = start + wanted.len.next_multiple_of(rustix::param::page_size());
        let file = (stat.st_dev, stat.st_ino);
        let hold = Arc::new(Mapped { file, prot, hold: Mutex::new(Some(hold)) });
        if let Err(hold) = maps.add(start, end, Arc::clone(&hold)) {
            // SAFETY: the program has not seen it yet.
            let _ = unsafe { rustix::mm::munmap(addr, wanted.len) };
            drop(hold);
            return Err(libc::ENOMEM);
        }
        if let Some(zap) = zap {
            let hold = Arc::downgrade(&hold);
            zap.on_zap(move || {
                if let Some(hold) = hold.upgrade() {
                    maps.zap(&hold);
                }
            });
        }
        Ok(addr)
    }

    /// The buffer was taken away: an access to what is left of this mapping gets SIGBUS.
    fn zap(&self, gone: &Hold) {
        if self.pid != std::process::id() {
            return;
        }
        // While the lock is held, none of this is unmapped, so the addresses are still ours.
        let holds = self.holds.lock().unwrap_or_else(PoisonError::into_inner);
        for (span, hold) in self.spans.iter().zip(holds.iter()) {
            if !hold.as_ref().is_some_and(|hold| Arc::ptr_eq(hold, gone)) {
                continue;
            }
            let (start, end) = span.get();
            for (start, end) in gone.still_mapped(start, end) {
                // SAFETY: a part of what `map` mapped.
                if let Err(errno) = unsafe { dmabuf::zap(start, end - start, gone.prot) } {
                    tracing::error!(target: "peerdma::drm", "memory that was taken away stays mapped: {errno}");
                    return;
                }
            }
        }
        drop(holds);
        let hold = gone.hold.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(hold);
    }

    /// Whether one of our mappings is in this range.
    pub(crate) fn touches(&self, addr: usize, len: usize) -> bool {
        let to = addr.saturating_add(len);
        self.used().iter().any(|span| span.touches(addr, to))
    }

    /// A range is no longer mapped: buffers that have no other mapping may move again.
    pub(crate) fn forget(&self, addr: usize, len: usize) {
        let page = rustix::param::page_size();
        let Some(to) = len.checked_next_multiple_of(page).and_then(|len| addr.checked_add(len))
        else {
            return;
        };
        if !addr.is_multiple_of(page) || !self.touches(addr, len) {
            return;
        }
        let mut gone = Vec::new();
        let mut behind = Vec::new();
        let mut holds = self.holds.lock().unwrap_or_else(PoisonError::into_inner);
        for (span, hold) in self.spans.iter().zip(holds.iter_mut()) {
            if !span.touches(addr, to) {
                continue;
            }
            let (start, end) = span.get();
            match (start < addr, to < end) {
                (true, false) => span.set(start, addr),
                (false, true) => span.set(to, end),
                (true, true) => {
                    span.set(start, addr);
                    behind.extend(hold.clone().map(|hold| (to, end, hold)));
                }
                (false, false) => {
                    span.set(0, 0);
                    gone.extend(hold.take());
                }
            }
        }
        drop(holds);
        for (start, end, hold) in behind {
            if let Err(hold) = self.add(start, end, hold) {
                // Better to pin the buffer for ever than to move it while it is mapped.
                std::mem::forget(hold);
            }
        }
        drop(gone);
    }

    fn add(&self, start: usize, end: usize, hold: Hold) -> std::result::Result<(), Hold> {
        let mut holds = self.holds.lock().unwrap_or_else(PoisonError::into_inner);
        let free = holds.iter().position(Option::is_none).unwrap_or(holds.len());
        let Some(span) = self.spans.get(free) else { return Err(hold) };
        if free == holds.len() {
            holds.push(None);
        }
        holds[free] = Some(hold);
        span.set(start, end);
        self.top.fetch_max(free + 1, Ordering::Relaxed);
        Ok(())
    }

    fn used(&self) -> &[Span] {
        &self.spans[..self.top.load(Ordering::Relaxed).min(ROOM)]
    }
}

/// Called before a buffer is pinned: moves it to where importers will need it, if that is known.
pub(crate) fn settle(object: &Object) {
    let Ok(gpu) = object.node.gpu() else { return };
    let persona = gpu.persona();
    if !persona.has_pin
        && persona.pin_policy == PinPolicy::Gtt
        && let Err(refusal) = gpu.move_to(&object.bo, Domain::Gtt)
    {
        tracing::debug!(target: "peerdma::drm", "mapped where it is: {refusal}");
    }
}
