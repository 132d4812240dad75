//! `poll` and `ppoll` of buffers: a dma-buf is ready when the work on it is done, unlike a file,
//! which is always ready.

#![allow(unsafe_code, reason = "every function here stands for one of libc's")]

use core::ffi::{c_int, c_long, c_short};
use core::ptr;

use libc::{nfds_t, pollfd, sigset_t, timespec};

use crate::buffers;

/// How long to wait for the other descriptors before polling the buffers again.
const ASK_AGAIN: i64 = 1_000_000;

/// As libc's function, which asks the kernel in the same way.
///
/// # Safety
///
/// As for libc's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    let limit = (timeout >= 0).then(|| timespec {
        tv_sec: (timeout / 1000).into(),
        tv_nsec: c_long::from(timeout % 1000) * 1_000_000,
    });
    // SAFETY: the caller's array has this many elements.
    unsafe { wait(fds, count, limit, ptr::null()) }
}

/// As libc's function.
///
/// # Safety
///
/// As for libc's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn ppoll(
    fds: *mut pollfd,
    count: nfds_t,
    limit: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: null, or a time of the caller's.
    let limit = unsafe { limit.as_ref() }.copied();
    // SAFETY: the caller's array has this many elements, and the mask is null or one.
    unsafe { wait(fds, count, limit, mask) }
}

/// `poll` with `_FORTIFY_SOURCE`.
///
/// # Safety
///
/// As for libc's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn __poll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: c_int,
    _room: usize,
) -> c_int {
    // SAFETY: the same contract.
    unsafe { poll(fds, count, timeout) }
}

/// `ppoll` with `_FORTIFY_SOURCE`.
///
/// # Safety
///
/// As for libc's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn __ppoll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    limit: *const timespec,
    mask: *const sigset_t,
    _room: usize,
) -> c_int {
    // SAFETY: the same contract.
    unsafe { ppoll(fds, count, limit, mask) }
}

/// # Safety
///
/// `fds` has `count` elements; `mask` is null or a set of signals.
unsafe fn wait(
    fds: *mut pollfd,
    count: nfds_t,
    limit: Option<timespec>,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the arguments are the caller's.
    let first = unsafe { ask(fds, count, limit, mask) };
    if first <= 0 {
        return first;
    }
    // SAFETY: the kernel found something in the caller's array, which has this many elements.
    let all = unsafe { core::slice::from_raw_parts_mut(fds, count as usize) };
    // To the kernel the file of a buffer is always ready, so a poll without buffers costs only
    // this: a scan of the ready entries.
    if !all.iter().any(|entry| entry.revents != 0 && buffers::ops_of(entry.fd).is_some()) {
        return first;
    }
    let mut left = limit.map(|limit| limit.tv_sec.saturating_mul(1_000_000_000) + limit.tv_nsec);
    loop {
        let is_ready = look(all) > 0;
        let slice = if is_ready { 0 } else { left.map_or(ASK_AGAIN, |left| left.min(ASK_AGAIN)) };
        hide(all);
        // The kernel skips negative descriptors. SAFETY: the arguments are the caller's.
        let others = unsafe { ask(fds, count, Some(timespec { tv_sec: 0, tv_nsec: slice }), mask) };
        show(all);
        if others < 0 {
            return others;
        }
        let found = others + look(all);
        if found > 0 || left == Some(0) {
            return found;
        }
        left = left.map(|left| left - slice);
    }
}

/// Polls the buffers, and returns how many are ready.
fn look(fds: &mut [pollfd]) -> c_int {
    let mut ready = 0;
    for entry in fds {
        let Some(ops) = buffers::ops_of(entry.fd) else { continue };
        // CAST: the bits of `events`.
        entry.revents = (ops.buffer_poll)(entry.fd, entry.events.into()) as c_short;
        ready += c_int::from(entry.revents != 0);
    }
    ready
}

/// Hidden descriptors count down from here: no program uses these values for entries to skip.
const HIDDEN: c_int = -0x4000_0000;

/// Makes buffers' descriptors negative, until [`show`].
fn hide(fds: &mut [pollfd]) {
    for entry in fds.iter_mut().filter(|entry| buffers::ops_of(entry.fd).is_some()) {
        entry.fd = HIDDEN - entry.fd;
    }
}

fn show(fds: &mut [pollfd]) {
    for entry in fds.iter_mut().filter(|entry| entry.fd <= HIDDEN) {
        entry.fd = HIDDEN - entry.fd;
    }
}

/// # Safety
///
/// `fds` has `count` elements; `mask` is null or a set of signals.
unsafe fn ask(
    fds: *mut pollfd,
    count: nfds_t,
    limit: Option<timespec>,
    mask: *const sigset_t,
) -> c_int {
    let mut limit = limit;
    let limit = limit.as_mut().map_or(ptr::null_mut(), ptr::from_mut);
    // The kernel's set of signals has 64.
    let size = 8_usize;
    // SAFETY: the caller's promise; the time is ours, and the kernel may write to it.
    let found = unsafe { libc::syscall(libc::SYS_ppoll, fds, count, limit, mask, size) };
    // CAST: a number of descriptors, or -1.
    found as c_int
}
