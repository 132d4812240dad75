//! What Level Zero has at which addresses.

use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, PoisonError};

use umd::Memory;
use umd::copy::{At, Piece};
use umd::space::Content;
use umd::vmm::Physical;
use umem::HostBuf;

use crate::context::Context;
use crate::status::Result;

/// All addresses that Level Zero knows of in this process.
pub(crate) type Space = umd::space::Space<Held>;

/// Memory, or room for it, at some addresses.
pub(crate) type Region = umd::space::Region<Held>;

/// Addresses into which physical memory is mapped.
pub(crate) type Reserved = umd::vmm::Reserved<Allocation>;

/// What a region has.
pub(crate) struct Held {
    pub(crate) context: Arc<Context>,
    pub(crate) kind: Kind,
    /// What a device may do with reserved addresses at which nothing is mapped yet, as the program
    /// said it.
    pub(crate) access: AtomicU32,
}

/// What is there.
pub(crate) enum Kind {
    /// Memory of a GPU.
    Device {
        memory: Arc<Memory>,
        /// Whether it came as a handle of another process, or as a file.
        is_ipc: bool,
        /// The dma-buf of it that programs are told of; closed when it is freed.
        file: Mutex<Option<OwnedFd>>,
    },
    /// Addresses into which physical memory is mapped.
    Reserved(Reserved),
    /// Host memory that the GPU reaches.
    Host { _pages: HostBuf },
    /// Memory that host and a GPU share.
    Shared { _pages: HostBuf, device: Option<usize> },
}

/// Physical memory: it has no address of its own.
#[doc(alias = "ze_physical_mem_handle_t")]
pub(crate) struct Allocation {
    pub(crate) handle: u64,
    /// The handle of its context.
    pub(crate) context: u64,
    /// Never used twice in a process.
    pub(crate) id: u64,
    pub(crate) size: u64,
    pub(crate) memory: Arc<Memory>,
}

impl Physical for Allocation {
    fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }
}

impl Held {
    /// Memory of a GPU.
    pub(crate) fn device(context: Arc<Context>, memory: Arc<Memory>, is_ipc: bool) -> Self {
        Self::new(context, Kind::Device { memory, is_ipc, file: Mutex::default() })
    }

    pub(crate) fn new(context: Arc<Context>, kind: Kind) -> Self {
        Self { context, kind, access: AtomicU32::new(0) }
    }

    /// The number of the dma-buf of this memory: the same for each who asks, until the memory is
    /// freed.
    ///
    /// # Errors
    ///
    /// No descriptor, or memory that was lost.
    pub(crate) fn file(memory: &Memory, file: &Mutex<Option<OwnedFd>>) -> Result<i32> {
        let mut file = file.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = file.as_ref() {
            return Ok(file.as_fd().as_raw_fd());
        }
        let new = memory.share()?;
        let number = new.as_raw_fd();
        *file = Some(new);
        Ok(number)
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
        if let Kind::Device { memory, file, .. } = &self.kind {
            memory.release(0, memory.size());
            drop(file.lock().unwrap_or_else(PoisonError::into_inner).take());
        }
    }
}
