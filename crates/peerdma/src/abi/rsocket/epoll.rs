//! `epoll(7)` for sockets and others: `repoll_create`, `repoll_ctl`, `repoll_wait`.
//!
//! All descriptors are level-triggered, also those added with `EPOLLET`: readiness is found by
//! polling, which does not tell new data from old. `EPOLLONESHOT` is honoured.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_short};
use std::os::fd::AsRawFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use descriptors::Known;
use libc::{epoll_event, pollfd};
use rustix::event::{EventfdFlags, eventfd};
use threads::whole::RwLock;

use super::poll;
use super::waker::Watchers;
use super::{call, done};
use crate::abi::rdmacm::{Answer, Failure};

/// What a program waits for: an epoll set.
struct Epoll {
    /// What the program knows it by.
    fd: Known,
    state: Mutex<State>,
    watchers: Watchers,
}

#[derive(Default)]
struct State {
    interests: BTreeMap<c_int, epoll_event>,
    /// Counts changes of the interests.
    version: u64,
}

static EPOLLS: RwLock<BTreeMap<c_int, Arc<Epoll>>> = RwLock::new(BTreeMap::new());

fn find(fd: c_int) -> Answer<Arc<Epoll>> {
    let found = EPOLLS.read().get(&fd).cloned();
    found.ok_or_else(|| {
        Failure::new(libc::EINVAL, format!("descriptor {fd} is not from repoll_create"))
    })
}

/// Closes one, if `fd` is one.
pub(super) fn close(fd: c_int) -> bool {
    // Dropped without the lock.
    let closed = EPOLLS.write().remove(&fd);
    closed.is_some()
}

/// A socket is gone: removes it from every set.
pub(super) fn forget(fd: c_int) {
    let all: Vec<_> = EPOLLS.read().values().cloned().collect();
    for epoll in all {
        epoll.state().interests.remove(&fd);
    }
}

impl Epoll {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes the interests, and wakes waiting threads.
    fn change(&self, change: impl FnOnce(&mut State) -> Answer) -> Answer {
        let mut state = self.state();
        change(&mut state)?;
        state.version += 1;
        drop(state);
        self.watchers.notify();
        Ok(())
    }

    /// Waits for events, `most` at most.
    fn wait(&self, most: usize, timeout: c_int) -> Answer<Vec<epoll_event>> {
        let deadline = poll::deadline(timeout);
        loop {
            let state = self.state();
            let version = state.version;
            let mut fds: Vec<pollfd> = state
                .interests
                .iter()
                .map(|(fd, interest)| pollfd {
                    fd: *fd,
                    events: interest.events as c_short,
                    revents: 0,
                })
                .collect();
            drop(state);
            let changed = || self.state().version != version;
            if poll::wait(&mut fds, deadline, Some((&self.watchers, &changed)))? > 0 {
                let events = self.collect(&fds, most);
                if !events.is_empty() {
                    return Ok(events);
                }
            } else if !changed() {
                return Ok(Vec::new());
            }
        }
    }

    /// The events of what is ready.
    fn collect(&self, fds: &[pollfd], most: usize) -> Vec<epoll_event> {
        let mut state = self.state();
        let mut events = Vec::new();
        for ready in fds.iter().filter(|fd| fd.revents != 0) {
            if ready.revents & libc::POLLNVAL != 0 {
                // It was closed, so it is not in the set any more (epoll(7)).
                state.interests.remove(&ready.fd);
                continue;
            }
            if events.len() == most {
                break;
            }
            let Some(interest) = state.interests.get_mut(&ready.fd) else { continue };
            // The bits of poll(2) and epoll(7) are the same.
            events.push(epoll_event { events: ready.revents as u16 as u32, u64: interest.u64 });
            if interest.events & libc::EPOLLONESHOT as u32 != 0 {
                interest.events &= (libc::EPOLLONESHOT | libc::EPOLLET) as u32;
            }
        }
        events
    }
}

pub(crate) unsafe extern "C" fn repoll_create(flags: c_int) -> c_int {
    call("repoll_create", || {
        let mut wanted = EventfdFlags::NONBLOCK;
        wanted.set(EventfdFlags::CLOEXEC, flags & libc::EPOLL_CLOEXEC != 0);
        let fd = eventfd(0, wanted).map_err(|error| {
            Failure::new(error.raw_os_error(), format!("repoll_create: {error}"))
        })?;
        let known = fd.as_raw_fd();
        let fd = Known::at_its_number(fd);
        let epoll = Epoll { fd, state: Mutex::default(), watchers: Watchers::default() };
        let old = EPOLLS.write().insert(known, Arc::new(epoll));
        drop(old);
        Ok(known)
    })
}

pub(crate) unsafe extern "C" fn repoll_ctl(
    epfd: c_int,
    op: c_int,
    fd: c_int,
    event: *mut epoll_event,
) -> c_int {
    done("repoll_ctl", || {
        let refuse = |errno, what: String| Err(Failure::new(errno, format!("repoll_ctl: {what}")));
        let epoll = find(epfd)?;
        if fd < 0 {
            return refuse(libc::EBADF, format!("descriptor {fd}"));
        }
        if fd == epoll.fd.as_raw_fd() {
            return refuse(libc::EINVAL, "an epoll set cannot contain itself".to_owned());
        }
        if op != libc::EPOLL_CTL_DEL && event.is_null() {
            return refuse(libc::EFAULT, "no event".to_owned());
        }
        epoll.change(|state| {
            let is_known = state.interests.contains_key(&fd);
            match (op, is_known) {
                (libc::EPOLL_CTL_ADD, false) | (libc::EPOLL_CTL_MOD, true) => {
                    // SAFETY: contract: the event is valid; the structure is packed on some
                    // machines.
                    let interest = unsafe { event.read_unaligned() };
                    state.interests.insert(fd, interest);
                }
                (libc::EPOLL_CTL_DEL, true) => drop(state.interests.remove(&fd)),
                (libc::EPOLL_CTL_ADD, true) => {
                    return refuse(libc::EEXIST, format!("descriptor {fd} is already in the set"));
                }
                (libc::EPOLL_CTL_MOD | libc::EPOLL_CTL_DEL, false) => {
                    return refuse(libc::ENOENT, format!("descriptor {fd} is not in the set"));
                }
                _ => return refuse(libc::EINVAL, format!("operation {op}")),
            }
            Ok(())
        })
    })
}

pub(crate) unsafe extern "C" fn repoll_wait(
    epfd: c_int,
    events: *mut epoll_event,
    maxevents: c_int,
    timeout: c_int,
) -> c_int {
    call("repoll_wait", || {
        let epoll = find(epfd)?;
        let most = usize::try_from(maxevents).unwrap_or(0);
        if most == 0 {
            return Err(Failure::new(libc::EINVAL, format!("repoll_wait: {maxevents} events")));
        }
        let found = epoll.wait(most, timeout)?;
        for (at, event) in found.iter().enumerate() {
            // SAFETY: contract: there is room for as many as asked for.
            let place = unsafe { events.add(at) };
            // SAFETY: as above; the structure is packed on some machines.
            unsafe { place.write_unaligned(*event) };
        }
        Ok(found.len() as c_int)
    })
}
