//! Access to foreign memory through the kernel, for when the program has replaced our signal
//! handler.
//!
//! `process_vm_writev` on our own process is a copy that returns EFAULT instead of raising a
//! signal. It needs no permission (ptrace access to one's own thread group is always granted) and
//! costs a system call: about half a microsecond where the guarded routine needs a few nanoseconds.

use std::io;
use std::sync::atomic::{Ordering, fence};

use libc::{c_long, c_void, iovec};

use super::bytes::{TAIL, bulk_length};
use super::plain;

/// Copies, or reports how many bytes arrived before the fault.
///
/// # Safety
///
/// As for [`super::copy`].
pub(super) unsafe fn copy(dst: *mut u8, src: *const u8, len: usize) -> Result<(), usize> {
    let bulk = bulk_length(dst.addr(), len);
    // ORDERING: the kernel copies the parts of one call in order, with string instructions within a
    // part. On x86 a store of the second part cannot become visible before one of the first;
    // elsewhere the parts are two calls with a fence between them, which also orders what the
    // kernel stored on this thread's behalf.
    if cfg!(target_arch = "x86_64") || bulk == 0 {
        // SAFETY: the caller's promise.
        return unsafe { copy_parts(dst, src, bulk, len) };
    }
    // SAFETY: the caller's promise, for the first part.
    unsafe { copy_parts(dst, src, 0, bulk) }?;
    fence(Ordering::SeqCst);
    let (dst, src) = (dst.wrapping_add(bulk), src.wrapping_add(bulk));
    // SAFETY: the caller's promise, for the last part.
    unsafe { copy_parts(dst, src, 0, len - bulk) }.map_err(|done| done + bulk)
}

/// Copies `len` bytes, those from `split` on as a separate part.
///
/// # Safety
///
/// As for [`super::copy`].
unsafe fn copy_parts(dst: *mut u8, src: *const u8, split: usize, len: usize) -> Result<(), usize> {
    // The source is the "local" side and the destination the "remote" one. The kernel takes whole
    // iovecs only up to SSIZE_MAX and may stop at a page it cannot reach; it reports what arrived.
    let mut done = 0;
    while done < len {
        let local = part(src.cast_mut(), done, len);
        let remote = [part(dst, done, split.max(done)), part(dst, split.max(done), len)];
        // SAFETY: the arrays are valid for the call; the kernel checks every address they name.
        let n = unsafe {
            libc::process_vm_writev(own_pid(), &local, 1, remote.as_ptr(), remote.len() as _, 0)
        };
        match n {
            0 => return Err(done),
            n if n < 0 => {
                if io::Error::last_os_error().kind() == io::ErrorKind::Interrupted {
                    continue;
                }
                return Err(done);
            }
            n => done += n as usize,
        }
    }
    Ok(())
}

fn part(base: *mut u8, from: usize, to: usize) -> iovec {
    iovec { iov_base: base.wrapping_add(from).cast::<c_void>(), iov_len: to - from }
}

/// Whether this kernel and this sandbox let a process copy within its own memory this way at all.
pub(super) fn works() -> bool {
    let known = 1_u8;
    is_readable((&raw const known).addr())
}

/// The address at which a copy stopped after `done` bytes.
pub(super) fn culprit(dst: usize, src: usize, done: usize) -> usize {
    let source = src.wrapping_add(done);
    if is_readable(source) { dst.wrapping_add(done) } else { source }
}

/// Whether the byte at `addr` can be read at this moment.
pub(super) fn is_readable(addr: usize) -> bool {
    let mut byte = 0_u8;
    let local = part(&raw mut byte, 0, 1);
    let remote = iovec { iov_base: std::ptr::without_provenance_mut(addr), iov_len: 1 };
    // SAFETY: the local part is a live byte of ours; the kernel checks the other address.
    let n = unsafe { libc::process_vm_readv(own_pid(), &local, 1, &remote, 1, 0) };
    n == 1
}

/// Fills by copying from a small buffer of that byte.
///
/// # Safety
///
/// As for [`super::fill`].
pub(super) unsafe fn fill(dst: *mut u8, byte: u8, len: usize) -> Result<(), usize> {
    let pattern = [byte; 4096];
    let mut done = 0;
    while done < len {
        let n = pattern.len().min(len - done);
        // SAFETY: the caller's promise for the destination; the source is a live array of at least
        // `n` bytes.
        unsafe { copy_parts(dst.wrapping_add(done), pattern.as_ptr(), 0, n) }
            .map_err(|arrived| done + arrived)?;
        done += n;
    }
    Ok(())
}

/// Whether the eight bytes at `addr` can be read and written at this moment, tested without
/// changing them.
///
/// No copy can answer this: writing back what was read would undo a concurrent store.
/// `FUTEX_WAKE_OP` performs an atomic read-modify-write on the word it is given, with the kernel's
/// own fault handling; adding zero changes nothing. Eight aligned bytes lie in one page, so one
/// 32-bit word answers for both.
pub(super) fn is_writable(addr: *mut u64) -> bool {
    const OP: c_long =
        (libc::FUTEX_OP_ADD as c_long) << 28 | (libc::FUTEX_OP_CMP_EQ as c_long) << 24;
    let nobody_waits_here: u32 = 0;
    // SAFETY: a system call whose pointers the kernel checks; the first is a live local on which no
    // thread waits, and a wake-up at the second is at most spurious, which futex users must expect.
    let rc = unsafe {
        libc::syscall(
            libc::SYS_futex,
            &raw const nobody_waits_here,
            libc::FUTEX_WAKE_OP | libc::FUTEX_PRIVATE_FLAG,
            0,
            0 as c_long,
            addr,
            OP,
        )
    };
    rc >= 0
}

/// A compare-and-swap after a probe: the page may still vanish between the two, and then the
/// program's own handler sees the fault.
///
/// # Safety
///
/// As for [`super::compare_swap`].
pub(super) unsafe fn compare_swap(addr: *mut u64, compare: u64, swap: u64) -> Result<u64, usize> {
    if !is_writable(addr) {
        return Err(0);
    }
    // SAFETY: the caller's promise; the probe found the page present and writable.
    Ok(unsafe { plain::peerdma_umem_compare_swap(addr, compare, swap) }.value as u64)
}

/// An addition after a probe, as [`compare_swap`].
///
/// # Safety
///
/// As for [`super::fetch_add`].
pub(super) unsafe fn fetch_add(addr: *mut u64, add: u64) -> Result<u64, usize> {
    if !is_writable(addr) {
        return Err(0);
    }
    // SAFETY: the caller's promise; the probe found the page present and writable.
    Ok(unsafe { plain::peerdma_umem_fetch_add(addr, add) }.value as u64)
}

fn own_pid() -> libc::pid_t {
    // Asked each time: a cached number would be the parent's after a fork.
    // SAFETY: a system call without arguments.
    unsafe { libc::getpid() }
}

const _: () = assert!(TAIL == 8, "the probe and the tail are of the same word");
