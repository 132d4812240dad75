//! How a library of names (`libpeerdma-cuda.so`, `libpeerdma-hsa.so`, `libpeerdma-ze.so`) finds
//! `libpeerdma.so`, where everything behind the names is.
//!
//! Loading such a library does not load `libpeerdma.so`: the first call does. If the program has it
//! already, under any name, that one is used, so that there is one GPU in a process; otherwise the
//! one next to the library of names.
#![allow(unsafe_code, reason = "it asks the dynamic linker")]

mod entry;

use core::ffi::{CStr, c_void};

/// The library as programs find it next to a library of names, and as it is installed.
const NAMES: [&[u8]; 2] = [b"libibverbs.so.1\0", b"libpeerdma.so\0"];

/// A function of `libpeerdma.so`; null if there is none. `own` is an address of the library of
/// names.
pub fn find(own: *const c_void, name: &CStr) -> *mut c_void {
    // SAFETY: the name is terminated.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    if found.is_null() { beside(own, name) } else { found }
}

/// From the library in the directory where this one was found.
fn beside(own: *const c_void, name: &CStr) -> *mut c_void {
    let mut info = libc::Dl_info {
        dli_fname: core::ptr::null(),
        dli_fbase: core::ptr::null_mut(),
        dli_sname: core::ptr::null(),
        dli_saddr: core::ptr::null_mut(),
    };
    // SAFETY: an address, and a structure to fill.
    let known = unsafe { libc::dladdr(own, &raw mut info) };
    if known == 0 || info.dli_fname.is_null() {
        return core::ptr::null_mut();
    }
    // SAFETY: not null, and terminated, as dladdr says.
    let own = unsafe { CStr::from_ptr(info.dli_fname) }.to_bytes();
    let directory = own.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
    for file in NAMES {
        let mut path = [0_u8; libc::PATH_MAX as usize];
        let Some((front, rest)) = path.split_at_mut_checked(directory) else { continue };
        let Some(rest) = rest.get_mut(..file.len()) else { continue };
        front.copy_from_slice(&own[..directory]);
        rest.copy_from_slice(file);
        // SAFETY: the path is terminated, as each name is.
        let library =
            unsafe { libc::dlopen(path.as_ptr().cast(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if library.is_null() {
            continue;
        }
        // SAFETY: a library that is loaded and stays so, and a terminated name.
        let found = unsafe { libc::dlsym(library, name.as_ptr()) };
        if !found.is_null() {
            return found;
        }
    }
    core::ptr::null_mut()
}
