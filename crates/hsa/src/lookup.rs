//! The function behind each name, for the library of names.

use std::ffi::{CStr, c_char, c_void};

use crate::api;
use crate::boundary::LOG;
use crate::status::Status;

/// The table that `libpeerdma-hsa.so` calls. Both come from the same build, so it has no version.
#[repr(C)]
pub struct Lookup {
    find: unsafe extern "C" fn(*const c_char) -> *const c_void,
    refused: unsafe extern "C" fn(*const c_char) -> i64,
}

static LOOKUP: Lookup = Lookup { find, refused };

/// The table of functions behind the names.
pub fn lookup() -> *const Lookup {
    &raw const LOOKUP
}

unsafe extern "C" fn find(name: *const c_char) -> *const c_void {
    // SAFETY: contract: a NUL-terminated name.
    let Ok(name) = unsafe { CStr::from_ptr(name) }.to_str() else { return std::ptr::null() };
    api::find(name).map_or(std::ptr::null(), |function| function.0.cast())
}

/// 64 bits, since some of the functions return that many.
unsafe extern "C" fn refused(name: *const c_char) -> i64 {
    // SAFETY: contract: a NUL-terminated, static name.
    let name: &'static CStr = unsafe { CStr::from_ptr(name) };
    if umd::boundary::is_first(name) {
        let text = name.to_string_lossy();
        let why = if api::computes(&text) {
            "not served: the software GPU has memory and no cores (docs/HSA.md)"
        } else {
            "not served (docs/HSA.md)"
        };
        tracing::warn!(target: LOG, "{text}: {why}");
    }
    i64::from(Status::ERROR.0)
}
