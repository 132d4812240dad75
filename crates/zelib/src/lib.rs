//! `libpeerdma-ze.so`: what the loader of Level Zero loads as a driver, by name.
//!
//! A driver exports one function for each table of functions, and nothing else. Here each leads to
//! `libpeerdma.so`, where the GPU is (crate `levelzero`), and which has the tables. It is a library
//! of its own for the same reason as `libpeerdma-cuda.so`: a verbs program must not have a driver
//! of a GPU in its `libibverbs.so.1`.
//!
//! Nothing runs when it is loaded, and loading it does not load `libpeerdma.so`.
#![allow(unsafe_code, reason = "this is a table of C functions")]

use core::ffi::{CStr, c_char, c_int, c_void};

/// The side of `libpeerdma.so`, with the layout of its `Ddi`. Both come from the same build, so it
/// has no version.
#[repr(C)]
struct Ddi {
    /// Fills the table of this name, as this version has it.
    fill: unsafe extern "C" fn(name: *const c_char, version: u32, table: *mut c_void) -> c_int,
}

/// The name of the function that returns the [`Ddi`].
const DDI_NAME: &CStr = c"peerdma_level_zero_ddi";

/// `ZE_RESULT_ERROR_UNINITIALIZED`: a library without a driver behind it.
const UNINITIALIZED: c_int = 0x7800_0001;

fn fill(name: &CStr, version: u32, table: *mut c_void) -> c_int {
    // An address of this library.
    let found = stubs::find(fill as *const c_void, DDI_NAME);
    if found.is_null() {
        return UNINITIALIZED;
    }
    // SAFETY: this is the function's signature, in the library of the same build.
    let find: extern "C" fn() -> *const Ddi = unsafe { core::mem::transmute(found) };
    // SAFETY: null, or a table that is static in a library that is never unloaded.
    let Some(ddi) = (unsafe { find().as_ref() }) else { return UNINITIALIZED };
    // SAFETY: a terminated name, and the loader's table of that version.
    unsafe { (ddi.fill)(name.as_ptr(), version, table) }
}

/// One function that fills a table.
macro_rules! table {
    ($name:ident, $text:literal) => {
        #[unsafe(no_mangle)]
        #[allow(non_snake_case, reason = "names of C")]
        extern "C" fn $name(version: u32, table: *mut c_void) -> c_int {
            fill($text, version, table)
        }
    };
}

include!(concat!(env!("OUT_DIR"), "/tables.rs"));
