//! A buffer mapped for the CPU.

use std::fmt;
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, PoisonError};

use rustix::io::Errno;

use crate::buf::DmaBuf;
use crate::exporter::{Direction, ExporterError, MmapBacking, SgBacking};
use crate::sys::Pages;

/// A range of a buffer, mapped shared into this process. It keeps the buffer; dropping it unmaps.
///
/// Others may change the memory at any time, so this crate returns an address and no reference.
/// Accesses belong between [`begin_cpu_access`](Self::begin_cpu_access) and the drop of its guard.
pub struct Mapping {
    buf: DmaBuf,
    pages: Arc<Held>,
    offset: u64,
    len: u64,
    /// Bytes between the start of the pages and the first requested byte.
    lead: usize,
    is_writable: bool,
    can_vanish: bool,
}

/// The mapping, and what keeps the bytes there. Unmapped first.
struct Held {
    pages: Pages,
    hold: Mutex<Option<Hold>>,
}

type Hold = Box<dyn std::any::Any + Send + Sync>;

/// The memory is coherent for the CPU while this exists.
#[must_use = "CPU access ends when the guard is dropped"]
#[derive(Debug)]
pub struct CpuAccess<'a> {
    mapping: &'a Mapping,
    direction: Direction,
}

/// Why a buffer could not be mapped for the CPU.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MmapError {
    /// The range exceeds the buffer.
    #[error(
        "{len:#x} bytes at offset {offset:#x} are not all inside the buffer of {size:#x} bytes"
    )]
    OutOfRange {
        /// Where the range begins.
        offset: u64,
        /// Its length.
        len: u64,
        /// The size of the buffer.
        size: u64,
    },
    /// Nothing of length zero can be mapped.
    #[error("a mapping needs at least one byte")]
    Empty,
    /// The exporter refused.
    #[error("{exporter} refuses to be mapped by the CPU: {reason}")]
    Exporter {
        /// The exporter.
        exporter: String,
        /// Its reason.
        #[source]
        reason: ExporterError,
    },
    /// The kernel refused.
    #[error("mmap of {len:#x} bytes at offset {offset:#x} failed: {errno}")]
    System {
        /// Where the range begins.
        offset: u64,
        /// Its length.
        len: u64,
        /// The kernel's reason.
        errno: Errno,
    },
}

impl DmaBuf {
    /// Maps `len` bytes at `offset` for the CPU; neither needs to be page-aligned. An fd that is
    /// open only for reading gives a read-only mapping.
    ///
    /// # Errors
    ///
    /// [`MmapError`].
    #[doc(alias = "dma_buf_mmap")]
    pub fn map(&self, offset: u64, len: u64) -> Result<Mapping, MmapError> {
        Mapping::new(self, offset, len, self.is_writable())
    }

    /// What a program must map if it maps `len` bytes at `offset` by itself: the file and the
    /// offset in it, and what keeps the bytes there while they are mapped.
    ///
    /// # Errors
    ///
    /// [`MmapError`].
    pub fn mmap_backing(&self, offset: u64, len: u64) -> Result<MmapBacking, MmapError> {
        if let Some(mut elsewhere) = self.offered(offset, len)? {
            elsewhere.backing.offset += offset;
            return Ok(elsewhere);
        }
        let (_, file, _) = self.parts();
        let backing = SgBacking { file: Arc::clone(file), offset };
        Ok(MmapBacking { backing, hold: Box::new(self.clone()), zap: None })
    }

    /// Checks whether a range may be mapped, and returns where its bytes are if not in the buffer's
    /// own file.
    fn offered(&self, offset: u64, len: u64) -> Result<Option<MmapBacking>, MmapError> {
        self.resv().assert_unlocked("mmap");
        let size = self.size();
        if offset.checked_add(len).is_none_or(|end| end > size) {
            return Err(MmapError::OutOfRange { offset, len, size });
        }
        if len == 0 {
            return Err(MmapError::Empty);
        }
        let exporter = self.shared().exporter();
        let refused = |reason| MmapError::Exporter { exporter: exporter.name().to_owned(), reason };
        let elsewhere = exporter.mmap_backing(offset, len).map_err(refused)?;
        if elsewhere.is_none() {
            exporter.mmap(offset, len).map_err(refused)?;
        }
        Ok(elsewhere)
    }
}

impl Mapping {
    fn new(buf: &DmaBuf, offset: u64, len: u64, is_writable: bool) -> Result<Self, MmapError> {
        let elsewhere = buf.offered(offset, len)?;
        let page = rustix::param::page_size() as u64;
        // A kernel dma-buf is mapped from its beginning: buffers of DRM's shmem helpers (vgem,
        // virtio-gpu) show their first page wherever a mapping begins, since their fault handler
        // counts from there (`drm_gem_shmem_fault`).
        let lead = if buf.is_kernel() { offset } else { offset % page };
        let system = |errno| MmapError::System { offset, len, errno };
        let mapped = usize::try_from(lead + len).map_err(|_| system(Errno::OVERFLOW))?;
        let (file, start) = match &elsewhere {
            Some(MmapBacking { backing, .. }) => (&backing.file, backing.offset),
            None => (buf.parts().1, 0),
        };
        file.look().map_err(system)?;
        let file = file.as_fd();
        let pages = Pages::map(file, start + offset - lead, mapped, is_writable).map_err(system)?;
        let (hold, zap) = match elsewhere {
            Some(MmapBacking { hold, zap, .. }) => (Some(hold), zap),
            None => (None, None),
        };
        let can_vanish = zap.is_some();
        let pages = Arc::new(Held { pages, hold: Mutex::new(hold) });
        if let Some(zap) = zap {
            let pages = Arc::downgrade(&pages);
            zap.on_zap(move || {
                if let Some(held) = pages.upgrade() {
                    held.zap();
                }
            });
        }
        // CAST: less than what was mapped.
        let lead = lead as usize;
        Ok(Self { buf: buf.clone(), pages, offset, len, lead, is_writable, can_vanish })
    }

    /// Where the first byte is.
    pub fn addr(&self) -> usize {
        self.pages.pages.addr() + self.lead
    }

    /// Length in bytes, as requested.
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Never true: a mapping has at least one byte.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Where it begins in the buffer.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Whether stores are permitted; otherwise they fault.
    pub fn is_writable(&self) -> bool {
        self.is_writable
    }

    /// Whether its exporter may take it away, so that an access raises SIGBUS.
    pub fn can_vanish(&self) -> bool {
        self.can_vanish
    }

    /// The buffer.
    pub fn buf(&self) -> &DmaBuf {
        &self.buf
    }

    /// Whether accesses must be bracketed for the data to be correct.
    pub fn needs_brackets(&self) -> bool {
        !self.buf.shared().exporter().is_coherent()
    }

    /// Makes the memory coherent for the CPU: data of devices becomes visible, and writes of the
    /// CPU become visible to devices when the guard is dropped. It does not exclude other users.
    /// Must not be called with the reservation lock held.
    ///
    /// First asks the exporter; then waits for the fences that concern the access: all implicit
    /// users if the CPU will write, only writers if it will only read.
    ///
    /// # Errors
    ///
    /// The exporter's refusal.
    #[doc(alias = "DMA_BUF_IOCTL_SYNC")]
    pub fn begin_cpu_access(&self, direction: Direction) -> Result<CpuAccess<'_>, ExporterError> {
        let resv = self.buf.resv();
        resv.assert_unlocked("begin_cpu_access");
        self.buf.shared().exporter().begin_cpu_access(direction)?;
        let writes = direction != Direction::FromDevice;
        if self.buf.wait_access(writes, None).is_err() {
            unreachable!("a wait without a limit ends with the fences");
        }
        Ok(CpuAccess { mapping: self, direction })
    }
}

impl Held {
    /// The exporter took the memory away: an access to the pages now raises SIGBUS.
    fn zap(&self) {
        self.pages.zap();
        let hold = self.hold.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(hold);
    }
}

impl CpuAccess<'_> {
    /// Ends the access and returns whether the exporter could make it visible.
    ///
    /// # Errors
    ///
    /// The exporter's refusal.
    pub fn end(self) -> Result<(), ExporterError> {
        self.mapping.buf.resv().assert_unlocked("end_cpu_access");
        let result = self.mapping.buf.shared().exporter().end_cpu_access(self.direction);
        std::mem::forget(self);
        result
    }
}

impl Drop for CpuAccess<'_> {
    fn drop(&mut self) {
        let exporter = self.mapping.buf.shared().exporter();
        if let Err(error) = exporter.end_cpu_access(self.direction) {
            tracing::warn!("CPU access to {:?} did not end well: {error}", self.mapping.buf);
        }
    }
}

impl fmt::Debug for Mapping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mapping")
            .field("buf", &self.buf)
            .field("addr", &format_args!("{:#x}", self.addr()))
            .field("offset", &self.offset)
            .field("len", &self.len)
            .finish()
    }
}
