//! Waiting for an event.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use descriptors::Known;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use crate::{Kind, Refusal, Result};

/// A clone of a descriptor of the engine for events, which no longer blocks: nothing else reads it.
pub(crate) fn clone_for_waiting(fd: BorrowedFd<'_>) -> std::io::Result<Known> {
    rustix::io::ioctl_fionbio(fd, true)?;
    fd.try_clone_to_owned().map(Known::new)
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
    if timeout.is_zero() {
        return Ok(false);
    }
    let timeout = Timespec {
        tv_sec: timeout.as_secs().try_into().unwrap_or(i64::MAX),
        tv_nsec: timeout.subsec_nanos().into(),
    };
    match poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&timeout)) {
        Ok(_) | Err(Errno::INTR) => Ok(true),
        Err(error) => Err(failed(error)),
    }
}

fn failed(error: Errno) -> Refusal {
    Refusal::new(Kind::Io, format!("waiting for an event: {error}"))
}
