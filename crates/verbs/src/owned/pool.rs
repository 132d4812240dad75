//! Pools: many buffers of one region.

use super::Buffer;
use super::backing::Slab;
use crate::{HostBuf, Kind, Pd, Refusal, Result};

/// Buffers of equal length in one region, so that a buffer costs no registration. Clones are the
/// same pool; its memory stays as long as one of its buffers.
#[derive(Clone, Debug)]
pub struct Pool(Slab);

impl Pool {
    /// `count` buffers of `length` bytes, all zero.
    ///
    /// # Errors
    ///
    /// [`Kind::Invalid`] for no buffers or no bytes, [`Kind::NoMemory`] if the system has no memory
    /// for them; otherwise the device's.
    pub fn new(pd: &Pd, length: usize, count: u32) -> Result<Self> {
        Self::on(pd, Self::memory(length, count)?, length, count)
    }

    /// The same in huge pages, where the system has some: the kernel is asked for them, and may
    /// give ordinary pages (`madvise(2)`, MADV_HUGEPAGE).
    ///
    /// # Errors
    ///
    /// As [`Pool::new`]; [`Kind::NotSupported`] if the kernel was built without huge pages.
    pub fn in_huge_pages(pd: &Pd, length: usize, count: u32) -> Result<Self> {
        let memory = Self::memory(length, count)?;
        memory.prefer_huge_pages().map_err(|error| {
            Refusal::new(Kind::NotSupported, format!("a pool in huge pages: {error}"))
        })?;
        Self::on(pd, memory, length, count)
    }

    fn memory(length: usize, count: u32) -> Result<HostBuf> {
        let bytes = length.checked_mul(count as usize).filter(|bytes| *bytes > 0);
        let bytes = bytes.ok_or_else(|| {
            let what = format!("a pool of {count} buffers of {length} bytes");
            Refusal::new(Kind::Invalid, what)
        })?;
        HostBuf::anonymous(bytes).map_err(|error| {
            Refusal::new(Kind::NoMemory, format!("a pool of {bytes} bytes: {error}"))
        })
    }

    fn on(pd: &Pd, memory: HostBuf, length: usize, count: u32) -> Result<Self> {
        Slab::new(pd, memory, length, count).map(Self)
    }

    /// A buffer, if one is left. It holds what it was last left with.
    pub fn try_take(&self) -> Option<Buffer> {
        let permit = self.0.slots().try_acquire(1)?;
        Some(Buffer(self.0.piece(permit)))
    }

    /// A buffer; waits until one comes back, in the order of the calls.
    pub async fn take(&self) -> Buffer {
        let permit = self.0.slots().acquire(1).await;
        Buffer(self.0.piece(permit))
    }

    /// How many buffers are left.
    pub fn free(&self) -> u32 {
        self.0.slots().free()
    }

    /// How many bytes each buffer has.
    pub fn length(&self) -> usize {
        self.0.length()
    }
}
