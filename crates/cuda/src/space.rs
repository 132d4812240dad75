//! The address space of CUDA.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize};

use umd::Memory;
use umd::copy::{At, Piece};
use umd::space::Content;
pub(crate) use umd::space::{GPU_PAGE, LARGE_PAGE};
use umem::HostBuf;

use crate::context::Context;
use crate::pack::Block;
use crate::pool::Pool;
use crate::vmm::Reserved;

/// All addresses that CUDA knows in this process.
pub(crate) type Space = umd::space::Space<Held>;

/// A range of addresses: memory, or a reservation.
pub(crate) type Region = umd::space::Region<Held>;

/// What CUDA keeps for a region.
pub(crate) struct Held {
    /// The context that it belongs to; it ends with that context.
    pub(crate) context: Option<Arc<Context>>,
    pub(crate) sync_memops: AtomicBool,
    pub(crate) kind: Kind,
}

/// The kind of memory in a region.
pub(crate) enum Kind {
    /// Memory of a GPU, from `offset` on.
    Device { memory: Arc<Memory>, offset: u64, source: Source },
    /// Reserved addresses into which allocations are mapped.
    Reserved(Reserved),
    /// Host memory that the GPU shares.
    Managed {
        _pages: HostBuf,
        /// The preferred location: a GPU, -1 for the CPU, -2 for none.
        preferred: AtomicI32,
    },
    /// Host memory that CUDA allocated.
    Host { _pages: HostBuf, flags: u32 },
    /// Host memory of the program.
    Registered { flags: u32 },
}

/// The origin of GPU memory.
pub(crate) enum Source {
    /// A plain allocation.
    Alloc,
    /// A small allocation in a block shared with others.
    Packed { block: Arc<Block>, len: u64 },
    /// An allocation from a pool, in the order of a stream.
    Pool(Arc<Pool>),
    /// Opened from another process; `opened` counts how often.
    Ipc { handle: [u8; 64], opened: AtomicUsize },
}

impl Held {
    pub(crate) fn new(context: Option<Arc<Context>>, kind: Kind) -> Self {
        Self { context, sync_memops: AtomicBool::new(false), kind }
    }
}

impl Content for Held {
    fn device(&self) -> Option<usize> {
        match &self.kind {
            Kind::Device { memory, .. } => Some(memory.device),
            _ => None,
        }
    }

    fn about(&self) -> String {
        match &self.kind {
            Kind::Device { memory, .. } => memory.name(),
            Kind::Reserved(_) => "reserved".to_owned(),
            Kind::Managed { .. } => "managed".to_owned(),
            Kind::Host { .. } => "host".to_owned(),
            Kind::Registered { .. } => "registered".to_owned(),
        }
    }

    fn pieces(region: &Region, addr: u64, len: u64) -> umd::Result<Vec<Piece>> {
        match &region.kind {
            Kind::Device { memory, .. } => {
                Ok(vec![Piece { at: At::Device(Arc::clone(memory), offset_of(region, addr)), len }])
            }
            Kind::Reserved(reserved) => reserved.pieces(addr, len),
            _ => Ok(vec![Piece { at: At::Host(addr), len }]),
        }
    }

    fn is_bounded(&self) -> bool {
        !matches!(self.kind, Kind::Registered { .. })
    }

    fn end(&self) {
        match &self.kind {
            Kind::Device { memory, offset, source: Source::Packed { len, .. } } => {
                memory.release(*offset, *len);
            }
            Kind::Device { memory, .. } => {
                memory.release(0, memory.size());
                memory.close_descriptor();
            }
            _ => {}
        }
    }

    fn left(&self) -> Option<Range<u64>> {
        match &self.kind {
            Kind::Device { offset, source: Source::Packed { block, len }, .. } => {
                block.give(block.start + offset, *len).then(|| block.start..block.stop())
            }
            _ => None,
        }
    }
}

/// The offset, in the GPU's memory, of an address in a region.
pub(crate) fn offset_of(region: &Region, addr: u64) -> u64 {
    let start = match &region.kind {
        Kind::Device { offset, .. } => *offset,
        _ => 0,
    };
    start + (addr - region.start)
}

/// The end of the part of a region that peers may have. It is rounded up to GPU pages, so it may
/// exceed what the program asked for.
pub(crate) fn end_for_peers(region: &Region) -> u64 {
    match &region.kind {
        Kind::Device { source: Source::Packed { block, .. }, .. } => block.stop(),
        _ => region.start + region.len.next_multiple_of(GPU_PAGE),
    }
}
