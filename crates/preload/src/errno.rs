//! The thread's errno.

#![allow(unsafe_code, reason = "libc has it behind a pointer")]

use core::ffi::c_int;

pub(crate) fn get() -> c_int {
    // SAFETY: __errno_location gives the thread's errno, always valid.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    unsafe { *errno }
}

pub(crate) fn set(value: c_int) {
    // SAFETY: __errno_location gives the thread's errno, always valid.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: as above.
    unsafe { *errno = value };
}
