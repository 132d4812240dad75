//! What a program holds of a buffer.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use dmabuf::peer::PeerMemory;
use dmabuf::{DmaBuf, Fence, Gate, Resv, Usage};

use crate::bo::{BoInner, name_of_window};
use crate::client::Claimed;
use crate::error::{Result, invalid, no_memory};
use crate::exporter::Window;
use crate::place::Domain;
use crate::stats::Counters;

/// A buffer object: bytes in VRAM or GTT. A clone is another handle; the last one, with the last handle and attachment of
/// its dma-buf, frees it.
#[doc(alias = "drm_gem_object")]
#[doc(alias = "ttm_buffer_object")]
#[derive(Clone)]
pub struct Bo {
    handle: Arc<Handle>,
}

struct Handle {
    bo: Arc<BoInner>,
    exported: Mutex<Option<DmaBuf>>,
}

/// Where the CPU may map a buffer. The buffer stays there while this exists.
#[must_use = "the buffer may move when this is dropped"]
pub struct CpuPages {
    bo: Arc<BoInner>,
    file: Arc<OwnedFd>,
    offset: u64,
}

impl Bo {
    pub(crate) fn new(bo: Arc<BoInner>) -> Self {
        Self { handle: Arc::new(Handle { bo, exported: Mutex::default() }) }
    }

    pub(crate) fn inner(&self) -> &Arc<BoInner> {
        &self.handle.bo
    }

    /// Size in bytes, whole pages.
    pub fn size(&self) -> u64 {
        self.handle.bo.size
    }

    /// A name for messages.
    pub fn name(&self) -> String {
        self.handle.bo.name()
    }

    /// The reservation lock, which an export shares.
    pub fn resv(&self) -> &Resv {
        &self.handle.bo.resv
    }

    /// Where it is now.
    ///
    /// # Errors
    ///
    /// ENODEV when it was revoked.
    pub fn domain(&self) -> Result<Domain> {
        Ok(self.handle.bo.resource()?.domain)
    }

    /// Where it begins in its domain now.
    ///
    /// # Errors
    ///
    /// ENODEV when it was revoked.
    pub fn offset(&self) -> Result<u64> {
        Ok(self.handle.bo.resource()?.offset)
    }

    /// The dma-buf of this buffer: made at the first call, and the same one afterwards.
    ///
    /// # Errors
    ///
    /// ENODEV when it was revoked; ENOMEM when the kernel has no file or memory left.
    #[doc(alias = "drm_gem_prime_export")]
    pub fn export(&self) -> Result<DmaBuf> {
        let bo = &self.handle.bo;
        bo.device.check_present()?;
        let mut exported = self.handle.exported.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(buf) = &*exported {
            return Ok(buf.clone());
        }
        let buf = self.new_window(0, bo.size, bo.name())?;
        *exported = Some(buf.clone());
        Ok(buf)
    }

    /// A dma-buf of `len` bytes at `offset`, both whole pages: a new one at each call. It shares the buffer's reservation
    /// lock, follows its moves, and keeps its memory when the program has dropped the buffer.
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
    /// EINVAL for what is not whole pages of the buffer; ENODEV when it was revoked; ENOMEM when the kernel has no file
    /// or memory left.
    #[doc(alias = "cuMemGetHandleForAddressRange")]
    pub fn export_range(&self, offset: u64, len: u64) -> Result<DmaBuf> {
        let bo = &self.handle.bo;
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
        self.new_window(offset, len, name_of_window(&bo.name(), offset))
    }

    fn new_window(&self, offset: u64, len: u64, name: String) -> Result<DmaBuf> {
        let bo = &self.handle.bo;
        let resource = bo.resource()?;
        let none = |error: String| no_memory(format!("{name} cannot be exported: {error}"));
        if bo.gate.get().is_none() {
            let gate = Gate::new(&bo.name()).map_err(|error| none(error.to_string()))?;
            let _ = bo.gate.set(gate);
        }
        let exporter = Arc::new(Window::new(Arc::clone(bo), offset, len));
        let buf = DmaBuf::export_with(exporter, len, &name, bo.resv.clone())
            .map_err(|error| none(error.to_string()))?;
        bo.exported.lock().unwrap_or_else(PoisonError::into_inner).push(buf.downgrade());
        bo.note_exporter(&resource);
        Ok(buf)
    }

    /// Copies out `out.len()` bytes at `offset`, after what writes them is done. Not with the reservation lock held.
    ///
    /// # Errors
    ///
    /// EINVAL when the range leaves the buffer, ENODEV when it was revoked.
    pub fn read(&self, offset: u64, out: &mut [u8]) -> Result<()> {
        let bo = &self.handle.bo;
        self.check(offset, out.len())?;
        let _resv = bo.resv.lock();
        bo.wait(Usage::Write);
        let resource = bo.resource()?;
        resource.read(offset, out).map_err(|fault| invalid(fault.to_string()))?;
        resource.touch();
        self.count(out.len());
        Ok(())
    }

    /// Copies in `bytes` at `offset`, after all who use them are done. Not with the reservation lock held.
    ///
    /// # Errors
    ///
    /// As [`read`](Self::read).
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        let bo = &self.handle.bo;
        self.check(offset, bytes.len())?;
        let _resv = bo.resv.lock();
        bo.wait(Usage::Read);
        let resource = bo.resource()?;
        resource.write(offset, bytes).map_err(|fault| invalid(fault.to_string()))?;
        resource.touch();
        self.count(bytes.len());
        Ok(())
    }

    /// Brings the buffer to where the CPU reaches it, and keeps it there: for a program that maps it. Not with the
    /// reservation lock held.
    ///
    /// # Errors
    ///
    /// EINVAL when nobody may map this GPU's memory, EAGAIN at the limit on pinned VRAM, ENODEV when it was revoked.
    #[doc(alias = "drm_gem_mmap")]
    pub fn cpu_pages(&self) -> Result<CpuPages> {
        CpuPages::of(self.inner())
    }

    /// `len` bytes at `offset`, for a [peer memory client](dmabuf::peer::PeerClient) that has given them an address: what its
    /// `acquire` returns. Devices get whole pages of `page` bytes, so the address must be as far into such a page as
    /// the offset is. The buffer is pinned where it is while it is registered. It is taken back by a reset, a
    /// removal, [`revoke_peers`](Self::revoke_peers), and with the last handle of the buffer.
    ///
    /// # Errors
    ///
    /// EINVAL when these pages are not all inside the buffer.
    pub fn peer_memory(&self, offset: u64, len: u64, page: u64) -> Result<Box<dyn PeerMemory>> {
        Ok(Box::new(Claimed::new(self.inner(), offset, len, page)?))
    }

    /// The program freed `len` bytes at `offset`: registrations by address that touch them are dead when this returns.
    /// Those of its dma-bufs live on. Returns how many there were.
    pub fn revoke_peers(&self, offset: u64, len: u64) -> usize {
        let count = self.inner().revoke_peers(offset, len);
        if count > 0 {
            let name = self.name();
            tracing::info!(target: "peerdma::peer-memory", "{name}: freed under {count} registrations by address");
        }
        count
    }

    /// A fence for the moves that are under way.
    pub fn moving(&self) -> Fence {
        self.handle.bo.resv.singleton(Usage::Kernel)
    }

    fn check(&self, offset: u64, len: usize) -> Result<()> {
        self.handle.bo.device.check_present()?;
        let size = self.size();
        if offset.checked_add(len as u64).is_none_or(|end| end > size) {
            return Err(invalid(format!(
                "{len:#x} bytes at {offset:#x} are not all inside {} of {size:#x} bytes",
                self.name()
            )));
        }
        Ok(())
    }

    fn count(&self, len: usize) {
        let bo = &self.handle.bo;
        let stats = &bo.device.stats;
        let in_bar = bo.resource().is_ok_and(|resource| bo.is_in_reach(&resource));
        Counters::add(if in_bar { &stats.bar_bytes } else { &stats.copied_bytes }, len as u64);
    }
}

impl CpuPages {
    pub(crate) fn of(bo: &Arc<BoInner>) -> Result<Self> {
        let resource = bo.pin_for_cpu(&bo.resv.lock())?;
        let file = Arc::clone(bo.device.pools.file(resource.domain));
        Ok(Self { bo: Arc::clone(bo), file, offset: resource.offset })
    }

    /// The file to map.
    pub fn file(&self) -> &Arc<OwnedFd> {
        &self.file
    }

    /// Where in the file the buffer begins.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// How long the buffer is.
    pub fn len(&self) -> u64 {
        self.bo.size
    }

    /// Never: a buffer has at least one page.
    pub fn is_empty(&self) -> bool {
        false
    }
}

impl Drop for CpuPages {
    fn drop(&mut self) {
        self.bo.unpin(true);
    }
}

impl fmt::Debug for Bo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("Bo");
        debug.field("name", &self.name()).field("size", &self.size());
        debug.field("domain", &self.domain().ok()).finish()
    }
}

impl fmt::Debug for CpuPages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("CpuPages");
        debug.field("bo", &self.bo.name()).field("offset", &self.offset).finish_non_exhaustive()
    }
}
