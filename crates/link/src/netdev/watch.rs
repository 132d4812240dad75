//! When to read a netdev again.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use descriptors::Known;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_gettime, timerfd_settime,
};

use super::{NetdevError, netlink, warn_once};

/// The time between two reads where changes are not reported.
const LOOKS: Duration = Duration::from_secs(1);

/// Reports that links or addresses have changed, or may have; a fresh [`Netdev`](super::Netdev)
/// shows which.
///
/// The socket belongs to the network namespace of the thread that created it.
#[derive(Debug)]
pub struct Watch(Source);

#[derive(Debug)]
enum Source {
    Netlink(Known),
    /// A timer that expires once, and that the reader sets again.
    Clock(Known, Duration),
}

impl Watch {
    /// Listens from now on. Where rtnetlink multicast is forbidden, it reports once a second that
    /// there may be changes.
    ///
    /// # Errors
    ///
    /// The process has no descriptor left for it.
    pub fn new() -> Result<Self, NetdevError> {
        let groups = libc::RTMGRP_LINK | libc::RTMGRP_IPV4_IFADDR | libc::RTMGRP_IPV6_IFADDR;
        let error = match netlink::listen(groups.cast_unsigned()) {
            Ok(fd) => return Ok(Self(Source::Netlink(Known::new(fd)))),
            Err(error) => error,
        };
        let watch = Self::every(LOOKS).map_err(NetdevError::Watch)?;
        warn_once("changes", &error);
        Ok(watch)
    }

    /// Reports possible changes when `pause` has passed since the last read.
    fn every(pause: Duration) -> io::Result<Self> {
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let fd = Known::new(timerfd_create(TimerfdClockId::Monotonic, flags)?);
        set(&fd, pause)?;
        Ok(Self(Source::Clock(fd, pause)))
    }

    /// Discards everything that waits, without blocking, and returns whether there was anything:
    /// the facts may have changed. They have not if only a statistic moved, so compare before
    /// raising an event.
    pub fn drain(&self) -> io::Result<bool> {
        match &self.0 {
            Source::Netlink(fd) => {
                fd.look()?;
                netlink::drain(fd)
            }
            Source::Clock(fd, pause) => {
                fd.look()?;
                let left = timerfd_gettime(fd)?.it_value;
                let is_due = left.tv_sec == 0 && left.tv_nsec == 0;
                if is_due {
                    set(fd, *pause)?;
                }
                Ok(is_due)
            }
        }
    }
}

impl AsFd for Watch {
    /// Readable when [`Watch::drain`] has something to report.
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.0 {
            Source::Netlink(fd) | Source::Clock(fd, _) => fd.as_fd(),
        }
    }
}

/// Makes the timer expire once. It is not readable until then.
fn set(fd: &Known, pause: Duration) -> io::Result<()> {
    let it_value =
        Timespec { tv_sec: pause.as_secs().cast_signed(), tv_nsec: pause.subsec_nanos().into() };
    let once = Itimerspec { it_interval: Timespec::default(), it_value };
    timerfd_settime(fd, TimerfdTimerFlags::empty(), &once)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, poll};

    use super::*;

    #[test]
    fn a_clock_asks_for_one_read_after_another() {
        let watch = Watch::every(Duration::from_millis(2)).expect("a timer");
        for _ in 0..3 {
            let mut fds = [PollFd::new(&watch, PollFlags::IN)];
            assert_eq!(poll(&mut fds, None).expect("descriptors can be waited for"), 1);
            assert!(watch.drain().expect("it is a timer"));
        }
        let watch = Watch::every(Duration::from_secs(3600)).expect("a timer");
        assert!(!watch.drain().expect("it is a timer"));
    }
}
