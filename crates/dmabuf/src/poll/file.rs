//! Polling one file.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use crate::fence::{deadline_of, left_until};

/// Polls one file. Returns what is ready, when something is or when the time has passed.
pub(crate) fn poll_one(
    file: BorrowedFd<'_>,
    flags: PollFlags,
    limit: Option<Duration>,
) -> PollFlags {
    let deadline = deadline_of(limit);
    loop {
        let mut fds = [PollFd::from_borrowed_fd(file, flags)];
        let left = left_until(deadline).map(|left| Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(left.subsec_nanos()),
        });
        match rustix::event::poll(&mut fds, left.as_ref()) {
            Err(Errno::INTR) => {}
            Ok(_) => return fds[0].revents(),
            Err(errno) => {
                tracing::warn!("poll failed: {errno}");
                return PollFlags::empty();
            }
        }
    }
}
