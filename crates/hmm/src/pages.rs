//! Memory of a device, given out in pages.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use umem::{Fault, Umem};

use crate::PAGE;

/// Memory of a device that pages migrate to: any that the CPU reaches, for example VRAM behind a
/// dma-buf. A clone is another handle to the same memory.
#[derive(Clone, Debug)]
pub struct DevicePages {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    memory: Umem,
    free: Mutex<Vec<u32>>,
    /// Gives out none, as a device without memory.
    is_failing: AtomicBool,
}

/// A page of that memory. It goes back when this is dropped.
#[derive(Debug)]
pub(crate) struct Slot {
    pages: DevicePages,
    index: u32,
}

impl DevicePages {
    /// The whole pages of some memory.
    pub fn new(memory: Umem) -> Self {
        // CAST: 2^32 pages are more than any device has.
        let count = (memory.len() / PAGE) as u32;
        let free = Mutex::new((0..count).rev().collect());
        Self { inner: Arc::new(Inner { memory, free, is_failing: AtomicBool::new(false) }) }
    }

    /// The number of free pages.
    pub fn free(&self) -> usize {
        self.lock().len()
    }

    /// Makes the device fail to allocate pages from now on, or ends that: for tests of programs
    /// that must cope with it.
    #[doc(alias = "HMM_DMIRROR_FLAG_FAIL_ALLOC")]
    pub fn fail_allocations(&self, is_failing: bool) {
        // ORDERING: publishes no other memory.
        self.inner.is_failing.store(is_failing, Ordering::Relaxed);
    }

    pub(crate) fn take(&self) -> Option<Slot> {
        // ORDERING: as above.
        if self.inner.is_failing.load(Ordering::Relaxed) {
            return None;
        }
        let index = self.lock().pop()?;
        Some(Slot { pages: self.clone(), index })
    }

    fn lock(&self) -> MutexGuard<'_, Vec<u32>> {
        self.inner.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Slot {
    fn at(&self, offset: u64) -> u64 {
        u64::from(self.index) * PAGE + offset
    }

    pub(crate) fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), Fault> {
        self.pages.inner.memory.read(self.at(offset), out)
    }

    pub(crate) fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), Fault> {
        self.pages.inner.memory.write(self.at(offset), bytes)
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.pages.lock().push(self.index);
    }
}
