//! libc's functions of the working directory.

#![allow(unsafe_code, reason = "every function here stands for one of libc's")]

use core::ffi::{c_char, c_int};
use core::ptr;

use libc::size_t;

use crate::cwd;
use crate::errno;
use crate::next::next;
use crate::redirect::{Room, redirect};

/// # Safety
///
/// As for libc's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn chdir(path: *const c_char) -> c_int {
    let next = next!(c"chdir": fn(*const c_char) -> c_int = -1);
    // SAFETY: each path that it gets is the caller's or a terminated one of ours.
    let next = |path| unsafe { next(path) };
    if path.is_null() {
        return next(path);
    }
    let mut room = Room::new();
    // SAFETY: the caller's path is a string, as libc asks.
    let path = unsafe { redirect(path, &mut room) };
    // SAFETY: as above, or a terminated one in `room`.
    unsafe { cwd::change(path, next) }
}

/// # Safety
///
/// As for libc's function of this name: `out` is null or has `size` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn getcwd(out: *mut c_char, size: size_t) -> *mut c_char {
    // SAFETY: the caller's promise.
    if let Some(given) = unsafe { give_shown(out, size) } {
        return given;
    }
    let next = next!(c"getcwd": fn(*mut c_char, size_t) -> *mut c_char = ptr::null_mut());
    // SAFETY: the arguments are the caller's.
    unsafe { next(out, size) }
}

/// `getcwd` with `_FORTIFY_SOURCE`.
///
/// # Safety
///
/// As for libc's function of this name: `out` is null or has `room` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn __getcwd_chk(out: *mut c_char, size: size_t, room: size_t) -> *mut c_char {
    // libc ends a program that says there is more room than there is.
    if size <= room {
        // SAFETY: the caller's promise.
        if let Some(given) = unsafe { give_shown(out, size) } {
            return given;
        }
    }
    let next =
        next!(c"__getcwd_chk": fn(*mut c_char, size_t, size_t) -> *mut c_char = ptr::null_mut());
    // SAFETY: the arguments are the caller's.
    unsafe { next(out, size, room) }
}

/// # Safety
///
/// As for libc's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn get_current_dir_name() -> *mut c_char {
    // SAFETY: there is no buffer.
    if let Some(given) = unsafe { give_shown(ptr::null_mut(), 0) } {
        return given;
    }
    let next = next!(c"get_current_dir_name": fn() -> *mut c_char = ptr::null_mut());
    // SAFETY: it has no arguments.
    unsafe { next() }
}

/// If the working directory is in the tree, what `getcwd` returns then (`getcwd(3)`): without a
/// buffer, memory of `malloc`.
///
/// # Safety
///
/// `out` is null or has `size` bytes.
unsafe fn give_shown(out: *mut c_char, size: size_t) -> Option<*mut c_char> {
    let mut room = Room::new();
    let before = errno::get();
    let name = cwd::shown(&mut room);
    errno::set(before);
    let name = name?.to_bytes_with_nul();
    let is_ours = out.is_null();
    if size == 0 && !is_ours {
        return Some(failed(libc::EINVAL));
    }
    if size > 0 && size < name.len() {
        return Some(failed(libc::ERANGE));
    }
    let out = if is_ours {
        // SAFETY: it only makes memory; without any it sets errno.
        unsafe { libc::malloc(size.max(name.len())) }.cast::<c_char>()
    } else {
        out
    };
    if !out.is_null() {
        // SAFETY: `out` has room for the name, and is not `room`.
        unsafe { ptr::copy_nonoverlapping(name.as_ptr().cast(), out, name.len()) };
    }
    Some(out)
}

fn failed(why: c_int) -> *mut c_char {
    errno::set(why);
    ptr::null_mut()
}
