//! The thread's errno.

use std::ffi::c_int;

/// The kernel's internal error number for an unsupported operation (`ENOTSUPP`): no C library has
/// a name for it.
pub(crate) const ENOTSUPP: c_int = 524;

/// Sets the thread's errno.
pub(crate) fn set(errno: c_int) {
    // SAFETY: the C library gives each thread an errno that lives as long as the thread does.
    let place = unsafe { libc::__errno_location() };
    // SAFETY: `place` is valid and only this thread uses it.
    unsafe { place.write(errno) };
}
