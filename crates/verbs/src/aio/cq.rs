//! A completion queue whose requests are futures.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::time::Duration;

use super::driver::Driver;
use super::handle::Handle;
use super::inner::{Inner, QpOptions};
use super::qp::Qp;
use super::reactor::{self, Watch};
use super::readiness::Readiness;
use crate::{Context, Kind, Pd, Refusal, Result};

/// A completion queue whose requests are futures. Clones are the same one.
#[derive(Clone, Debug)]
#[doc(alias = "ibv_cq")]
pub struct Cq(Handle);

impl Cq {
    /// A queue for up to `entries` requests at once, which the tasks that wait look at themselves:
    /// each is woken at once when it has to wait, so that its executor never sleeps. The lowest
    /// latency, and a busy processor. A QP that is dropped ends when a task waits next, and buffers
    /// that dropped futures have come back then: waiting for those of a
    /// [`Pool`](crate::owned::Pool) alone is waiting for others.
    ///
    /// # Errors
    ///
    /// The device's.
    #[doc(alias = "ibv_create_cq")]
    pub fn polled(context: &Context, entries: u32) -> Result<Self> {
        Handle::new(context, entries, false).map(Self)
    }

    /// A queue for up to `entries` requests at once, and its [`Driver`], a future that must be
    /// spawned or awaited beside the program's. If the driver is dropped, the queue goes on as a
    /// [`polled`](Self::polled) one.
    ///
    /// # Errors
    ///
    /// The device's; [`Kind::Io`] if a process has no descriptor or thread left for the wait.
    #[doc(alias = "ibv_create_comp_channel")]
    pub fn with_driver(context: &Context, entries: u32) -> Result<(Self, Driver)> {
        let queue = Handle::new(context, entries, true)?;
        let driver = Driver::new(queue.clone(), Watch::new(queue.cq())?);
        Ok((Self(queue), driver))
    }

    /// A queue for up to `entries` requests at once, whose driver runs on the thread of this
    /// library, one for the process: for programs that have nothing to spawn it on.
    ///
    /// # Errors
    ///
    /// As [`with_driver`](Self::with_driver).
    pub fn driven(context: &Context, entries: u32) -> Result<Self> {
        let (cq, driver) = Self::with_driver(context, entries)?;
        // An error leaves the queue to the tasks that wait.
        reactor::spawn(async { drop(driver.await) })?;
        Ok(cq)
    }

    /// [`with_driver`](Self::with_driver) for a program that has something of its own that says when
    /// a descriptor is readable. `readiness` makes it from the queue, whose descriptor [`AsFd`]
    /// gives.
    ///
    /// # Errors
    ///
    /// The device's, and those of `readiness`.
    pub fn with_readiness<R: Readiness>(
        context: &Context,
        entries: u32,
        readiness: impl FnOnce(&crate::Cq) -> std::io::Result<R>,
    ) -> Result<(Self, Driver<R>)> {
        let queue = Handle::new(context, entries, true)?;
        let readiness = readiness(queue.cq()).map_err(|error| {
            Refusal::new(Kind::Io, format!("create_cq: waiting for its events: {error}"))
        })?;
        let driver = Driver::new(queue.clone(), readiness);
        Ok((Self(queue), driver))
    }

    pub(super) fn handle(&self) -> &Handle {
        &self.0
    }

    /// The queue that a handle is of.
    pub(super) fn of(handle: &Handle) -> Self {
        Self(handle.clone())
    }

    /// Creates a QP that completes here, and posts its receives.
    ///
    /// # Errors
    ///
    /// [`Kind::NoMemory`] if the queue has no room for all of its completions; otherwise the
    /// device's.
    #[doc(alias = "ibv_create_qp")]
    pub fn create_qp(&self, pd: &Pd, options: &QpOptions) -> Result<Qp> {
        let inner = Inner::new(&self.0, pd, options)?;
        Ok(Qp::new(inner))
    }

    /// Takes what has completed and wakes the tasks that wait; how many completions there were. For
    /// programs with an event loop of their own: [`AsFd`] says when.
    pub fn turn(&self) -> u32 {
        let mut taken = 0;
        // An event that nobody takes would keep the descriptor readable.
        while self.0.cq().event(Duration::ZERO).unwrap_or(false) {}
        if self.0.cq().req_notify(false).is_err() {
            self.0.undriven();
        }
        loop {
            match self.0.drain() {
                0 => return taken,
                // CAST: a batch at most.
                more => taken += more as u32,
            }
        }
    }
}

impl AsFd for Cq {
    /// Readable while an event waits; [`Cq::turn`] takes it.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.cq().as_fd()
    }
}

impl AsRawFd for Cq {
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}
