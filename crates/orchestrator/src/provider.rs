//! Devices that provide memory.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use dmabuf::DmaBuf;
use pci::Bdf;

use crate::place::Inner;

/// A device that gives out memory of its own, as dma-bufs.
///
/// The memory is revocable: importers are told before it is taken back.
pub trait MemoryProvider: Send + Sync {
    /// The name of the device, for people.
    fn name(&self) -> &str;

    /// Its address on the bus.
    fn bdf(&self) -> Bdf;

    /// Gives out at least `len` bytes of its memory.
    ///
    /// # Errors
    ///
    /// Why it has none, in words.
    fn allocate(&self, len: u64) -> Result<Allocation, String>;

    /// The device leaves: it revokes all memory that it gave out, and returns when nobody can reach
    /// that memory any more. `held` are the allocations that were not given back.
    fn revoke_all(&self, held: Vec<Allocation>, why: &str);
}

/// Memory of a provider: a dma-buf, and what keeps the memory allocated. Dropping it gives the
/// memory back.
pub struct Allocation {
    /// What clients attach to.
    pub buffer: DmaBuf,
    /// What the provider needs to take the memory back.
    pub hold: Box<dyn Any + Send + Sync>,
}

/// A provider that orchestrators find. Dropping it hides the provider and revokes its memory.
#[must_use = "the provider is removed when this is dropped"]
pub struct Published {
    pub(crate) inner: Arc<Inner>,
    pub(crate) provider: Arc<dyn MemoryProvider>,
}

impl Published {
    /// The device leaves: it is hidden, its memory is revoked, and it is no longer a provider.
    pub fn remove(self, why: &str) {
        self.inner.remove(&self.provider, why);
    }
}

impl Drop for Published {
    fn drop(&mut self) {
        self.inner.remove(&self.provider, "its driver let go of it");
    }
}

impl fmt::Debug for Allocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Allocation").field("buffer", &self.buffer).finish_non_exhaustive()
    }
}

impl fmt::Debug for Published {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Published").field("provider", &self.provider.name()).finish_non_exhaustive()
    }
}
