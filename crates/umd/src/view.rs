//! Memory of a GPU that the CPU sees at an address that a driver chose.

use std::any::Any;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use dmabuf::MmapBacking;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};

use crate::boundary::LOG;
use crate::refusal::{Kind, Refusal, Result};

/// Memory that is mapped into addresses of the arena. They are free again when it is dropped.
pub struct View {
    pages: Arc<Pages>,
}

struct Pages {
    start: usize,
    len: usize,
    /// What keeps the memory in place; none once the addresses no longer map it.
    hold: Mutex<Option<Box<dyn Any + Send + Sync>>>,
}

impl View {
    /// Maps what a buffer offers.
    ///
    /// # Errors
    ///
    /// The system's.
    ///
    /// # Safety
    ///
    /// `len` bytes at `start` are whole pages that the caller has reserved, with nothing mapped
    /// into them.
    pub(crate) unsafe fn new(start: u64, len: u64, offered: MmapBacking) -> Result<Self> {
        let MmapBacking { backing, hold, zap } = offered;
        // CAST: addresses are 64 bits wide here.
        let (start, len) = (start as usize, len as usize);
        let at = std::ptr::with_exposed_provenance_mut(start);
        let flags = MapFlags::SHARED | MapFlags::FIXED;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: the caller's promise.
        unsafe { rustix::mm::mmap(at, len, access, flags, &*backing.file, backing.offset) }
            .map_err(|error| failed(start, len, error))?;
        let pages = Arc::new(Pages { start, len, hold: Mutex::new(Some(hold)) });
        if let Some(zap) = zap {
            let pages = Arc::downgrade(&pages);
            zap.on_zap(move || {
                if let Some(pages) = pages.upgrade() {
                    pages.zap();
                }
            });
        }
        Ok(Self { pages })
    }
}

impl Pages {
    /// The memory was taken away: touching it is SIGBUS.
    fn zap(&self) {
        let mut hold = self.hold();
        if hold.is_none() {
            return;
        }
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: `View::new` mapped it, and `end` has not unmapped it: it takes the hold first.
        if let Err(error) = unsafe { dmabuf::zap(self.start, self.len, access) } {
            tracing::error!(target: LOG, "memory that was taken away stays mapped: {error}");
            return;
        }
        let gone = hold.take();
        drop(hold);
        drop(gone);
    }

    /// The addresses lead nowhere.
    fn end(&self) {
        let mut hold = self.hold();
        let at = std::ptr::with_exposed_provenance_mut(self.start);
        let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
        // SAFETY: `View::new` mapped it, or `zap` in its place; the arena gets it back without any
        // access.
        let done = unsafe { rustix::mm::mmap_anonymous(at, self.len, ProtFlags::empty(), flags) };
        let gone = hold.take();
        drop(hold);
        if let Err(error) = done {
            tracing::error!(target: LOG, "{}", failed(self.start, self.len, error));
            // Still mapped: the memory stays as long as the process.
            std::mem::forget(gone);
        }
    }

    fn hold(&self) -> MutexGuard<'_, Option<Box<dyn Any + Send + Sync>>> {
        self.hold.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for View {
    fn drop(&mut self) {
        self.pages.end();
    }
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "View({:#x} at {:#x})", self.pages.len, self.pages.start)
    }
}

fn failed(start: usize, len: usize, error: Errno) -> Refusal {
    Refusal::new(Kind::System, format!("mmap of {len:#x} bytes at {start:#x}: {error}"))
}
