//! How a thread of the program waits in a call of ours: it makes progress meanwhile
//! ([`device::Waiting`]).
//!
//! A wait ends as a read from the descriptor would, by signals with and without `SA_RESTART`, too.
//! `epoll_wait(2)` is never restarted, and does not tell which signal ended it. So a thread waits
//! here only while every handler of the process has that flag, and goes on after a signal.

use std::ffi::c_int;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use device::{Begun, Engine, Hca, Waited, Woken};
use rustix::event::epoll;

/// So many waits after another look at the handlers of signals, a system call for each.
const WAITS_PER_LOOK: u32 = 64;

/// What the caller does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::abi) enum Next {
    /// The event was found.
    Found,
    /// Sleeps on this epoll set, and says what ended that.
    Sleep(RawFd),
    /// Waits for the descriptor, as the program made it.
    Read,
    /// Fails with EINTR.
    Interrupted,
}

/// The waits for one descriptor.
#[derive(Debug, Default)]
pub(in crate::abi) struct Waiting {
    waiting: device::Waiting,
    waits: AtomicU32,
}

impl Waiting {
    /// Begins to wait for an event of `fd`. `found` looks for it with the engine locked, and takes
    /// it.
    pub(in crate::abi) fn begin(
        &self,
        hca: &Arc<Hca>,
        fd: impl AsFd,
        found: impl FnMut(&mut Engine) -> bool,
    ) -> Next {
        if !blocks(fd.as_fd()) {
            return Next::Read;
        }
        let waits = self.waits.fetch_add(1, Ordering::Relaxed);
        if waits.is_multiple_of(WAITS_PER_LOOK) && !self.signals_restart() {
            return Next::Read;
        }
        match self.waiting.begin(hca, fd, found) {
            Begun::Found => Next::Found,
            Begun::Sleep(set) => Next::Sleep(set.as_raw_fd()),
            Begun::Unable => Next::Read,
        }
    }

    /// The epoll set of waits that have begun already.
    pub(in crate::abi) fn set(&self) -> Option<RawFd> {
        self.waiting.set().map(|set| set.as_raw_fd())
    }

    /// A sleep of this length has ended. None if the wait begins again.
    pub(in crate::abi) fn end(
        &self,
        hca: &Hca,
        woken: Woken,
        slept: Duration,
        found: impl FnMut(&mut Engine) -> bool,
    ) -> Option<Next> {
        match self.waiting.end(hca, woken, slept, found) {
            Waited::Found => Some(Next::Found),
            Waited::Readable => Some(Next::Read),
            Waited::NotYet => None,
        }
    }

    /// A sleep has failed. None if the wait begins again.
    pub(in crate::abi) fn failed(&self, errno: c_int) -> Option<Next> {
        match errno {
            libc::EINTR if self.signals_restart() => None,
            // Of a handler that is new, most likely.
            libc::EINTR => Some(Next::Interrupted),
            // The program closed the set.
            _ => Some(Next::Read),
        }
    }

    /// The same from the beginning to the end, in a call that is no cancellation point.
    pub(in crate::abi) fn wait(
        &self,
        hca: &Arc<Hca>,
        fd: impl AsFd,
        mut found: impl FnMut(&mut Engine) -> bool,
    ) -> Next {
        let fd = fd.as_fd();
        loop {
            let next = self.begin(hca, fd, &mut found);
            let Next::Sleep(set) = next else { return next };
            // SAFETY: it lives as long as this does.
            let set = unsafe { BorrowedFd::borrow_raw(set) };
            let none = epoll::Event {
                flags: epoll::EventFlags::empty(),
                data: epoll::EventData::new_u64(0),
            };
            let mut events = [none; 4];
            let began = Instant::now();
            let next = match epoll::wait(set, &mut events, None) {
                Ok(count) => {
                    let data = events.iter().take(count).map(|event| event.data.u64());
                    let woken = device::Waiting::woken(data);
                    self.end(hca, woken, began.elapsed(), &mut found)
                }
                Err(error) => self.failed(error.raw_os_error()),
            };
            if let Some(next) = next {
                return next;
            }
        }
    }

    fn signals_restart(&self) -> bool {
        let restart = signals_restart();
        if !restart {
            // The next wait looks again.
            self.waits.store(0, Ordering::Relaxed);
        }
        restart
    }
}

fn blocks(fd: BorrowedFd<'_>) -> bool {
    let flags = rustix::fs::fcntl_getfl(fd);
    flags.is_ok_and(|flags| !flags.contains(rustix::fs::OFlags::NONBLOCK))
}

/// Whether a system call that a handler interrupts goes on afterwards, whatever the signal. Signals
/// of a fault come to no thread that sleeps.
fn signals_restart() -> bool {
    let faults = [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP];
    (1..=libc::SIGRTMAX()).filter(|signal| !faults.contains(signal)).all(|signal| {
        // SAFETY: all zeros are an action.
        let mut action: libc::sigaction = unsafe { mem::zeroed() };
        // SAFETY: there is room for the action, and none is set. It fails for signals of the C
        // library, which restart.
        if unsafe { libc::sigaction(signal, ptr::null(), &raw mut action) } != 0 {
            return true;
        }
        let is_caught = ![libc::SIG_DFL, libc::SIG_IGN].contains(&action.sa_sigaction);
        !is_caught || action.sa_flags & libc::SA_RESTART != 0
    })
}
