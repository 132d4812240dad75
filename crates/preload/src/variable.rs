//! Variables, without an allocation or a lock: they are read inside functions of libc.

#![expect(unsafe_code, reason = "a call of C")]

use core::ffi::{CStr, c_char};

unsafe extern "C" {
    // The `libc` crate does not have it.
    fn secure_getenv(name: *const c_char) -> *const c_char;
}

/// The value of a variable; `None` in a program with more rights than its user (`AT_SECURE`), since
/// that user must not be trusted there.
pub(crate) fn variable(name: &CStr) -> Option<&'static [u8]> {
    // SAFETY: it reads a terminated name; the environment is not changed by this library.
    let value = unsafe { secure_getenv(name.as_ptr()) };
    if value.is_null() {
        return None;
    }
    // SAFETY: it gives a terminated string, which stays as long as the environment is not changed.
    Some(unsafe { CStr::from_ptr(value) }.to_bytes())
}
