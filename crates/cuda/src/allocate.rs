//! Allocating and freeing, for the driver and the runtime.

use std::sync::atomic::AtomicI32;
use std::sync::{Arc, PoisonError, Weak};

use umem::HostBuf;

use crate::context::Context;
use crate::pack::{self, Block};
use crate::pool::Pool;
use crate::process::Process;
use crate::space::{GPU_PAGE, Held, Kind, LARGE_PAGE, Region, Source};
use crate::status::{Refusal, Result, Status, invalid};
use umd::Memory;

/// Pitches are multiples of this.
pub(crate) const PITCH: u64 = 512;

impl Process {
    /// Allocates memory of the context's GPU.
    ///
    /// # Errors
    ///
    /// No bytes; or the GPU is full.
    pub(crate) fn allocate(&self, context: &Arc<Context>, len: u64) -> Result<u64> {
        if (1..=pack::LONGEST).contains(&len) && self.devices()[context.device].config.pack {
            return self.allocate_beside(context, len);
        }
        let memory = self.memory(context.device, len)?;
        let kind = Kind::Device { memory, offset: 0, source: Source::Alloc };
        Ok(self.place(len, Some(Arc::clone(context)), kind)?.start)
    }

    /// Allocates memory of a pool. It belongs to no context.
    ///
    /// # Errors
    ///
    /// As [`allocate`](Self::allocate).
    pub(crate) fn allocate_from(&self, pool: &Arc<Pool>, len: u64) -> Result<u64> {
        let memory = self.memory(pool.device, len)?;
        let kind = Kind::Device { memory, offset: 0, source: Source::Pool(Arc::clone(pool)) };
        let region = self.place(len, None, kind)?;
        pool.add(len);
        Ok(region.start)
    }

    /// Allocates part of a block that the context's small allocations share.
    fn allocate_beside(&self, context: &Arc<Context>, len: u64) -> Result<u64> {
        let mut blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        blocks.retain(|block| block.strong_count() > 0);
        let known = blocks.iter().filter_map(Weak::upgrade).filter(|block| block.is_of(context));
        let mut found = known.filter_map(|block| Some((block.take(len)?, block)));
        let (start, block) = match found.next() {
            Some(found) => found,
            None => {
                drop(found);
                let memory = Arc::new(Memory::new(self.devices(), context.device, LARGE_PAGE)?);
                let at = self.space.take(LARGE_PAGE, LARGE_PAGE, 0)?;
                let block = Arc::new(Block::new(at, memory, context));
                blocks.push(Arc::downgrade(&block));
                let start = block.take(len);
                (start.ok_or_else(|| invalid("a new block has no room"))?, block)
            }
        };
        drop(blocks);
        let (memory, offset) = (Arc::clone(&block.memory), start - block.start);
        let kind = Kind::Device { memory, offset, source: Source::Packed { block, len } };
        let held = Held::new(Some(Arc::clone(context)), kind);
        Ok(self.space.add(start, len, 0, held).start)
    }

    fn memory(&self, device: usize, len: u64) -> Result<Arc<Memory>> {
        if len == 0 {
            return Err(invalid("no bytes to allocate"));
        }
        let size = len.checked_next_multiple_of(GPU_PAGE);
        let full = || Refusal::new(Status::OutOfMemory, format!("{len:#x} bytes"));
        Ok(Arc::new(Memory::new(self.devices(), device, size.ok_or_else(full)?)?))
    }

    /// Assigns an address to memory.
    pub(crate) fn place(
        &self,
        len: u64,
        context: Option<Arc<Context>>,
        kind: Kind,
    ) -> Result<Arc<Region>> {
        Ok(self.space.place(len, 1, Held::new(context, kind))?)
    }

    /// Frees the region that begins at `start`, if `is` accepts its kind.
    ///
    /// # Errors
    ///
    /// There is no such region.
    pub(crate) fn free(&self, start: u64, is: impl Fn(&Kind) -> bool) -> Result<()> {
        let region = self.space.remove(start, |region| is(&region.kind));
        let region = region.ok_or_else(|| match self.space.find(start) {
            Some(found) => {
                invalid(format!("{start:#x} cannot be freed by this call: it is {}", found.name()))
            }
            None => invalid(format!("{start:#x} is not an allocation")),
        })?;
        if let Kind::Device { source: Source::Pool(pool), .. } = &region.kind {
            pool.take(region.len);
        }
        self.space.end(&region);
        Ok(())
    }

    /// Waits for all streams: memory that is freed may be in use.
    pub(crate) fn wait_for_streams(&self) {
        self.streams.all().iter().for_each(|stream| stream.wait_idle());
        if let Ok(context) = crate::context::current() {
            context.legacy.wait_idle();
        }
    }

    /// Host memory of the given kind.
    ///
    /// # Errors
    ///
    /// No bytes, or no memory.
    pub(crate) fn allocate_host(
        &self,
        context: &Arc<Context>,
        len: u64,
        kind: impl FnOnce(HostBuf) -> Kind,
    ) -> Result<u64> {
        let none = |error: String| Refusal::new(Status::OutOfMemory, error);
        let size = usize::try_from(len).map_err(|_| none(format!("{len:#x} bytes")))?;
        if size == 0 {
            return Err(invalid("no bytes to allocate"));
        }
        let pages = HostBuf::anonymous(size).map_err(|error| none(error.to_string()))?;
        let start = pages.as_ptr().addr() as u64;
        self.space.add(start, len, len, Held::new(Some(Arc::clone(context)), kind(pages)));
        Ok(start)
    }

    /// Memory that host and GPU share.
    ///
    /// # Errors
    ///
    /// As [`allocate_host`](Self::allocate_host).
    pub(crate) fn allocate_managed(&self, context: &Arc<Context>, len: u64) -> Result<u64> {
        self.allocate_host(context, len, |pages| Kind::Managed {
            _pages: pages,
            preferred: AtomicI32::new(-2),
        })
    }
}
