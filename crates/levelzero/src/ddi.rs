//! The functions behind the names, for the library of names.

use std::ffi::{CStr, c_char, c_int, c_void};

use crate::boundary::LOG;
use crate::status::Status;
use crate::tables;

/// The table that `libpeerdma-ze.so` calls. Both come from the same build, so it has no version.
#[repr(C)]
pub struct Ddi {
    /// Fills the table of this name in this version.
    fill: unsafe extern "C" fn(*const c_char, u32, *mut *const c_void) -> c_int,
}

static DDI: Ddi = Ddi { fill };

/// The table of functions behind the names.
pub fn ddi() -> *const Ddi {
    &raw const DDI
}

unsafe extern "C" fn fill(name: *const c_char, version: u32, table: *mut *const c_void) -> c_int {
    if table.is_null() {
        return Status::InvalidNullPointer as c_int;
    }
    // SAFETY: contract: a NUL-terminated name.
    let name = unsafe { CStr::from_ptr(name) }.to_string_lossy();
    match tables::table(&name, version) {
        Ok(functions) => {
            // SAFETY: contract: a table of that version, and it has so many entries.
            unsafe { std::ptr::copy_nonoverlapping(functions.as_ptr(), table, functions.len()) };
            0
        }
        Err(status) => {
            let (major, minor) = (version >> 16, version & 0xffff);
            tracing::warn!(target: LOG, "{name}: the loader asks for version {major}.{minor}");
            status as c_int
        }
    }
}
