//! Waiting for several sockets and other descriptors at once.

use std::ffi::c_int;
use std::time::{Duration, Instant};

use libc::{fd_set, nfds_t, pollfd, timeval};

use super::call;
use super::settings::SETTINGS;
use super::socket::{Socket, lookup};
use super::waker::{Waker, Watchers};
use crate::abi::rdmacm::{Answer, Failure};

/// One descriptor of a call, with the socket it is, if it is one.
type Asked = Option<Socket>;

/// When a timeout ends; a negative one never does.
pub(super) fn deadline(timeout_ms: c_int) -> Option<Instant> {
    u64::try_from(timeout_ms).ok().map(|ms| Instant::now() + Duration::from_millis(ms))
}

/// `poll(2)` for sockets and others. A negative timeout means no timeout.
pub(super) fn poll(fds: &mut [pollfd], timeout_ms: c_int) -> Answer<c_int> {
    wait(fds, deadline(timeout_ms), None)
}

/// Waits until a descriptor is ready, or the deadline has passed, or, if `stop` is given, a watcher
/// was notified and `stop` then says so.
pub(super) fn wait(
    fds: &mut [pollfd],
    deadline: Option<Instant>,
    stop: Option<(&Watchers, &dyn Fn() -> bool)>,
) -> Answer<c_int> {
    let asked: Vec<Asked> = fds.iter().map(|fd| lookup(fd.fd)).collect();
    let begin = Instant::now();
    loop {
        let ready = check(fds, &asked, false)?;
        if ready > 0 || deadline.is_some_and(|deadline| deadline <= begin) {
            return Ok(ready);
        }
        if begin.elapsed() > SETTINGS.polling_time {
            break;
        }
    }
    let waker = Waker::of_thread()?;
    let _watches: Vec<_> =
        asked.iter().flatten().map(|socket| socket.watchers.watch(&waker)).collect();
    let _stop = stop.map(|(watchers, _)| watchers.watch(&waker));
    let mut kernel = Vec::with_capacity(fds.len() + 1);
    loop {
        waker.drain();
        let ready = check(fds, &asked, true)?;
        if ready > 0 || stop.is_some_and(|(_, is_over)| is_over()) {
            return Ok(ready);
        }
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        if left == Some(Duration::ZERO) {
            return Ok(0);
        }
        kernel.clear();
        for (fd, socket) in fds.iter().zip(&asked) {
            kernel.push(match socket {
                // poll(2) skips a negative descriptor.
                Some(socket) => entry(socket.descriptor()?.unwrap_or(-1)),
                None => pollfd { revents: 0, ..*fd },
            });
        }
        kernel.push(entry(waker.own_fd().ok_or(Failure::quiet(libc::EBADF))?));
        sleep(&mut kernel, left)?;
        for (seen, socket) in kernel.iter().zip(&asked) {
            if let Some(socket) = socket
                && seen.revents != 0
            {
                socket.happened();
            }
        }
    }
}

const fn entry(fd: c_int) -> pollfd {
    pollfd { fd, events: libc::POLLIN, revents: 0 }
}

/// Checks everything once, and returns how many are ready.
fn check(fds: &mut [pollfd], asked: &[Asked], arm: bool) -> Answer<c_int> {
    let mut ready = 0;
    let mut others = false;
    for (fd, socket) in fds.iter_mut().zip(asked) {
        match socket {
            Some(socket) => {
                fd.revents = socket.ready(fd.events, arm);
                ready += c_int::from(fd.revents != 0);
            }
            None => others |= fd.fd >= 0,
        }
    }
    if !others {
        return Ok(ready);
    }
    let mut kernel: Vec<pollfd> = fds.to_vec();
    for (entry, socket) in kernel.iter_mut().zip(asked) {
        if socket.is_some() {
            entry.fd = -1;
        }
    }
    sleep(&mut kernel, Some(Duration::ZERO))?;
    for ((fd, seen), socket) in fds.iter_mut().zip(&kernel).zip(asked) {
        if socket.is_none() {
            fd.revents = seen.revents;
            ready += c_int::from(seen.revents != 0);
        }
    }
    Ok(ready)
}

/// The kernel's `poll`.
fn sleep(fds: &mut [pollfd], timeout: Option<Duration>) -> Answer {
    let ms = timeout.map_or(-1, |left| {
        // Rounded up: waking too early means waking twice.
        c_int::try_from(left.as_nanos().div_ceil(1_000_000)).unwrap_or(c_int::MAX)
    });
    // SAFETY: the entries outlive the call, and the count is theirs.
    let answer = unsafe { libc::poll(fds.as_mut_ptr(), fds.len() as nfds_t, ms) };
    if answer < 0 { Err(Failure::last()) } else { Ok(()) }
}

pub(crate) unsafe extern "C" fn rpoll(fds: *mut pollfd, nfds: nfds_t, timeout: c_int) -> c_int {
    call("rpoll", || {
        if nfds == 0 {
            return poll(&mut [], timeout);
        }
        // SAFETY: contract: there are as many entries as said.
        let fds = unsafe { std::slice::from_raw_parts_mut(fds, nfds as usize) };
        poll(fds, timeout)
    })
}

pub(crate) unsafe extern "C" fn rselect(
    nfds: c_int,
    readfds: *mut fd_set,
    writefds: *mut fd_set,
    exceptfds: *mut fd_set,
    timeout: *mut timeval,
) -> c_int {
    call("rselect", || {
        if !(0..=libc::FD_SETSIZE as c_int).contains(&nfds) {
            return Err(Failure::new(libc::EINVAL, format!("rselect: {nfds} descriptors")));
        }
        let sets = [(readfds, libc::POLLIN), (writefds, libc::POLLOUT), (exceptfds, 0)];
        let mut fds = Vec::new();
        for fd in 0..nfds {
            // SAFETY: contract: a set is NULL or valid.
            let is_in = |set: *mut fd_set| !set.is_null() && unsafe { libc::FD_ISSET(fd, set) };
            if sets.iter().any(|(set, _)| is_in(*set)) {
                let wanted = |(set, event)| if is_in(set) { event } else { 0 };
                let events = sets.map(wanted).iter().fold(0, |all, event| all | event);
                fds.push(pollfd { fd, events, revents: 0 });
            }
        }
        let ms = if timeout.is_null() {
            -1
        } else {
            // SAFETY: contract: it is valid.
            let timeout = unsafe { &*timeout };
            if timeout.tv_sec < 0 || timeout.tv_usec < 0 {
                return Err(Failure::new(libc::EINVAL, "rselect: a negative timeout"));
            }
            let ms =
                timeout.tv_sec.saturating_mul(1000).saturating_add((timeout.tv_usec + 999) / 1000);
            c_int::try_from(ms).unwrap_or(c_int::MAX)
        };
        poll(&mut fds, ms)?;
        if fds.iter().any(|fd| fd.revents & libc::POLLNVAL != 0) {
            return Err(Failure::new(libc::EBADF, "rselect: a descriptor is not open"));
        }
        // As in select(2), anything that makes reading or writing return at once counts as ready.
        let meanings = [
            libc::POLLIN | libc::POLLHUP | libc::POLLERR,
            libc::POLLOUT | libc::POLLERR,
            libc::POLLPRI,
        ];
        let mut count = 0;
        for ((set, _), meaning) in sets.into_iter().zip(meanings) {
            if set.is_null() {
                continue;
            }
            for fd in &fds {
                // SAFETY: contract: the set is valid.
                let was_in = unsafe { libc::FD_ISSET(fd.fd, set) };
                if was_in && fd.revents & meaning == 0 {
                    // SAFETY: as above.
                    unsafe { libc::FD_CLR(fd.fd, set) };
                }
                count += c_int::from(was_in && fd.revents & meaning != 0);
            }
        }
        Ok(count)
    })
}
