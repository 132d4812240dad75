//! `epoll(7)`. An instance is the kernel's until it must watch an rsocket: from then on a second
//! one, made by `repoll_create`, watches the rsockets and the kernel's instance, which still
//! watches everything else.

#![allow(unsafe_code, reason = "every function here stands for one of libc's")]

use core::ffi::c_int;
use std::collections::BTreeMap;

use libc::{epoll_event, sigset_t};
use threads::whole::Mutex;

use crate::lifetime::rclose;
use crate::next::functions;
use crate::poll::with_mask;
use crate::table::{self, Entry, Kind};

functions! {
    libc c"epoll_ctl": libc_epoll_ctl(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int = -1;
    libc c"epoll_wait": libc_epoll_wait(epfd: c_int, events: *mut epoll_event, most: c_int, timeout: c_int) -> c_int = -1;
    libc c"epoll_pwait": libc_epoll_pwait(epfd: c_int, events: *mut epoll_event, most: c_int, timeout: c_int, mask: *const sigset_t) -> c_int = -1;
    rdmacm c"repoll_create": repoll_create(flags: c_int) -> c_int = -1;
    rdmacm c"repoll_ctl": repoll_ctl(epfd: c_int, op: c_int, fd: c_int, event: *mut epoll_event) -> c_int = -1;
    rdmacm c"repoll_wait": repoll_wait(epfd: c_int, events: *mut epoll_event, most: c_int, timeout: c_int) -> c_int = -1;
}

/// The events of an rsocket that the program asks for, by the numbers of instance and rsocket.
static DATA: Mutex<BTreeMap<(c_int, c_int), u64>> = Mutex::new(BTreeMap::new());

/// The instance for rsockets that goes with the kernel's `epfd`, made if there is none and
/// `is_needed`.
fn beside(epfd: c_int, is_needed: bool) -> Option<c_int> {
    if let Some(Entry { kind: Kind::Epoll, fd }) = table::get(epfd) {
        return Some(fd);
    }
    if !is_needed || !table::has_room(epfd) {
        return None;
    }
    // SAFETY: there are no pointers.
    let ours = unsafe { repoll_create(libc::EPOLL_CLOEXEC) };
    if ours < 0 {
        return None;
    }
    // The kernel's instance is known by its own number, which no rsocket has.
    let mut event = epoll_event { events: libc::EPOLLIN as u32, u64: own(epfd) };
    // SAFETY: the event is valid.
    unsafe { repoll_ctl(ours, libc::EPOLL_CTL_ADD, epfd, &raw mut event) };
    table::add(epfd, Entry { kind: Kind::Epoll, fd: ours });
    Some(ours)
}

/// The number that represents a descriptor in our instance.
fn own(fd: c_int) -> u64 {
    u64::from(fd.cast_unsigned())
}

/// An instance for rsockets is no longer needed.
pub(crate) fn end(ours: c_int) -> c_int {
    DATA.lock().retain(|(known, _), _| *known != ours);
    // SAFETY: there are no pointers.
    unsafe { rclose(ours) }
}

/// `epoll_ctl(2)`.
///
/// # Safety
///
/// As for libc's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_ctl(
    epfd: c_int,
    op: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    let target = match table::get(fd) {
        Some(Entry { kind: Kind::Rsocket, fd }) => fd,
        other => {
            let fd = match other {
                Some(Entry { kind: Kind::Kernel | Kind::Undecided(_), fd }) => fd,
                _ => fd,
            };
            // SAFETY: the arguments are the caller's except for the descriptor, which is the
            // socket's.
            return unsafe { libc_epoll_ctl(epfd, op, fd, event) };
        }
    };
    let Some(ours) = beside(epfd, op == libc::EPOLL_CTL_ADD) else {
        crate::next::set_errno(libc::ENOENT);
        return -1;
    };
    if event.is_null() {
        // SAFETY: there is no event.
        let answer = unsafe { repoll_ctl(ours, op, target, event) };
        DATA.lock().remove(&(ours, target));
        return answer;
    }
    // SAFETY: the event is the caller's; the structure is packed on some machines.
    let wanted = unsafe { event.read_unaligned() };
    let mut known = epoll_event { events: wanted.events, u64: own(target) };
    // SAFETY: the event is valid.
    let answer = unsafe { repoll_ctl(ours, op, target, &raw mut known) };
    if answer == 0 {
        if op == libc::EPOLL_CTL_DEL {
            DATA.lock().remove(&(ours, target));
        } else {
            DATA.lock().insert((ours, target), wanted.u64);
        }
    }
    answer
}

/// Waits for both instances.
///
/// # Safety
///
/// There is room for as many events as the arguments say.
unsafe fn wait(
    epfd: c_int,
    ours: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: c_int,
) -> c_int {
    loop {
        // SAFETY: the caller's promise.
        let count = unsafe { wait_once(epfd, ours, events, most, timeout) };
        match count {
            // The event of a socket that is gone, or one that another thread took.
            None if timeout != 0 => {}
            None => return 0,
            Some(count) => return count,
        }
    }
}

/// Waits for both instances; returns nothing if the event that woke it has no owner.
///
/// # Safety
///
/// There is room for as many events as the arguments say.
unsafe fn wait_once(
    epfd: c_int,
    ours: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: c_int,
) -> Option<c_int> {
    // SAFETY: the caller's promise.
    let count = unsafe { repoll_wait(ours, events, most, timeout) };
    let mut kept = 0;
    let mut has_others = false;
    for at in 0..usize::try_from(count).unwrap_or(0) {
        // SAFETY: the caller's promise.
        let place = unsafe { events.add(at) };
        // SAFETY: the event was written just now; the structure is packed on some machines.
        let mut event = unsafe { place.read_unaligned() };
        if event.u64 == own(epfd) {
            has_others = true;
            continue;
        }
        let Some(wanted) = DATA.lock().get(&(ours, event.u64 as c_int)).copied() else { continue };
        event.u64 = wanted;
        // SAFETY: the caller's promise: no more are kept than there were.
        let place = unsafe { events.add(kept) };
        // SAFETY: as above.
        unsafe { place.write_unaligned(event) };
        kept += 1;
    }
    if count <= 0 {
        return Some(count);
    }
    let mut total = kept as c_int;
    if has_others && total < most {
        // SAFETY: the caller's promise.
        let rest = unsafe { events.add(kept) };
        // SAFETY: the caller's promise: there is room for the rest.
        total += unsafe { libc_epoll_wait(epfd, rest, most - total, 0) }.max(0);
    }
    (total > 0).then_some(total)
}

/// `epoll_wait(2)`.
///
/// # Safety
///
/// As for libc's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_wait(
    epfd: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: c_int,
) -> c_int {
    match beside(epfd, false) {
        // SAFETY: the caller's promise.
        Some(ours) => unsafe { wait(epfd, ours, events, most, timeout) },
        // SAFETY: the arguments are the caller's.
        None => unsafe { libc_epoll_wait(epfd, events, most, timeout) },
    }
}

/// `epoll_pwait(2)`.
///
/// # Safety
///
/// As for libc's function of this name.
#[unsafe(no_mangle)]
unsafe extern "C" fn epoll_pwait(
    epfd: c_int,
    events: *mut epoll_event,
    most: c_int,
    timeout: c_int,
    mask: *const sigset_t,
) -> c_int {
    match beside(epfd, false) {
        Some(ours) => {
            // SAFETY: the caller's promise.
            let waits = || unsafe { wait(epfd, ours, events, most, timeout) };
            // SAFETY: the caller's promise.
            unsafe { with_mask(mask, waits) }
        }
        // SAFETY: the arguments are the caller's.
        None => unsafe { libc_epoll_pwait(epfd, events, most, timeout, mask) },
    }
}
