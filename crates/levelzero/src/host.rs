//! Memory that the CPU can access: host memory, and memory shared with a device.
//!
//! Exportable memory is a GPU buffer in system memory, mapped by the CPU: it has a dma-buf, and a
//! NIC cannot pin its pages by their address (EFAULT, `docs/PEER_MEMORY_RULES.md`). All other
//! memory is plain pages, as with Intel's driver. A kernel exports no dma-buf of these
//! (`i915_gem_userptr_dmabuf_export`).

use std::sync::Arc;

use umd::machine::Device;
use umd::{Mapping, Memory};
use umem::HostBuf;

use crate::exported::Exported;
use crate::status::{Refusal, Result, Status, unsupported};

/// Pages that the CPU can access.
pub(crate) struct Pages {
    /// The first byte of the allocation.
    pub(crate) start: u64,
    backing: Backing,
    /// Whether it was opened by a handle of another process.
    pub(crate) is_ipc: bool,
}

enum Backing {
    /// The allocation is `len` bytes of the buffer, from `offset` on.
    Buffer { memory: Arc<Memory>, _mapping: Mapping, offset: u64, len: u64, file: Exported },
    /// Pages that belong to no GPU.
    Plain { _pages: HostBuf },
}

impl Pages {
    /// Allocates plain pages.
    ///
    /// # Errors
    ///
    /// No memory.
    pub(crate) fn plain(len: u64, align: u64) -> Result<Self> {
        let none = || none(len);
        let size = len.checked_add(lead(align)).and_then(|size| usize::try_from(size).ok());
        let pages = HostBuf::anonymous(size.ok_or_else(none)?).map_err(|_| none())?;
        let start = (pages.as_ptr().addr() as u64).next_multiple_of(align);
        Ok(Self { start, backing: Backing::Plain { _pages: pages }, is_ipc: false })
    }

    /// Allocates a buffer of a device, for export.
    ///
    /// # Errors
    ///
    /// The device's share of system memory (`gtt` of `[[gpu]]`) is full.
    pub(crate) fn exported(
        devices: &[&'static Device],
        device: usize,
        len: u64,
        align: u64,
    ) -> Result<Self> {
        let whole = len.checked_next_multiple_of(page()).ok_or_else(|| none(len))?;
        let size = whole.checked_add(lead(align)).ok_or_else(|| none(len))?;
        let memory = Memory::system(devices, device, size).map_err(full)?;
        Self::map(Arc::new(memory), whole, align, false)
    }

    /// Maps memory that was imported as a file.
    ///
    /// # Errors
    ///
    /// The CPU cannot map it.
    pub(crate) fn imported(memory: Memory, is_ipc: bool) -> Result<Self> {
        let len = memory.size();
        Self::map(Arc::new(memory), len, 1, is_ipc)
    }

    fn map(memory: Arc<Memory>, len: u64, align: u64, is_ipc: bool) -> Result<Self> {
        let mapping = memory.map()?;
        let begin = mapping.addr() as u64;
        let start = begin.next_multiple_of(align);
        let (offset, file) = (start - begin, Exported::default());
        let backing = Backing::Buffer { memory, _mapping: mapping, offset, len, file };
        Ok(Self { start, backing, is_ipc })
    }

    /// The GPU that the buffer belongs to.
    pub(crate) fn device(&self) -> Option<usize> {
        match &self.backing {
            Backing::Buffer { memory, .. } => Some(memory.device),
            Backing::Plain { .. } => None,
        }
    }

    /// The descriptor of its dma-buf, the same each time.
    ///
    /// # Errors
    ///
    /// No descriptor, memory that was lost, or plain pages.
    pub(crate) fn file(&self) -> Result<i32> {
        let Backing::Buffer { memory, offset, len, file, .. } = &self.backing else {
            return Err(unsupported(
                "memory that the CPU can access has a dma-buf if it was allocated with \
                 ze_external_memory_export_desc_t, and this was not",
            ));
        };
        let is_whole = *offset == 0 && *len == memory.size();
        file.number(|| Ok(if is_whole { memory.share()? } else { memory.export(*offset, *len)? }))
    }

    /// The memory is freed: closes the descriptor that programs got.
    pub(crate) fn end(&self) {
        if let Backing::Buffer { file, .. } = &self.backing {
            file.close();
        }
    }
}

/// The extra bytes that are needed to align an allocation. Pages are aligned to their own size.
fn lead(align: u64) -> u64 {
    if align > page() { align } else { 0 }
}

/// The refusal of a buffer in system memory.
pub(crate) fn full(why: umd::Refusal) -> Refusal {
    match why.kind {
        umd::Kind::NoMemory => Refusal::new(Status::OutOfHostMemory, why.what),
        _ => why.into(),
    }
}

fn none(len: u64) -> Refusal {
    Refusal::new(Status::OutOfHostMemory, format!("{len:#x} bytes"))
}

fn page() -> u64 {
    rustix::param::page_size() as u64
}
