//! Memory that the CPU reaches: the host's, and what it shares with a device.
//!
//! What is to be exported is a buffer in the system memory that a GPU may use, mapped by the CPU:
//! there is a dma-buf of it, and a NIC cannot pin its pages by their address (EFAULT,
//! `docs/PEER_MEMORY_RULES.md`). All else is plain pages, as Intel's driver has them, of which a
//! kernel makes no dma-buf (`i915_gem_userptr_dmabuf_export`).

use std::sync::Arc;

use umd::machine::Device;
use umd::{Mapping, Memory};
use umem::HostBuf;

use crate::exported::Exported;
use crate::status::{Refusal, Result, Status, unsupported};

/// Pages that the CPU reaches.
pub(crate) struct Pages {
    /// The first byte of the allocation.
    pub(crate) start: u64,
    backing: Backing,
    /// Whether it came as a handle of another process.
    pub(crate) is_ipc: bool,
}

enum Backing {
    /// So many bytes into the buffer, so many of its pages are the allocation.
    Buffer { memory: Arc<Memory>, _mapping: Mapping, offset: u64, len: u64, file: Exported },
    /// No GPU has it.
    Plain { _pages: HostBuf },
}

impl Pages {
    /// Plain pages.
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

    /// A buffer of a device, to be exported.
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

    /// Takes memory that came as a file.
    ///
    /// # Errors
    ///
    /// The CPU may not map it.
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

    /// The GPU whose buffer it is.
    pub(crate) fn device(&self) -> Option<usize> {
        match &self.backing {
            Backing::Buffer { memory, .. } => Some(memory.device),
            Backing::Plain { .. } => None,
        }
    }

    /// The number of its dma-buf, the same each time.
    ///
    /// # Errors
    ///
    /// No descriptor, memory that was lost, or plain pages.
    pub(crate) fn file(&self) -> Result<i32> {
        let Backing::Buffer { memory, offset, len, file, .. } = &self.backing else {
            return Err(unsupported(
                "memory that the CPU reaches is a dma-buf if it was allocated with \
                 ze_external_memory_export_desc_t, and this was not",
            ));
        };
        let is_whole = *offset == 0 && *len == memory.size();
        file.number(|| Ok(if is_whole { memory.share()? } else { memory.export(*offset, *len)? }))
    }

    /// It is freed: the descriptor that programs were told of is closed.
    pub(crate) fn end(&self) {
        if let Backing::Buffer { file, .. } = &self.backing {
            file.close();
        }
    }
}

/// As many bytes more as it takes to align an allocation. Pages are aligned to their own size.
fn lead(align: u64) -> u64 {
    if align > page() { align } else { 0 }
}

/// Why there is no buffer in system memory.
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
