//! A program's handle of a buffer.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use dmabuf::peer::PeerMemory;
use dmabuf::{DmaBuf, Fence, MmapBacking, MmapError, Resv, SgBacking, Usage};

use crate::bo::BoInner;
use crate::client::Claimed;
use crate::cpu::CpuPages;
use crate::error::{Result, invalid, not_supported};
use crate::imported::Imported;
use crate::names;
use crate::place::Domain;
use crate::reset::Resetting;

/// A buffer object: bytes in VRAM or GTT. A clone is another handle. The buffer is freed with its
/// last handle and the last handle and attachment of its dma-buf.
#[doc(alias = "drm_gem_object")]
#[doc(alias = "ttm_buffer_object")]
#[derive(Clone)]
pub struct Bo {
    handle: Arc<Handle>,
}

struct Handle {
    memory: Memory,
    exported: Mutex<Option<DmaBuf>>,
}

/// Whose buffer it is.
pub(crate) enum Memory {
    /// A buffer of this process.
    Own(Arc<BoInner>),
    /// A buffer of another process, of another GPU, or of the kernel.
    Imported(Imported),
}

impl Bo {
    pub(crate) fn new(bo: Arc<BoInner>) -> Self {
        Self { handle: Arc::new(Handle { memory: Memory::Own(bo), exported: Mutex::default() }) }
    }

    pub(crate) fn imported(imported: Imported) -> Self {
        let memory = Memory::Imported(imported);
        Self { handle: Arc::new(Handle { memory, exported: Mutex::default() }) }
    }

    pub(crate) fn memory(&self) -> &Memory {
        &self.handle.memory
    }

    /// The buffer, for operations that only its owner may do.
    pub(crate) fn own(&self) -> Result<&Arc<BoInner>> {
        match self.memory() {
            Memory::Own(bo) => Ok(bo),
            Memory::Imported(_) => Err(not_supported(format!(
                "{} was imported: only its owner does that",
                self.name()
            ))),
        }
    }

    /// Whether it was [imported](crate::Gpu::import), and thus has another owner.
    pub fn is_imported(&self) -> bool {
        matches!(self.memory(), Memory::Imported(_))
    }

    /// Size in bytes, whole pages.
    pub fn size(&self) -> u64 {
        match self.memory() {
            Memory::Own(bo) => bo.size,
            Memory::Imported(imported) => imported.buffer().size(),
        }
    }

    /// A name for messages.
    pub fn name(&self) -> String {
        match self.memory() {
            Memory::Own(bo) => bo.name(),
            Memory::Imported(imported) => imported.name(),
        }
    }

    /// The reservation lock, which an export shares.
    pub fn resv(&self) -> &Resv {
        match self.memory() {
            Memory::Own(bo) => &bo.resv,
            Memory::Imported(imported) => imported.buffer().resv(),
        }
    }

    /// Where it is now.
    ///
    /// # Errors
    ///
    /// ENODEV when it was revoked, EOPNOTSUPP when it was imported.
    pub fn domain(&self) -> Result<Domain> {
        Ok(self.own()?.resource()?.domain)
    }

    /// Where it begins in its domain now.
    ///
    /// # Errors
    ///
    /// As [`domain`](Self::domain).
    pub fn offset(&self) -> Result<u64> {
        Ok(self.own()?.resource()?.offset)
    }

    /// The dma-buf of this buffer: made at the first call, and the same one afterwards. For an
    /// imported buffer, the dma-buf that was imported.
    ///
    /// # Errors
    ///
    /// ENODEV when it was revoked; ENOMEM when the kernel has no file or memory left.
    #[doc(alias = "drm_gem_prime_export")]
    pub fn export(&self) -> Result<DmaBuf> {
        let bo = match self.memory() {
            Memory::Own(bo) => bo,
            Memory::Imported(imported) => return Ok(imported.buffer().clone()),
        };
        bo.device.check_present()?;
        let mut exported = self.handle.exported.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(buf) = &*exported {
            return Ok(buf.clone());
        }
        let buf = bo.new_window(0, bo.size, bo.name())?;
        *exported = Some(buf.clone());
        Ok(buf)
    }

    /// A dma-buf of `len` bytes at `offset`, both multiples of the page size: a new one at each
    /// call. It shares the buffer's reservation lock, follows its moves, and keeps its memory after
    /// the program has dropped the buffer.
    ///
    /// ```
    /// use gpu::{Gpu, GpuConfig, Place};
    ///
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let gpu = Gpu::open(&GpuConfig { shared: false, ..GpuConfig::default() })?;
    /// let bo = gpu.alloc(1 << 20, Place::VRAM)?;
    /// bo.write(4096, b"second page")?;
    /// let window = bo.export_range(4096, 8192)?;
    /// assert_eq!(window.size(), 8192);
    /// let mapping = window.map(0, 8192)?; // its first byte is the buffer's 4096th
    /// # drop(mapping);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// EINVAL for a range that is not whole pages of the buffer; EOPNOTSUPP when it was imported;
    /// ENODEV when it was revoked; ENOMEM when the kernel has no file or memory left.
    #[doc(alias = "cuMemGetHandleForAddressRange")]
    pub fn export_range(&self, offset: u64, len: u64) -> Result<DmaBuf> {
        let bo = self.own()?;
        bo.device.check_present()?;
        let page = rustix::param::page_size() as u64;
        let end = offset.checked_add(len).filter(|end| *end <= bo.size);
        if len == 0 || end.is_none() || !(offset | len).is_multiple_of(page) {
            return Err(invalid(format!(
                "{len:#x} bytes at {offset:#x} are not whole pages of {} of {:#x} bytes",
                bo.name(),
                bo.size
            )));
        }
        bo.new_window(offset, len, names::window(&bo.name(), offset))
    }

    /// Takes the memory away from all importers until the returned value is dropped, as for a
    /// device whose memory does not respond. The contents stay. A dma-buf that is exported
    /// meanwhile starts revoked.
    ///
    /// # Errors
    ///
    /// EOPNOTSUPP when it was imported.
    #[doc(alias = "vfio_pci_dma_buf_move")]
    pub fn suspend(&self, why: &str) -> Result<Resetting> {
        Ok(Resetting::suspend(self.own()?, why))
    }

    /// Moves the buffer to where the CPU reaches it, and pins it there, for a program that maps it.
    /// Must not be called with the reservation lock held.
    ///
    /// # Errors
    ///
    /// EINVAL when this GPU's memory cannot be mapped, EOPNOTSUPP when it was imported, EAGAIN at
    /// the limit on pinned VRAM, ENODEV when it was revoked.
    #[doc(alias = "drm_gem_mmap")]
    pub fn cpu_pages(&self) -> Result<CpuPages> {
        CpuPages::of(self.own()?)
    }

    /// What a program maps for `len` bytes at `offset`; the buffer stays there until the program
    /// drops the returned value.
    ///
    /// # Errors
    ///
    /// EINVAL when the range exceeds the buffer; otherwise as [`cpu_pages`](Self::cpu_pages).
    pub fn mmap_backing(&self, offset: u64, len: u64) -> Result<MmapBacking> {
        self.check(offset, len)?;
        match self.memory() {
            Memory::Own(bo) => {
                let pages = CpuPages::of(bo)?;
                let (file, offset) = (Arc::clone(pages.file()), pages.offset() + offset);
                let (backing, zap) = (SgBacking { file, offset }, Some(pages.zap().clone()));
                Ok(MmapBacking { backing, hold: Box::new(pages), zap })
            }
            Memory::Imported(imported) => {
                let offered = imported.buffer().mmap_backing(offset, len);
                offered.map_err(|error| match error {
                    MmapError::Exporter { reason, .. } => reason,
                    error => invalid(error.to_string()),
                })
            }
        }
    }

    /// Whether both are handles of one buffer.
    pub fn is_same(&self, other: &Self) -> bool {
        match (self.memory(), other.memory()) {
            (Memory::Own(one), Memory::Own(other)) => Arc::ptr_eq(one, other),
            (Memory::Imported(one), Memory::Imported(other)) => {
                one.buffer().is_same(other.buffer()) && Arc::ptr_eq(&one.device, &other.device)
            }
            _ => false,
        }
    }

    /// `len` bytes at `offset`, for a [peer memory client](dmabuf::peer::PeerClient) that has given
    /// them an address: what its `acquire` returns. Devices get whole pages of `page` bytes, so the
    /// address and the offset must have the same offset into such a page. The buffer is pinned
    /// where it is while it is registered. A reset, a removal,
    /// [`revoke_peers`](Self::revoke_peers) and the drop of the last handle take it back.
    ///
    /// # Errors
    ///
    /// EINVAL when these pages are not all inside the buffer, EOPNOTSUPP when it was imported.
    pub fn peer_memory(&self, offset: u64, len: u64, page: u64) -> Result<Box<dyn PeerMemory>> {
        Ok(Box::new(Claimed::new(self.own()?, offset, len, page)?))
    }

    /// As [`peer_memory`](Self::peer_memory), for a device that cannot stop: nothing takes the
    /// memory back while it is registered, and the buffer lives as long.
    ///
    /// # Errors
    ///
    /// As [`peer_memory`](Self::peer_memory).
    pub fn lasting_peer_memory(
        &self,
        offset: u64,
        len: u64,
        page: u64,
    ) -> Result<Box<dyn PeerMemory>> {
        Ok(Box::new(Claimed::new(self.own()?, offset, len, page)?.for_good()))
    }

    /// The program freed `len` bytes at `offset`: registrations by address that touch them are dead
    /// when this returns. Registrations of its dma-bufs live on. Returns how many died.
    pub fn revoke_peers(&self, offset: u64, len: u64) -> usize {
        let Ok(bo) = self.own() else { return 0 };
        let count = bo.revoke_peers(offset, len);
        if count > 0 {
            let name = self.name();
            tracing::info!(target: "peerdma::peer-memory", "{name}: freed under {count} registrations by address");
        }
        count
    }

    /// A fence for the moves in progress.
    pub fn moving(&self) -> Fence {
        self.resv().singleton(Usage::Kernel)
    }
}

impl fmt::Debug for Bo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Bo");
        debug.field("name", &self.name()).field("size", &self.size());
        debug.field("domain", &self.domain().ok()).finish()
    }
}
