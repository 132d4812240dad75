//! What requests have in common: their numbers, and how structures come and go.

use std::ffi::{c_int, c_void};

use crate::args::Uapi;
use crate::{Result, no};

/// The letter of VFIO's requests and of iommufd's.
#[doc(alias = "VFIO_TYPE")]
pub(super) const LETTER: u8 = b';';
/// The number of VFIO's first request.
#[doc(alias = "VFIO_BASE")]
pub(super) const BASE: u8 = 100;

/// A structure that says how long it is must be as long as needed.
pub(super) fn check(argsz: u32, least: usize) -> Result<()> {
    if (argsz as usize) < least {
        return Err(refuse(libc::EINVAL, format_args!("argsz is {argsz} and must be {least}")));
    }
    Ok(())
}

pub(super) fn refuse(errno: c_int, why: std::fmt::Arguments<'_>) -> c_int {
    no("vfio-pci", errno, why)
}

/// What the program passes.
///
/// # Safety
///
/// `place` is null or such a structure.
pub(super) unsafe fn take<T: Uapi>(place: *mut c_void) -> Result<T> {
    if place.is_null() {
        return Err(libc::EFAULT);
    }
    // SAFETY: the caller's promise; every pattern of bits is one.
    Ok(unsafe { place.cast::<T>().read_unaligned() })
}

/// What it gets back.
///
/// # Safety
///
/// `place` is such a structure.
pub(super) unsafe fn put<T: Uapi>(place: *mut c_void, value: &T) {
    // SAFETY: the caller's promise.
    unsafe { place.cast::<T>().write_unaligned(*value) };
}
