//! Device memory.

use std::os::fd::{FromRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use verbs_abi::dm::{AllocDmAttr, Dm as CDm};

use crate::context::{Context, later_op};
use crate::error::{Error, Result, check};

/// Device memory. Clones are the same memory.
#[derive(Clone, Debug)]
#[doc(alias = "ibv_dm")]
pub struct Dm(Arc<Block>);

#[derive(Debug)]
struct Block {
    raw: NonNull<CDm>,
    length: u64,
    context: Context,
}

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for Block {}
// SAFETY: as above.
unsafe impl Sync for Block {}

impl Drop for Block {
    fn drop(&mut self) {
        if let Some(free) = later_op!(self.context, free_dm) {
            // SAFETY: every region on it holds it, so none is left.
            unsafe { free(self.raw.as_ptr()) };
        }
    }
}

impl Context {
    /// Allocates device memory.
    ///
    /// # Errors
    ///
    /// The library's; EOPNOTSUPP if the provider has no device memory.
    #[doc(alias = "ibv_alloc_dm")]
    pub fn alloc_dm(&self, length: u64) -> Result<Dm> {
        const CALL: &str = "ibv_alloc_dm";
        let alloc = later_op!(self, alloc_dm).ok_or(Error::absent(CALL))?;
        let size = usize::try_from(length).map_err(|_| Error::new(CALL, libc::EINVAL))?;
        let mut attr = AllocDmAttr { length: size, log_align_req: 0, comp_mask: 0 };
        // SAFETY: the context is open, and the structure is valid.
        let raw = unsafe { alloc(self.raw(), &raw mut attr) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last(CALL))?;
        Ok(Dm(Arc::new(Block { raw, length, context: self.clone() })))
    }
}

impl Dm {
    pub(crate) fn raw(&self) -> *mut CDm {
        self.0.raw.as_ptr()
    }

    /// The device it is of.
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    /// Its length in bytes.
    pub fn len(&self) -> u64 {
        self.0.length
    }

    /// Whether it has no byte.
    pub fn is_empty(&self) -> bool {
        self.0.length == 0
    }

    /// Copies `bytes` in at `offset`.
    ///
    /// # Errors
    ///
    /// EINVAL beyond its end, or the library's.
    #[doc(alias = "ibv_memcpy_to_dm")]
    pub fn write(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        const CALL: &str = "ibv_memcpy_to_dm";
        self.within(CALL, offset, bytes.len())?;
        // SAFETY: the memory exists.
        let copy = unsafe { (*self.raw()).memcpy_to_dm }.ok_or(Error::absent(CALL))?;
        // SAFETY: the range lies within, and the bytes are borrowed.
        check(CALL, unsafe { copy(self.raw(), offset, bytes.as_ptr().cast(), bytes.len()) })
    }

    /// Copies bytes at `offset` out.
    ///
    /// # Errors
    ///
    /// As [`write`](Self::write).
    #[doc(alias = "ibv_memcpy_from_dm")]
    pub fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        const CALL: &str = "ibv_memcpy_from_dm";
        self.within(CALL, offset, bytes.len())?;
        // SAFETY: the memory exists.
        let copy = unsafe { (*self.raw()).memcpy_from_dm }.ok_or(Error::absent(CALL))?;
        // SAFETY: the range lies within, and the bytes are borrowed for writing.
        check(CALL, unsafe { copy(bytes.as_mut_ptr().cast(), self.raw(), offset, bytes.len()) })
    }

    /// A dma-buf of it, which any importer can take.
    ///
    /// # Errors
    ///
    /// EOPNOTSUPP if the library does not export it; otherwise the library's.
    #[doc(alias = "ibv_dm_export_dmabuf_fd")]
    pub fn export(&self) -> Result<OwnedFd> {
        const CALL: &str = "ibv_dm_export_dmabuf_fd";
        let export = self.0.context.functions().ibv_dm_export_dmabuf_fd;
        // SAFETY: the memory exists.
        let fd = unsafe { export.ok_or(Error::absent(CALL))?(self.raw()) };
        if fd < 0 {
            return Err(Error::last(CALL));
        }
        // SAFETY: the library opened it for the caller.
        Ok(unsafe { OwnedFd::from_raw_fd(fd) })
    }

    fn within(&self, call: &'static str, offset: u64, length: usize) -> Result<()> {
        let end = offset.checked_add(length as u64);
        match end {
            Some(end) if end <= self.0.length => Ok(()),
            _ => Err(Error::new(call, libc::EINVAL)),
        }
    }
}
