//! libc's functions that take a path, each in front of libc's own.
//!
//! `open` and similar functions are variadic in C: the mode is there only if a file is created.
//! Here they always take it. On both x86-64 and aarch64 Linux a variadic integer argument travels
//! in the register a named one would, so a caller that passes none leaves garbage there, and libc's
//! function also ignores it then.

#![allow(unsafe_code, reason = "every function here stands for one of libc's")]

use core::ffi::{c_char, c_int, c_uint, c_void};
use core::ptr;

use libc::{DIR, FILE, mode_t, size_t, ssize_t};

use crate::cwd;
use crate::drm;
use crate::next::next;
use crate::redirect::{Room, redirect, restore, uverbs};

/// Defines functions that redirect one path and pass everything on.
macro_rules! hooks {
    ($($(#[$note:meta])* fn $name:ident / $symbol:literal
        ($($before:ident: $before_type:ty,)* @$path:ident $(, $after:ident: $after_type:ty)*)
        -> $result:ty = $missing:expr $(, opens $flags:ident)? $(, shows $shown:ident in $out:ident)?;)*) => {$(
        $(#[$note])*
        ///
        /// # Safety
        ///
        /// As for libc's function of this name.
        #[unsafe(no_mangle)]
        unsafe extern "C" fn $name(
            $($before: $before_type,)* $path: *const c_char $(, $after: $after_type)*
        ) -> $result {
            // SAFETY: the caller's path is a string, as libc asks.
            let node = unsafe { drm::node($path) };
            $(if let Some(node) = node {
                return drm::open(node, $flags);
            })?
            let mut room = Room::new();
            let path = match node {
                // It has a node's kind and rights.
                Some(_) => c"/dev/null".as_ptr(),
                // SAFETY: the caller's path is a string, as libc asks.
                None => unsafe { redirect($path, &mut room) },
            };
            let next = next!(
                $symbol: fn($($before_type,)* *const c_char $(, $after_type)*) -> $result = $missing
            );
            // SAFETY: the arguments are the caller's except for the path, which is also a string
            // and outlives the call.
            let result = unsafe { next($($before,)* path $(, $after)*) };
            // SAFETY: the caller's path is a string, as libc asks.
            $(if result == 0 && let Some(device) = unsafe { device_of(node, $path) } {
                // SAFETY: the call succeeded, so this is the structure that it fills.
                unsafe { $shown(device, $out) };
            })?
            result
        }
    )*};
}

/// The number of the device that a path of ours names, if it names one.
///
/// # Safety
///
/// `path` is null or a terminated string.
unsafe fn device_of(node: Option<drm::Node>, path: *const c_char) -> Option<libc::dev_t> {
    // SAFETY: the caller's promise.
    node.map(drm::device).or_else(|| unsafe { uverbs(path) })
}

/// Replaces the attributes of the file that represents a device by those of the device.
///
/// # Safety
///
/// `out` is a `struct stat`.
pub(crate) unsafe fn show_stat(device: libc::dev_t, out: *mut c_void) {
    let out = out.cast::<libc::stat>();
    // SAFETY: the caller promises what it is.
    unsafe { (*out).st_rdev = device };
    // SAFETY: as above.
    unsafe { (*out).st_mode = libc::S_IFCHR | 0o666 };
}

/// As [`show_stat`].
///
/// # Safety
///
/// `out` is a `struct statx`.
unsafe fn show_statx(device: libc::dev_t, out: *mut c_void) {
    let out = out.cast::<libc::statx>();
    // SAFETY: the caller promises what it is.
    unsafe { (*out).stx_rdev_major = libc::major(device) };
    // SAFETY: as above.
    unsafe { (*out).stx_rdev_minor = libc::minor(device) };
    // SAFETY: as above. The kind of file is 16 bits of the same word.
    unsafe { (*out).stx_mode = (libc::S_IFCHR | 0o666) as u16 };
}

hooks! {
    /// See the module for its mode.
    fn open / c"open" (@path, flags: c_int, mode: mode_t) -> c_int = -1, opens flags;
    /// See the module for its mode.
    fn open64 / c"open64" (@path, flags: c_int, mode: mode_t) -> c_int = -1, opens flags;
    /// See the module for its mode.
    fn openat / c"openat" (dir: c_int, @path, flags: c_int, mode: mode_t) -> c_int = -1, opens flags;
    /// See the module for its mode.
    fn openat64 / c"openat64" (dir: c_int, @path, flags: c_int, mode: mode_t) -> c_int = -1, opens flags;
    /// `open` with `_FORTIFY_SOURCE`.
    fn __open_2 / c"__open_2" (@path, flags: c_int) -> c_int = -1, opens flags;
    /// `open64` with `_FORTIFY_SOURCE`.
    fn __open64_2 / c"__open64_2" (@path, flags: c_int) -> c_int = -1, opens flags;
    /// `openat` with `_FORTIFY_SOURCE`.
    fn __openat_2 / c"__openat_2" (dir: c_int, @path, flags: c_int) -> c_int = -1, opens flags;
    /// `openat64` with `_FORTIFY_SOURCE`.
    fn __openat64_2 / c"__openat64_2" (dir: c_int, @path, flags: c_int) -> c_int = -1, opens flags;
    /// Streams.
    fn fopen / c"fopen" (@path, mode: *const c_char) -> *mut FILE = ptr::null_mut();
    /// Streams.
    fn fopen64 / c"fopen64" (@path, mode: *const c_char) -> *mut FILE = ptr::null_mut();
    /// Directories.
    fn opendir / c"opendir" (@path) -> *mut DIR = ptr::null_mut();
    /// Directories; the two functions are called with entries, which have no path.
    fn scandir / c"scandir" (@path, list: *mut c_void, filter: *mut c_void, compare: *mut c_void)
        -> c_int = -1;
    /// Directories.
    fn scandir64 / c"scandir64"
        (@path, list: *mut c_void, filter: *mut c_void, compare: *mut c_void) -> c_int = -1;
    /// Attributes; as in all of these, the buffer is libc's business.
    fn stat / c"stat" (@path, out: *mut c_void) -> c_int = -1, shows show_stat in out;
    /// Attributes.
    fn stat64 / c"stat64" (@path, out: *mut c_void) -> c_int = -1, shows show_stat in out;
    /// Attributes.
    fn lstat / c"lstat" (@path, out: *mut c_void) -> c_int = -1, shows show_stat in out;
    /// Attributes.
    fn lstat64 / c"lstat64" (@path, out: *mut c_void) -> c_int = -1, shows show_stat in out;
    /// Attributes.
    fn fstatat / c"fstatat" (dir: c_int, @path, out: *mut c_void, flags: c_int) -> c_int = -1, shows show_stat in out;
    /// Attributes.
    fn fstatat64 / c"fstatat64" (dir: c_int, @path, out: *mut c_void, flags: c_int) -> c_int = -1, shows show_stat in out;
    /// Attributes.
    fn statx / c"statx" (dir: c_int, @path, flags: c_int, mask: c_uint, out: *mut c_void)
        -> c_int = -1, shows show_statx in out;
    /// `stat` of programs linked before glibc 2.33.
    fn __xstat / c"__xstat" (version: c_int, @path, out: *mut c_void) -> c_int = -1, shows show_stat in out;
    /// `stat64` of programs linked before glibc 2.33.
    fn __xstat64 / c"__xstat64" (version: c_int, @path, out: *mut c_void) -> c_int = -1, shows show_stat in out;
    /// `lstat` of programs linked before glibc 2.33.
    fn __lxstat / c"__lxstat" (version: c_int, @path, out: *mut c_void) -> c_int = -1, shows show_stat in out;
    /// `lstat64` of programs linked before glibc 2.33.
    fn __lxstat64 / c"__lxstat64" (version: c_int, @path, out: *mut c_void) -> c_int = -1, shows show_stat in out;
    /// `fstatat` of programs linked before glibc 2.33.
    fn __fxstatat / c"__fxstatat"
        (version: c_int, dir: c_int, @path, out: *mut c_void, flags: c_int) -> c_int = -1, shows show_stat in out;
    /// `fstatat64` of programs linked before glibc 2.33.
    fn __fxstatat64 / c"__fxstatat64"
        (version: c_int, dir: c_int, @path, out: *mut c_void, flags: c_int) -> c_int = -1, shows show_stat in out;
    /// Permission.
    fn access / c"access" (@path, mode: c_int) -> c_int = -1;
    /// Permission.
    fn faccessat / c"faccessat" (dir: c_int, @path, mode: c_int, flags: c_int) -> c_int = -1;
    /// Permission.
    fn euidaccess / c"euidaccess" (@path, mode: c_int) -> c_int = -1;
    /// Permission.
    fn eaccess / c"eaccess" (@path, mode: c_int) -> c_int = -1;
    /// Links; those of the tree are relative, and so right in either place.
    fn readlink / c"readlink" (@path, out: *mut c_char, size: size_t) -> ssize_t = -1;
    /// Links.
    fn readlinkat / c"readlinkat" (dir: c_int, @path, out: *mut c_char, size: size_t)
        -> ssize_t = -1;
    /// `readlink` with `_FORTIFY_SOURCE`.
    fn __readlink_chk / c"__readlink_chk"
        (@path, out: *mut c_char, size: size_t, room: size_t) -> ssize_t = -1;
    /// Extended attributes: `ls -l` asks for them.
    fn getxattr / c"getxattr" (@path, name: *const c_char, value: *mut c_void, size: size_t)
        -> ssize_t = -1;
    /// Extended attributes.
    fn lgetxattr / c"lgetxattr" (@path, name: *const c_char, value: *mut c_void, size: size_t)
        -> ssize_t = -1;
    /// Extended attributes.
    fn listxattr / c"listxattr" (@path, list: *mut c_char, size: size_t) -> ssize_t = -1;
    /// Extended attributes.
    fn llistxattr / c"llistxattr" (@path, list: *mut c_char, size: size_t) -> ssize_t = -1;
}

/// Resolves links. The result is a path of `/sys` again: NCCL and UCX parse it.
///
/// # Safety
///
/// As for libc's function of this name: `out` is null or has room for `PATH_MAX` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn realpath(path: *const c_char, out: *mut c_char) -> *mut c_char {
    let next = next!(c"realpath": fn(*const c_char, *mut c_char) -> *mut c_char = ptr::null_mut());
    // SAFETY: the path is a string again, and the buffer is the caller's.
    let next = |path| unsafe { next(path, out) };
    // SAFETY: the caller's path is a string; `next` is realpath, which returns its buffer or
    // allocates one.
    unsafe { resolve(path, out, next) }
}

/// `realpath` with `_FORTIFY_SOURCE`.
///
/// # Safety
///
/// As for libc's function of this name: `out` is null or has `room` bytes.
#[unsafe(no_mangle)]
unsafe extern "C" fn __realpath_chk(
    path: *const c_char,
    out: *mut c_char,
    room: size_t,
) -> *mut c_char {
    let next = next!(
        c"__realpath_chk": fn(*const c_char, *mut c_char, size_t) -> *mut c_char = ptr::null_mut()
    );
    // SAFETY: the path is a string again, and the buffer and its size are the caller's.
    let next = |path| unsafe { next(path, out, room) };
    // SAFETY: the caller's path is a string; `next` is realpath, which returns its buffer or
    // allocates one.
    unsafe { resolve(path, out, next) }
}

/// Resolves links into memory libc allocates.
///
/// # Safety
///
/// As for libc's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn canonicalize_file_name(path: *const c_char) -> *mut c_char {
    // SAFETY: the caller's path is a string; with no buffer, this is what realpath does.
    unsafe { realpath(path, ptr::null_mut()) }
}

/// Calls `next` with the redirected path, and returns a path of `/sys` if it was ours.
///
/// # Safety
///
/// `path` is null or a string. `next` gives null, or `out`, or, if that is null, memory that it
/// allocated for its result.
unsafe fn resolve(
    path: *const c_char,
    out: *mut c_char,
    next: impl FnOnce(*const c_char) -> *mut c_char,
) -> *mut c_char {
    let (mut own, mut room) = (Room::new(), Room::new());
    // libc asks the kernel for the working directory, and not our `getcwd`.
    // SAFETY: the caller promises that the path is a string.
    let path = unsafe { cwd::absolute(path, &mut own) };
    // SAFETY: as above, or it is a terminated one in `own`.
    let redirected = unsafe { redirect(path, &mut room) };
    let result = next(redirected);
    if redirected != path && !result.is_null() {
        let size = if out.is_null() {
            // SAFETY: libc allocated it with malloc, for the string in it at least.
            unsafe { libc::malloc_usable_size(result.cast()) }
        } else {
            libc::PATH_MAX as usize
        };
        // SAFETY: the result is a terminated string in memory of this size.
        unsafe { restore(result, size) };
    }
    result
}
