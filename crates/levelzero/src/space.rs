//! The address space of Level Zero.

use std::sync::Arc;
use std::sync::atomic::AtomicU32;

use crate::context::Context;
use crate::exported::Exported;
use crate::host::Pages;
use crate::status::{Result, invalid, unsupported};
use umd::Memory;
use umd::copy::{At, Piece};
use umd::space::Content;
use umd::vmm::{Mapped, Physical};

/// All addresses that Level Zero knows in this process.
pub(crate) type Space = umd::space::Space<Held>;

/// A range of addresses: memory, or a reservation.
pub(crate) type Region = umd::space::Region<Held>;

/// Addresses into which physical memory is mapped.
pub(crate) type Reserved = umd::vmm::Reserved<Allocation>;

/// What Level Zero keeps for a region.
pub(crate) struct Held {
    pub(crate) context: Arc<Context>,
    pub(crate) kind: Kind,
    /// The access of devices to reserved addresses without a mapping, as the program set it.
    pub(crate) access: AtomicU32,
}

/// The kind of memory in a region.
pub(crate) enum Kind {
    /// Memory of a GPU.
    Device {
        memory: Arc<Memory>,
        /// Whether it was opened by a handle of another process, or imported as a file.
        is_ipc: bool,
        /// The descriptor of its dma-buf that programs get; closed when the memory is freed.
        file: Exported,
    },
    /// Addresses into which physical memory is mapped.
    Reserved(Reserved),
    /// Host memory that the GPU reaches.
    Host { pages: Pages },
    /// Memory that host and a GPU share.
    Shared { pages: Pages, device: Option<usize> },
}

/// Physical memory, without an address of its own.
#[doc(alias = "ze_physical_mem_handle_t")]
pub(crate) struct Allocation {
    pub(crate) handle: u64,
    /// The handle of its context.
    pub(crate) context: u64,
    /// Never reused in a process.
    pub(crate) id: u64,
    pub(crate) size: u64,
    pub(crate) memory: Arc<Memory>,
    /// Whether it is host memory: then the CPU sees it where it is mapped.
    pub(crate) is_host: bool,
    /// The descriptor of its dma-buf for other processes; closed with it.
    pub(crate) file: Exported,
}

impl Physical for Allocation {
    fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }

    fn is_for_cpu(&self) -> bool {
        self.is_host
    }
}

impl Allocation {
    /// The descriptor of its dma-buf, the same each time.
    ///
    /// # Errors
    ///
    /// No descriptor left, or lost memory.
    pub(crate) fn file(&self) -> Result<i32> {
        self.file.number(|| Ok(self.memory.share()?))
    }
}

impl Held {
    /// Memory of a GPU.
    pub(crate) fn device(context: Arc<Context>, memory: Arc<Memory>, is_ipc: bool) -> Self {
        Self::new(context, Kind::Device { memory, is_ipc, file: Exported::default() })
    }

    pub(crate) fn new(context: Arc<Context>, kind: Kind) -> Self {
        Self { context, kind, access: AtomicU32::new(0) }
    }

    /// The descriptor of the dma-buf of the memory at an address: the same each time, until the
    /// memory is freed.
    ///
    /// # Errors
    ///
    /// No descriptor left, lost memory, memory without a dma-buf, or no memory.
    pub(crate) fn file(&self, addr: u64) -> Result<i32> {
        match &self.kind {
            Kind::Device { memory, file, .. } => file.number(|| Ok(memory.share()?)),
            Kind::Host { pages } | Kind::Shared { pages, .. } => pages.file(),
            Kind::Reserved(reserved) => mapped(reserved, addr)?.allocation.file(),
        }
    }

    /// The GPU that the buffer at an address belongs to, in device or in system memory.
    pub(crate) fn buffer_of(&self, addr: u64) -> Option<usize> {
        match &self.kind {
            Kind::Device { memory, .. } => Some(memory.device),
            Kind::Host { pages } | Kind::Shared { pages, .. } => pages.device(),
            Kind::Reserved(reserved) => {
                reserved.find(addr).map(|mapped| mapped.allocation.memory.device)
            }
        }
    }

    /// Whether it was opened by a handle of another process.
    pub(crate) fn is_ipc(&self) -> bool {
        match &self.kind {
            Kind::Device { is_ipc, .. } => *is_ipc,
            Kind::Host { pages } | Kind::Shared { pages, .. } => pages.is_ipc,
            Kind::Reserved(_) => false,
        }
    }
}

/// The physical memory at an address: all of it, from its beginning on.
///
/// # Errors
///
/// Nothing is mapped there, or the mapping does not begin where the memory does.
pub(crate) fn mapped(reserved: &Reserved, addr: u64) -> Result<Arc<Mapped<Allocation>>> {
    let mapped = reserved.find(addr);
    let mapped = mapped.ok_or_else(|| invalid(format!("nothing is mapped at {addr:#x}")))?;
    match mapped.offset_of(mapped.start) {
        0 => Ok(mapped),
        _ => Err(unsupported("the mapping does not begin where its memory does")),
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
            Kind::Host { .. } => "host".to_owned(),
            Kind::Shared { .. } => "shared".to_owned(),
        }
    }

    fn pieces(region: &Region, addr: u64, len: u64) -> umd::Result<Vec<Piece>> {
        match &region.kind {
            Kind::Device { memory, .. } => {
                Ok(vec![Piece { at: At::Device(Arc::clone(memory), addr - region.start), len }])
            }
            Kind::Reserved(reserved) => reserved.pieces(addr, len),
            _ => Ok(vec![Piece { at: At::Host(addr), len }]),
        }
    }

    fn end(&self) {
        match &self.kind {
            Kind::Device { memory, file, .. } => {
                memory.release(0, memory.size());
                file.close();
            }
            Kind::Host { pages } | Kind::Shared { pages, .. } => pages.end(),
            Kind::Reserved(reserved) => reserved.end(),
        }
    }
}
