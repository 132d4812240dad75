//! Registration of memory by its address.

#![allow(unsafe_code, reason = "the caller answers for the memory")]

use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;

use umem::Umem;

use crate::arm::{Arm, refused};
use crate::{Access, Mr, Pd, Result};

/// What keeps the memory of a region.
pub(crate) type Owner = Arc<dyn Any + Send + Sync>;

impl Pd {
    /// Registers `length` bytes at `addr`, memory of the program. Its addresses are those that it
    /// has in this process, or count from zero with [`Access::ZERO_BASED`].
    ///
    /// # Safety
    ///
    /// Until the last clone of the region and the last request on it are gone, the NIC, and with it
    /// a peer that has the key, reads and writes the memory as `access` says. Until then it stays
    /// mapped, and nothing in this process takes it for memory that does not change.
    ///
    /// # Errors
    ///
    /// The device's refusal.
    #[doc(alias = "ibv_reg_mr")]
    pub unsafe fn reg_raw_mr(
        &self,
        addr: NonNull<u8>,
        length: usize,
        access: Access,
    ) -> Result<Mr> {
        // SAFETY: the caller's promise; nobody else has to keep the memory.
        unsafe { self.reg_owned_mr(addr, length, access, Arc::new(())) }
    }

    /// The same for memory of an owner, which the region holds until the NIC has let go of it.
    ///
    /// # Safety
    ///
    /// As [`Pd::reg_raw_mr`], but that the owner keeps the memory mapped.
    pub(crate) unsafe fn reg_owned_mr(
        &self,
        addr: NonNull<u8>,
        length: usize,
        access: Access,
        owner: Owner,
    ) -> Result<Mr> {
        match self.arm() {
            Arm::Soft(on) => {
                let start = addr.addr().get();
                // SAFETY: the caller's promise.
                let memory = unsafe { Umem::user(start, length as u64) };
                let info = on.alive()?.reg_mr(on.id, memory, start as u64, access)?;
                let iova = if access.contains(Access::ZERO_BASED) { 0 } else { start as u64 };
                Ok(Mr::soft_owned(self, on, &info, iova, length as u64, owner))
            }
            Arm::Hard(hard) => {
                // SAFETY: the caller's promise.
                let mr = unsafe { hard.reg_owned(addr, length, access, owner) };
                Ok(Mr::hard(self, mr.map_err(refused)?))
            }
        }
    }
}
