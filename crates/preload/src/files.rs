//! libc's functions that take a descriptor or addresses, for the nodes of the software GPU and for
//! files of buffers.
//!
//! Each passes everything else on to libc: programs such as UCX patch libc's functions to learn
//! which memory comes and goes. `mmap`, `munmap` and `mremap` may be needed before libc's can be
//! looked up, and are the kernel's calls until then.

#![allow(unsafe_code, reason = "every function here stands for one of libc's")]

use core::ffi::{c_int, c_long, c_ulong, c_void};
use core::ptr;

use libc::size_t;

use crate::buffers;
use crate::drm::{self, FileOps};
use crate::errno;
use crate::hooks::show_stat;
use crate::next::{Next, next};

/// `_IOC_TYPE` of DRM's requests.
const DRM: u8 = b'd';
/// That of requests to dma-bufs.
const DMA_BUF: u8 = b'b';
/// That of VFIO's and iommufd's.
const VFIO: u8 = b';';

/// The functions, if this descriptor is a node.
fn ops_of(fd: c_int) -> Option<&'static FileOps> {
    drm::ops().filter(|ops| fd >= 0 && (ops.owns)(fd))
}

/// Variadic in C: the argument is one word, and those that need none leave garbage in its place.
///
/// # Safety
///
/// As for libc's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn ioctl(fd: c_int, request: c_ulong, arg: *mut c_void) -> c_int {
    let letter = request.to_le_bytes()[1];
    if letter == DMA_BUF
        && let Some(ops) = buffers::ops_of(fd)
    {
        // SAFETY: the caller's argument is what the request needs.
        return unsafe { (ops.buffer_ioctl)(fd, request, arg) };
    }
    if matches!(letter, DRM | DMA_BUF | VFIO)
        && let Some(ops) = ops_of(fd)
    {
        // SAFETY: the caller's argument is what the request needs.
        return unsafe { (ops.ioctl)(fd, request, arg) };
    }
    // libc's takes its third argument where a named one is.
    let next = next!(c"ioctl": fn(c_int, c_ulong, *mut c_void) -> c_int = -1);
    // SAFETY: the arguments are the caller's.
    unsafe { next(fd, request, arg) }
}

/// Maps a buffer of the GPU, or anything else.
///
/// # Safety
///
/// As for libc's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn mmap(
    addr: *mut c_void,
    len: size_t,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    if flags & libc::MAP_ANONYMOUS == 0 {
        if let Some(ops) = ops_of(fd) {
            // SAFETY: the arguments are the caller's.
            return unsafe { (ops.mmap)(addr, len, prot, flags, fd, offset) };
        }
        if let Some(ops) = buffers::ops_of(fd) {
            // SAFETY: the arguments are the caller's.
            return unsafe { (ops.buffer_mmap)(addr, len, prot, flags, fd, offset) };
        }
    }
    if flags & libc::MAP_FIXED != 0
        && let Some(ops) = drm::ops()
    {
        (ops.forget)(addr as usize, len);
    }
    type Function =
        unsafe extern "C" fn(*mut c_void, size_t, c_int, c_int, c_int, i64) -> *mut c_void;
    static NEXT: Next = Next::new(c"mmap");
    let address = NEXT.try_address();
    if !address.is_null() {
        // SAFETY: libc's function of this name has this type.
        let next = unsafe { core::mem::transmute::<*mut c_void, Function>(address) };
        // SAFETY: the arguments are the caller's.
        return unsafe { next(addr, len, prot, flags, fd, offset) };
    }
    let (prot, flags, fd) = (c_long::from(prot), c_long::from(flags), c_long::from(fd));
    // SAFETY: the arguments are the caller's, each a word.
    let mapped = unsafe { libc::syscall(libc::SYS_mmap, addr, len, prot, flags, fd, offset) };
    ptr::with_exposed_provenance_mut(mapped as usize)
}

/// `mmap`.
///
/// # Safety
///
/// As for libc's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn mmap64(
    addr: *mut c_void,
    len: size_t,
    prot: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
) -> *mut c_void {
    // SAFETY: the same function, on 64-bit machines.
    unsafe { mmap(addr, len, prot, flags, fd, offset) }
}

/// Unmaps; a buffer of the GPU that was mapped there may move again.
///
/// # Safety
///
/// As for libc's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn munmap(addr: *mut c_void, len: size_t) -> c_int {
    if let Some(ops) = drm::ops() {
        // Before the call: after it, the addresses may already be mapped again.
        (ops.forget)(addr as usize, len);
    }
    type Function = unsafe extern "C" fn(*mut c_void, size_t) -> c_int;
    static NEXT: Next = Next::new(c"munmap");
    let address = NEXT.try_address();
    if !address.is_null() {
        // SAFETY: libc's function of this name has this type.
        let next = unsafe { core::mem::transmute::<*mut c_void, Function>(address) };
        // SAFETY: the arguments are the caller's.
        return unsafe { next(addr, len) };
    }
    // SAFETY: the arguments are the caller's.
    let result = unsafe { libc::syscall(libc::SYS_munmap, addr, len) };
    // CAST: 0 or -1.
    result as c_int
}

/// Variadic in C: the new address is present only with a certain flag. A mapping of the GPU cannot
/// be moved or grown, as in a kernel, whose DRM marks it so.
///
/// # Safety
///
/// As for libc's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn mremap(
    addr: *mut c_void,
    len: size_t,
    new_len: size_t,
    flags: c_int,
    new_addr: *mut c_void,
) -> *mut c_void {
    if let Some(ops) = drm::ops() {
        if (ops.is_mapped)(addr as usize, len.max(1)) {
            errno::set(libc::EFAULT);
            return libc::MAP_FAILED;
        }
        if flags & libc::MREMAP_FIXED != 0 {
            (ops.forget)(new_addr as usize, new_len);
        }
    }
    type Function =
        unsafe extern "C" fn(*mut c_void, size_t, size_t, c_int, *mut c_void) -> *mut c_void;
    static NEXT: Next = Next::new(c"mremap");
    let address = NEXT.try_address();
    if !address.is_null() {
        // SAFETY: libc's function takes its last argument where a named one is.
        let next = unsafe { core::mem::transmute::<*mut c_void, Function>(address) };
        // SAFETY: the arguments are the caller's.
        return unsafe { next(addr, len, new_len, flags, new_addr) };
    }
    let flags = c_long::from(flags);
    // SAFETY: the arguments are the caller's, each a word.
    let moved = unsafe { libc::syscall(libc::SYS_mremap, addr, len, new_len, flags, new_addr) };
    ptr::with_exposed_provenance_mut(moved as usize)
}

/// Closes; the state of a node or a buffer of the GPU goes with its last descriptor.
///
/// # Safety
///
/// As for libc's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn close(fd: c_int) -> c_int {
    // A process without these functions has nothing to release.
    let node = ops_of(fd);
    let buffer = drm::ops().filter(|_| node.is_none()).and_then(|_| buffers::ops_of(fd));
    let next = next!(c"close": fn(c_int) -> c_int = -1);
    // SAFETY: the argument is the caller's.
    let result = unsafe { next(fd) };
    if let Some(ops) = node {
        (ops.node_closed)();
    } else if let Some(ops) = buffer {
        (ops.closed)();
    }
    result
}

/// Reads at an offset: a region of a device of VFIO, if it is one.
///
/// # Safety
///
/// As for libc's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn pread(fd: c_int, out: *mut c_void, len: size_t, offset: i64) -> isize {
    if let Some(ops) = drm::vfio(fd) {
        // SAFETY: the arguments are the caller's.
        return unsafe { (ops.read)(fd, out, len, offset) };
    }
    let next = next!(c"pread": fn(c_int, *mut c_void, size_t, i64) -> isize = -1);
    // SAFETY: the arguments are the caller's.
    unsafe { next(fd, out, len, offset) }
}

/// `pread`.
///
/// # Safety
///
/// As for libc's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn pread64(fd: c_int, out: *mut c_void, len: size_t, offset: i64) -> isize {
    // SAFETY: the same function, on 64-bit machines.
    unsafe { pread(fd, out, len, offset) }
}

/// Writes at an offset: a region of a device of VFIO, if it is one.
///
/// # Safety
///
/// As for libc's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn pwrite(fd: c_int, from: *const c_void, len: size_t, offset: i64) -> isize {
    if let Some(ops) = drm::vfio(fd) {
        // SAFETY: the arguments are the caller's.
        return unsafe { (ops.write)(fd, from, len, offset) };
    }
    let next = next!(c"pwrite": fn(c_int, *const c_void, size_t, i64) -> isize = -1);
    // SAFETY: the arguments are the caller's.
    unsafe { next(fd, from, len, offset) }
}

/// `pwrite`.
///
/// # Safety
///
/// As for libc's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn pwrite64(fd: c_int, from: *const c_void, len: size_t, offset: i64) -> isize {
    // SAFETY: the same function, on 64-bit machines.
    unsafe { pwrite(fd, from, len, offset) }
}

/// Attributes: those of a node, if it is one.
///
/// # Safety
///
/// As for libc's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn fstat(fd: c_int, out: *mut c_void) -> c_int {
    let next = next!(c"fstat": fn(c_int, *mut c_void) -> c_int = -1);
    // SAFETY: the arguments are the caller's.
    let result = unsafe { next(fd, out) };
    if result == 0
        && let Some(node) = drm::node_of(fd)
    {
        // SAFETY: the call succeeded, so this is the structure that it fills.
        unsafe { show_stat(drm::device(node), out) };
    }
    result
}

/// `fstat`.
///
/// # Safety
///
/// As for libc's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn fstat64(fd: c_int, out: *mut c_void) -> c_int {
    // SAFETY: the same function, on 64-bit machines.
    unsafe { fstat(fd, out) }
}

/// Seeks in a buffer's file: only to its two ends.
///
/// # Safety
///
/// As for libc's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn lseek(fd: c_int, offset: i64, whence: c_int) -> i64 {
    if let Some(ops) = buffers::ops_of(fd) {
        return (ops.buffer_seek)(fd, offset, whence);
    }
    let (fd, whence) = (c_long::from(fd), c_long::from(whence));
    // SAFETY: the arguments are the caller's, each a word.
    unsafe { libc::syscall(libc::SYS_lseek, fd, offset, whence) }
}

/// `lseek`.
///
/// # Safety
///
/// As for libc's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn lseek64(fd: c_int, offset: i64, whence: c_int) -> i64 {
    // SAFETY: the same function, on 64-bit machines.
    unsafe { lseek(fd, offset, whence) }
}

/// Variadic in C: the argument is one word. A buffer's file is open for writing only, so that the
/// kernel never shows bytes that are not the buffer's; to the program it appears open for both, or,
/// with `O_APPEND`, for reading.
///
/// # Safety
///
/// As for libc's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn fcntl(fd: c_int, command: c_int, arg: *mut c_void) -> c_int {
    // libc's takes its third argument where a named one is.
    let next = next!(c"fcntl": fn(c_int, c_int, *mut c_void) -> c_int = -1);
    // SAFETY: the arguments are the caller's.
    let answer = unsafe { next(fd, command, arg) };
    if command != libc::F_GETFL
        || answer < 0
        || answer & libc::O_ACCMODE != libc::O_WRONLY
        || !buffers::is_buffer(fd)
    {
        return answer;
    }
    let mode = if answer & libc::O_APPEND != 0 { libc::O_RDONLY } else { libc::O_RDWR };
    (answer & !(libc::O_ACCMODE | libc::O_APPEND)) | mode
}

/// `fcntl`.
///
/// # Safety
///
/// As for libc's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn fcntl64(fd: c_int, command: c_int, arg: *mut c_void) -> c_int {
    // SAFETY: the same function, on 64-bit machines.
    unsafe { fcntl(fd, command, arg) }
}
