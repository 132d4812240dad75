//! Memory regions.

use std::any::Any;
use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use iba::{Access, LKey, RKey};
use umem::HostBuf;
use verbs_abi::mr::Mr as CMr;

use crate::context::later_op;
use crate::dm::Dm;
use crate::error::{Error, Result};
use crate::pd::Pd;

/// A memory region. Clones are the same one.
#[derive(Clone, Debug)]
#[doc(alias = "ibv_mr")]
pub struct Mr(Arc<Region>);

#[derive(Debug)]
struct Region {
    raw: NonNull<CMr>,
    lkey: LKey,
    rkey: RKey,
    iova: u64,
    length: u64,
    memory: ManuallyDrop<Memory>,
    pd: Pd,
}

/// What the region is on.
#[derive(Debug)]
enum Memory {
    Host(#[expect(dead_code, reason = "held until the NIC has let go of it")] HostBuf),
    Dm(#[expect(dead_code, reason = "held likewise")] Dm),
    Owner(#[expect(dead_code, reason = "held likewise")] Arc<dyn Any + Send + Sync>),
    /// A dma-buf, which the kernel holds, or memory that the caller answers for.
    Elsewhere,
}

// SAFETY: libibverbs may be called from any thread, and the keys do not change.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Drop for Region {
    fn drop(&mut self) {
        let dereg = self.pd.context().functions().ibv_dereg_mr;
        // SAFETY: the region is registered, and its windows hold it, so none is left.
        if unsafe { dereg(self.raw.as_ptr()) } == 0 {
            // SAFETY: it is dropped here and nowhere else.
            unsafe { ManuallyDrop::drop(&mut self.memory) };
        }
        // Otherwise the NIC may still reach the memory, which is never given back.
    }
}

impl Pd {
    /// Registers a buffer. Its addresses are those that it has in this process, or count from zero.
    ///
    /// # Errors
    ///
    /// The library's.
    #[doc(alias = "ibv_reg_mr")]
    pub fn reg_mr(&self, buffer: &HostBuf, access: Access) -> Result<Mr> {
        let (addr, length) = (buffer.as_ptr(), buffer.len());
        let memory = Memory::Host(buffer.clone());
        // SAFETY: the buffer is mapped as long as the region holds it.
        unsafe { self.reg(addr.cast(), length, access, memory) }
    }

    /// Registers memory of the program. Its addresses are those that it has in this process, or
    /// count from zero.
    ///
    /// # Safety
    ///
    /// The NIC, and with it a peer, reads and writes the memory as `access` says until the last
    /// clone of the region is gone. Until then it stays mapped, and nothing in this process takes
    /// it for memory that does not change.
    ///
    /// # Errors
    ///
    /// The library's.
    #[doc(alias = "ibv_reg_mr")]
    pub unsafe fn reg_raw(&self, addr: NonNull<u8>, length: usize, access: Access) -> Result<Mr> {
        // SAFETY: the caller's promise.
        unsafe { self.reg(addr.as_ptr().cast(), length, access, Memory::Elsewhere) }
    }

    /// The same for memory that `owner` keeps mapped, which the region holds until the NIC has let
    /// go of it.
    ///
    /// # Safety
    ///
    /// As [`Pd::reg_raw`], but that the owner keeps the memory mapped.
    ///
    /// # Errors
    ///
    /// The library's.
    pub unsafe fn reg_owned(
        &self,
        addr: NonNull<u8>,
        length: usize,
        access: Access,
        owner: Arc<dyn Any + Send + Sync>,
    ) -> Result<Mr> {
        // SAFETY: the caller's promise.
        unsafe { self.reg(addr.as_ptr().cast(), length, access, Memory::Owner(owner)) }
    }

    /// The memory is mapped until the region is gone.
    unsafe fn reg(
        &self,
        addr: *mut c_void,
        length: usize,
        access: Access,
        memory: Memory,
    ) -> Result<Mr> {
        let functions = self.context().functions();
        let start = addr.addr() as u64;
        let iova = if access.contains(Access::ZERO_BASED) { 0 } else { start };
        let raw = match functions.ibv_reg_mr_iova2 {
            Some(reg) => {
                // SAFETY: the caller's promise.
                unsafe { reg(self.raw(), addr, length, start, access.bits()) }
            }
            None => {
                let bits = access.difference(Access::OPTIONAL_RANGE).bits().cast_signed();
                // SAFETY: the caller's promise.
                unsafe { (functions.ibv_reg_mr)(self.raw(), addr, length, bits) }
            }
        };
        self.region(raw, "ibv_reg_mr", iova, length as u64, memory)
    }

    /// Registers `length` bytes at `offset` of a dma-buf, at addresses from `iova` on.
    ///
    /// # Errors
    ///
    /// The library's; EOPNOTSUPP if it is older than rdma-core 34.
    #[doc(alias = "ibv_reg_dmabuf_mr")]
    pub fn reg_dmabuf_mr(
        &self,
        fd: BorrowedFd<'_>,
        offset: u64,
        length: u64,
        iova: u64,
        access: Access,
    ) -> Result<Mr> {
        const CALL: &str = "ibv_reg_dmabuf_mr";
        let reg = self.context().functions().ibv_reg_dmabuf_mr.ok_or(Error::absent(CALL))?;
        let size = usize::try_from(length).map_err(|_| Error::new(CALL, libc::EINVAL))?;
        let bits = access.bits().cast_signed();
        // SAFETY: the domain exists; the library takes a reference to the buffer of its own.
        let raw = unsafe { reg(self.raw(), offset, size, iova, fd.as_raw_fd(), bits) };
        self.region(raw, CALL, iova, length, Memory::Elsewhere)
    }

    /// Registers `length` bytes at `offset` of device memory, at addresses that count from zero.
    ///
    /// # Errors
    ///
    /// The library's; EOPNOTSUPP if the provider has no device memory.
    #[doc(alias = "ibv_reg_dm_mr")]
    pub fn reg_dm_mr(&self, dm: &Dm, offset: u64, length: u64, access: Access) -> Result<Mr> {
        const CALL: &str = "ibv_reg_dm_mr";
        let reg = later_op!(self.context(), reg_dm_mr).ok_or(Error::absent(CALL))?;
        let size = usize::try_from(length).map_err(|_| Error::new(CALL, libc::EINVAL))?;
        let access = access | Access::ZERO_BASED;
        // SAFETY: both exist; the caller of this crate compared their devices.
        let raw = unsafe { reg(self.raw(), dm.raw(), offset, size, access.bits()) };
        self.region(raw, CALL, 0, length, Memory::Dm(dm.clone()))
    }

    fn region(
        &self,
        raw: *mut CMr,
        call: &'static str,
        iova: u64,
        length: u64,
        memory: Memory,
    ) -> Result<Mr> {
        let raw = NonNull::new(raw).ok_or_else(|| Error::last(call))?;
        // SAFETY: the library made it a moment ago.
        let lkey = unsafe { (*raw.as_ptr()).lkey };
        // SAFETY: as above.
        let rkey = unsafe { (*raw.as_ptr()).rkey };
        Ok(Mr(Arc::new(Region {
            raw,
            lkey: LKey(lkey),
            rkey: RKey(rkey),
            iova,
            length,
            memory: ManuallyDrop::new(memory),
            pd: self.clone(),
        })))
    }
}

impl Mr {
    pub(crate) fn raw(&self) -> *mut CMr {
        self.0.raw.as_ptr()
    }

    /// The domain it is in.
    pub fn pd(&self) -> &Pd {
        &self.0.pd
    }

    /// The key for work requests of this side.
    pub fn lkey(&self) -> LKey {
        self.0.lkey
    }

    /// The key by which peers name it.
    pub fn rkey(&self) -> RKey {
        self.0.rkey
    }

    /// The address of its first byte in work requests.
    pub fn iova(&self) -> u64 {
        self.0.iova
    }

    /// Its length in bytes.
    pub fn len(&self) -> u64 {
        self.0.length
    }

    /// Whether it has no byte.
    pub fn is_empty(&self) -> bool {
        self.0.length == 0
    }
}
