//! What requests have in common: their numbers, and how structures are copied in and out.

use std::ffi::{c_int, c_void};

use crate::args::Uapi;
use crate::{Result, no};

/// The type letter of the requests of VFIO and of iommufd.
#[doc(alias = "VFIO_TYPE")]
pub(super) const LETTER: u8 = b';';
/// The number of the first VFIO request.
#[doc(alias = "VFIO_BASE")]
pub(super) const BASE: u8 = 100;

/// A structure with an `argsz` must be at least as long as needed.
pub(super) fn check(argsz: u32, least: usize) -> Result<()> {
    if (argsz as usize) < least {
        return Err(refuse(libc::EINVAL, format_args!("argsz is {argsz} and must be {least}")));
    }
    Ok(())
}

pub(super) fn refuse(errno: c_int, why: std::fmt::Arguments<'_>) -> c_int {
    no("vfio-pci", errno, why)
}

/// Copies in what the program passes.
///
/// # Safety
///
/// `place` is null or points to such a structure.
pub(super) unsafe fn take<T: Uapi>(place: *mut c_void) -> Result<T> {
    if place.is_null() {
        return Err(libc::EFAULT);
    }
    // SAFETY: the caller's promise; every bit pattern is valid.
    Ok(unsafe { place.cast::<T>().read_unaligned() })
}

/// Copies out what the program gets back.
///
/// # Safety
///
/// `place` points to such a structure.
pub(super) unsafe fn put<T: Uapi>(place: *mut c_void, value: &T) {
    // SAFETY: the caller's promise.
    unsafe { place.cast::<T>().write_unaligned(*value) };
}
