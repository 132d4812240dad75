//! Waiting: `poll(2)`, `ppoll(2)`, `select(2)`, `pselect(2)`.

#![allow(unsafe_code, reason = "every function here stands for one of libc's")]

use core::ffi::c_int;

use libc::{fd_set, nfds_t, pollfd, sigset_t, timespec, timeval};

use crate::next::{functions, set_errno};
use crate::table::{self, Entry, Kind};

functions! {
    libc c"poll": libc_poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int = -1;
    libc c"ppoll": libc_ppoll(fds: *mut pollfd, count: nfds_t, timeout: *const timespec, mask: *const sigset_t) -> c_int = -1;
    libc c"select": libc_select(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *mut timeval) -> c_int = -1;
    libc c"pselect": libc_pselect(count: c_int, read: *mut fd_set, write: *mut fd_set, except: *mut fd_set, timeout: *const timespec, mask: *const sigset_t) -> c_int = -1;
    rdmacm c"rpoll": rpoll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int = -1;
}

/// The descriptor to wait for, and whether it differs from the program's.
pub(crate) fn waits_for(fd: c_int) -> (c_int, bool) {
    match table::get(fd) {
        Some(Entry { kind: Kind::Rsocket | Kind::Kernel | Kind::Undecided(_), fd }) => (fd, true),
        _ => (fd, false),
    }
}

/// `rpoll` for the program's descriptors.
fn poll_ours(fds: &mut [pollfd], timeout: c_int) -> c_int {
    let mut real: Vec<pollfd> = fds
        .iter()
        .map(|entry| pollfd { fd: waits_for(entry.fd).0, revents: 0, ..*entry })
        .collect();
    // SAFETY: there are as many entries as given.
    let ready = unsafe { rpoll(real.as_mut_ptr(), real.len() as nfds_t, timeout) };
    if ready >= 0 {
        for (entry, real) in fds.iter_mut().zip(&real) {
            entry.revents = real.revents;
        }
    }
    ready
}

/// Runs `wait` with the signals that a call names blocked, and no others.
///
/// # Safety
///
/// `mask` is NULL or valid.
pub(crate) unsafe fn with_mask(mask: *const sigset_t, wait: impl FnOnce() -> c_int) -> c_int {
    if mask.is_null() {
        return wait();
    }
    // SAFETY: the structure is made of integers, for which zero is a value.
    let mut before: sigset_t = unsafe { core::mem::zeroed() };
    // SAFETY: the caller's promise; there is room for the old mask.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, mask, &raw mut before) };
    let answer = wait();
    // SAFETY: the mask is the one from before.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, core::ptr::null_mut()) };
    answer
}

/// Milliseconds, rounded up; forever if there is no time.
///
/// # Safety
///
/// `time` is NULL or valid.
unsafe fn milliseconds(time: *const timespec) -> c_int {
    // SAFETY: the caller's promise.
    let Some(time) = (unsafe { time.as_ref() }) else { return -1 };
    let ms = time.tv_sec.saturating_mul(1000).saturating_add((time.tv_nsec + 999_999) / 1_000_000);
    c_int::try_from(ms).unwrap_or(c_int::MAX)
}

/// The entries of a call, if one of them is ours.
///
/// # Safety
///
/// There are as many as given.
unsafe fn ours<'a>(fds: *mut pollfd, count: nfds_t) -> Option<&'a mut [pollfd]> {
    if fds.is_null() || count == 0 {
        return None;
    }
    // SAFETY: the caller's promise.
    let fds = unsafe { core::slice::from_raw_parts_mut(fds, count as usize) };
    fds.iter().any(|entry| waits_for(entry.fd).1).then_some(fds)
}

/// `poll(2)`.
///
/// # Safety
///
/// As for libc's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn poll(fds: *mut pollfd, count: nfds_t, timeout: c_int) -> c_int {
    // SAFETY: the caller's promise.
    match unsafe { ours(fds, count) } {
        Some(fds) => poll_ours(fds, timeout),
        // SAFETY: the arguments are the caller's.
        None => unsafe { libc_poll(fds, count, timeout) },
    }
}

/// `poll` with `_FORTIFY_SOURCE`. libc's function ends the program if there are more entries than
/// room; that is left to libc.
///
/// # Safety
///
/// As for libc's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn __poll_chk(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: c_int,
    room: libc::size_t,
) -> c_int {
    functions! {
        libc c"__poll_chk": libc_poll_chk(fds: *mut pollfd, count: nfds_t, timeout: c_int, room: libc::size_t) -> c_int = -1;
    }
    if room / size_of::<pollfd>() >= count as usize {
        // SAFETY: the caller's promise.
        return unsafe { poll(fds, count, timeout) };
    }
    // SAFETY: the arguments are the caller's.
    unsafe { libc_poll_chk(fds, count, timeout, room) }
}

/// `ppoll(2)`.
///
/// # Safety
///
/// As for libc's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn ppoll(
    fds: *mut pollfd,
    count: nfds_t,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    // SAFETY: the caller's promise.
    match unsafe { ours(fds, count) } {
        Some(fds) => {
            // SAFETY: the caller's promise.
            let timeout = unsafe { milliseconds(timeout) };
            // SAFETY: the caller's promise.
            unsafe { with_mask(mask, || poll_ours(fds, timeout)) }
        }
        // SAFETY: the arguments are the caller's.
        None => unsafe { libc_ppoll(fds, count, timeout, mask) },
    }
}

/// The sets of a call: those to read, to write, and of exceptions.
type Sets = [*mut fd_set; 3];

/// Whether a descriptor is in a set.
///
/// # Safety
///
/// The set is NULL or valid.
unsafe fn is_in(fd: c_int, set: *mut fd_set) -> bool {
    // SAFETY: the caller's promise.
    !set.is_null() && unsafe { libc::FD_ISSET(fd, set) }
}

/// The entries for the descriptors in the sets, if one of them is ours.
///
/// # Safety
///
/// The sets are NULL or valid.
unsafe fn entries(count: c_int, sets: Sets) -> Option<Vec<pollfd>> {
    let mut fds = Vec::new();
    let mut has_ours = false;
    for fd in 0..count.clamp(0, libc::FD_SETSIZE as c_int) {
        // SAFETY: the caller's promise.
        let asked = sets.map(|set| unsafe { is_in(fd, set) });
        if asked == [false; 3] {
            continue;
        }
        has_ours |= waits_for(fd).1;
        let events = [libc::POLLIN, libc::POLLOUT, libc::POLLPRI];
        let events = events.iter().zip(asked).filter(|(_, asked)| *asked);
        fds.push(pollfd { fd, events: events.fold(0, |all, (event, _)| all | event), revents: 0 });
    }
    has_ours.then_some(fds)
}

/// Waits for entries, and leaves in the sets what is ready.
///
/// # Safety
///
/// The sets are NULL or valid.
unsafe fn select_ours(mut fds: Vec<pollfd>, sets: Sets, timeout: c_int) -> c_int {
    if poll_ours(&mut fds, timeout) < 0 {
        return -1;
    }
    if fds.iter().any(|entry| entry.revents & libc::POLLNVAL != 0) {
        set_errno(libc::EBADF);
        return -1;
    }
    // A descriptor on which a call would return at once counts as ready (select(2)).
    let meanings = [
        libc::POLLIN | libc::POLLHUP | libc::POLLERR,
        libc::POLLOUT | libc::POLLERR,
        libc::POLLPRI,
    ];
    let mut ready = 0;
    for entry in &fds {
        for (set, meaning) in sets.into_iter().zip(meanings) {
            // SAFETY: the caller's promise.
            if !unsafe { is_in(entry.fd, set) } {
                continue;
            }
            if entry.revents & meaning != 0 {
                ready += 1;
            } else {
                // SAFETY: the caller's promise; it is not NULL.
                unsafe { libc::FD_CLR(entry.fd, set) };
            }
        }
    }
    ready
}

/// `select(2)`.
///
/// # Safety
///
/// As for libc's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn select(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    let sets = [read, write, except];
    // SAFETY: the caller's promise.
    let Some(fds) = (unsafe { entries(count, sets) }) else {
        // SAFETY: the arguments are the caller's.
        return unsafe { libc_select(count, read, write, except, timeout) };
    };
    // SAFETY: the caller's promise.
    let time = unsafe { timeout.as_ref() };
    let time = time.map(|time| timespec { tv_sec: time.tv_sec, tv_nsec: time.tv_usec * 1000 });
    let time = time.as_ref().map_or(core::ptr::null(), |time| &raw const *time);
    // SAFETY: the time is valid.
    let timeout = unsafe { milliseconds(time) };
    // SAFETY: the caller's promise.
    unsafe { select_ours(fds, sets, timeout) }
}

/// `pselect(2)`.
///
/// # Safety
///
/// As for libc's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn pselect(
    count: c_int,
    read: *mut fd_set,
    write: *mut fd_set,
    except: *mut fd_set,
    timeout: *const timespec,
    mask: *const sigset_t,
) -> c_int {
    let sets = [read, write, except];
    // SAFETY: the caller's promise.
    let Some(fds) = (unsafe { entries(count, sets) }) else {
        // SAFETY: the arguments are the caller's.
        return unsafe { libc_pselect(count, read, write, except, timeout, mask) };
    };
    // SAFETY: the caller's promise.
    let timeout = unsafe { milliseconds(timeout) };
    // SAFETY: the caller's promise.
    let waits = || unsafe { select_ours(fds, sets, timeout) };
    // SAFETY: the caller's promise.
    unsafe { with_mask(mask, waits) }
}
