//! How a thread of the program waits in a call of ours: it makes progress meanwhile
//! ([`device::Waiting`]).
//!
//! A wait ends as a read from the descriptor would, by signals with and without `SA_RESTART`, too.
//! `epoll_wait(2)` is never restarted, and does not tell which signal ended it. So a thread waits
//! here only while every handler of the process has that flag, and goes on after a signal.

use std::ffi::c_int;
use std::mem;
use std::os::fd::{AsFd, AsRawFd, RawFd};
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use device::{Begun, Engine, Hca, Waited};
use rustix::fs::OFlags;

use super::cancel::{After, Step, wait_uncancelled};

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
    /// Begins to wait for an event of `fd`, which blocks. `found` looks for it with the engine
    /// locked, and takes it.
    pub(in crate::abi) fn begin(
        &self,
        hca: &Arc<Hca>,
        fd: impl AsFd,
        found: impl FnMut(&mut Engine) -> bool,
    ) -> Next {
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

    /// What follows a sleep on the set. None if the wait begins again, as after anything else.
    pub(in crate::abi) fn end(
        &self,
        hca: &Hca,
        after: After,
        found: impl FnMut(&mut Engine) -> bool,
    ) -> Option<Next> {
        match after {
            After::Sleep(woken, slept) => match self.waiting.end(hca, woken, slept, found) {
                Waited::Found => Some(Next::Found),
                Waited::Readable => Some(Next::Read),
                Waited::NotYet => None,
            },
            After::SleepFailed(libc::EINTR) if self.signals_restart() => None,
            // Of a handler that is new, most likely.
            After::SleepFailed(libc::EINTR) => Some(Next::Interrupted),
            // The program closed the set.
            After::SleepFailed(_) => Some(Next::Read),
            _ => None,
        }
    }

    /// All of it, in a call that is no cancellation point. Returns whether the event was found; if
    /// not, the caller waits for the descriptor, as the program made it.
    ///
    /// # Errors
    /// EINTR.
    pub(in crate::abi) fn wait(
        &self,
        hca: &Arc<Hca>,
        fd: impl AsFd,
        mut found: impl FnMut(&mut Engine) -> bool,
    ) -> Result<bool, c_int> {
        while blocks(&fd) {
            let mut next = Some(self.begin(hca, &fd, &mut found));
            if let Some(Next::Sleep(set)) = next {
                next = self.end(hca, wait_uncancelled(Step::Sleep(set)), &mut found);
            }
            match next {
                Some(Next::Found) => return Ok(true),
                Some(Next::Interrupted) => return Err(libc::EINTR),
                Some(Next::Read) => break,
                Some(Next::Sleep(_)) | None => {}
            }
        }
        Ok(false)
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

/// Whether a read from the descriptor would wait: programs make it non-blocking.
pub(in crate::abi) fn blocks(fd: impl AsFd) -> bool {
    rustix::fs::fcntl_getfl(fd).is_ok_and(|flags| !flags.contains(OFlags::NONBLOCK))
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
