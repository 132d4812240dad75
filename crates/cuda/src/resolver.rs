//! The function behind each name, for the library of names.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::slice;

use crate::boundary::LOG;
use crate::runtime::{self, Library};
use crate::{driver, exported, nvml};

/// The table that `libpeerdma-cuda.so` calls. Both come from the same build, so it has no version.
#[repr(C)]
pub struct Resolver {
    driver: unsafe extern "C" fn(*const *const c_char, *const *const c_void, usize),
    find: unsafe extern "C" fn(c_int, *const c_char) -> *const c_void,
    refused: unsafe extern "C" fn(c_int, *const c_char) -> c_int,
}

static RESOLVER: Resolver = Resolver { driver: take_driver, find, refused };

/// The numbers of the libraries.
const DRIVER: c_int = 0;
const NVML: c_int = 1;
const RUNTIME_12: c_int = 12;
const RUNTIME_13: c_int = 13;

/// The table of functions behind the names of CUDA's libraries.
pub fn resolver() -> *const Resolver {
    &raw const RESOLVER
}

unsafe extern "C" fn take_driver(
    names: *const *const c_char,
    functions: *const *const c_void,
    count: usize,
) {
    // SAFETY: contract: as many names as functions, which live as long as the program.
    let names = unsafe { slice::from_raw_parts(names, count) };
    // SAFETY: as above.
    let functions = unsafe { slice::from_raw_parts(functions, count) };
    let pairs = names.iter().zip(functions).filter_map(|(name, function)| {
        // SAFETY: contract: NUL-terminated, and static.
        let name: &'static CStr = unsafe { CStr::from_ptr(*name) };
        Some((name.to_str().ok()?, function.expose_provenance()))
    });
    exported::learn(pairs);
}

unsafe extern "C" fn find(library: c_int, name: *const c_char) -> *const c_void {
    // SAFETY: contract: a NUL-terminated name.
    let Ok(name) = unsafe { CStr::from_ptr(name) }.to_str() else { return std::ptr::null() };
    let found = match library {
        DRIVER => driver::find(name),
        NVML => nvml::find(name),
        RUNTIME_12 => runtime::find(Library::Twelve, name),
        RUNTIME_13 => runtime::find(Library::Thirteen, name),
        _ => None,
    };
    found.map_or(std::ptr::null(), |function| function.0.cast())
}

unsafe extern "C" fn refused(library: c_int, name: *const c_char) -> c_int {
    // SAFETY: contract: a NUL-terminated, static name.
    let name: &'static CStr = unsafe { CStr::from_ptr(name) };
    if umd::boundary::is_first(name) {
        tracing::warn!(target: LOG, "{}: not served (docs/CUDA.md)", name.to_string_lossy());
    }
    match library {
        // NVML_ERROR_NOT_SUPPORTED, CUDA_ERROR_NOT_SUPPORTED, cudaErrorNotSupported.
        NVML => 3,
        _ => 801,
    }
}
