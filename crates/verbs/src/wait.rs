//! Waiting for an event.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use descriptors::Known;
use device::{Begun, Engine, Hca, Waiting};
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

use crate::{Kind, Refusal, Result};

/// A clone of a descriptor of the engine for events, which no longer blocks: nothing else reads it.
pub(crate) fn clone_for_waiting(fd: BorrowedFd<'_>) -> std::io::Result<Known> {
    rustix::io::ioctl_fionbio(fd, true)?;
    fd.try_clone_to_owned().map(Known::marked)
}

/// Takes one count from an eventfd that does not block, waiting for it up to `timeout`. If several
/// threads are woken, one takes the count; the others keep waiting.
pub(crate) fn take_one(fd: &Known, timeout: Duration) -> Result<bool> {
    let began = Instant::now();
    loop {
        fd.look().map_err(failed)?;
        match rustix::io::read(fd, &mut [0u8; 8]) {
            Ok(_) => return Ok(true),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(error) => return Err(failed(error)),
        }
        if !readable(fd, timeout.saturating_sub(began.elapsed()))? {
            return Ok(false);
        }
    }
}

/// Waits up to `timeout` until there may be something to read. False if the time is over.
pub(crate) fn readable(fd: impl AsFd, timeout: Duration) -> Result<bool> {
    any_readable(&mut [PollFd::new(&fd, PollFlags::IN)], timeout)
}

/// What a wait for an event of the software device has led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Waited {
    /// The event was found.
    Found,
    /// Not yet: the descriptor may be readable, or the time be over.
    NotYet,
    /// The caller is to wait for the descriptor.
    Unable,
}

/// Waits up to `timeout` for an event that `found` takes, making progress meanwhile.
pub(crate) fn wait_for_event(
    waiting: &Waiting,
    hca: &Arc<Hca>,
    fd: impl AsFd,
    mut found: impl FnMut(&mut Engine) -> bool,
    timeout: Duration,
) -> Waited {
    let set = match waiting.begin(hca, fd, &mut found) {
        Begun::Found => return Waited::Found,
        Begun::Unable => return Waited::Unable,
        Begun::Sleep(set) => set,
    };
    let began = Instant::now();
    let woken = match Waiting::sleep(set, Some(timeout)) {
        Ok(woken) => woken,
        Err(Errno::INTR) => return Waited::NotYet,
        Err(_) => return Waited::Unable,
    };
    match waiting.end(hca, woken, began.elapsed(), found) {
        device::Waited::Found => Waited::Found,
        device::Waited::Readable | device::Waited::NotYet => Waited::NotYet,
    }
}

/// As [`readable`], for either of two descriptors.
pub(crate) fn readable_either(one: impl AsFd, other: impl AsFd, timeout: Duration) -> Result<bool> {
    let [one, other] = [one.as_fd(), other.as_fd()];
    let flags = PollFlags::IN;
    any_readable(&mut [PollFd::new(&one, flags), PollFd::new(&other, flags)], timeout)
}

fn any_readable(fds: &mut [PollFd<'_>], timeout: Duration) -> Result<bool> {
    if timeout.is_zero() {
        return Ok(false);
    }
    let timeout = Timespec {
        tv_sec: timeout.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    };
    match poll(fds, Some(&timeout)) {
        Ok(count) => Ok(count > 0),
        Err(Errno::INTR) => Ok(true),
        Err(error) => Err(failed(error)),
    }
}

/// Wakes one thread of this process that waits for it.
#[derive(Debug)]
pub(crate) struct Bell(OwnedFd);

impl Bell {
    pub(crate) fn new() -> Result<Self> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK | EventfdFlags::SEMAPHORE;
        let fd = eventfd(0, flags).map_err(|error| {
            Refusal::new(Kind::NoMemory, format!("a descriptor for events: {error}"))
        })?;
        Ok(Self(fd))
    }

    pub(crate) fn ring(&self) {
        // Full only after 2^64 - 2 rings.
        let _ = rustix::io::write(&self.0, &1_u64.to_ne_bytes());
    }

    /// Whether it rang; one thread hears each ring.
    pub(crate) fn take(&self) -> bool {
        rustix::io::read(&self.0, &mut [0; 8]).is_ok()
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

fn failed(error: Errno) -> Refusal {
    Refusal::new(Kind::Io, format!("waiting for an event: {error}"))
}
