//! Queues whose driver is a task of tokio.

#![allow(unsafe_code, reason = "tokio asks for a promise that its descriptor stays open")]

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::task::{Context, Poll, ready};

use ::tokio::io::unix::AsyncFd;

use super::cq::Cq;
use super::readiness::Readiness;
use crate::Result;

impl Readiness for AsyncFd<OwnedFd> {
    fn poll_readable(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        // Cleared before anything is read: an event behind the read makes it ready again.
        ready!(self.poll_read_ready(cx))?.clear_ready();
        Poll::Ready(Ok(()))
    }
}

impl Cq {
    /// A queue for up to `entries` requests at once, whose [`Driver`](super::Driver) is a task of
    /// the runtime that this is called in. The task ends with the queue.
    ///
    /// # Errors
    ///
    /// The device's; [`Kind::Io`](crate::Kind::Io) if the descriptor cannot be watched.
    ///
    /// # Panics
    ///
    /// Outside of a tokio runtime, or in one without its I/O driver.
    pub fn spawn(context: &crate::Context, entries: u32) -> Result<Self> {
        let (cq, driver) = Self::with_readiness(context, entries, |cq| {
            let fd = cq.as_fd().try_clone_to_owned()?;
            // SAFETY: tokio has the descriptor, which stays open and the same until it is dropped.
            let registered = unsafe { AsyncFd::register(fd) };
            Ok(registered?)
        })?;
        ::tokio::spawn(driver);
        Ok(cq)
    }
}
