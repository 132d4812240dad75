//! The future that waits for events of a queue.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use super::handle::Handle;
use super::reactor::Watch;
use super::readiness::Readiness;

/// Takes completions when an event says that there are some, and wakes the tasks that wait for
/// them. It ends when all handles to the queue and its QPs are gone and nothing is in flight.
#[derive(Debug)]
#[must_use = "a driver that is not spawned drives nothing"]
pub struct Driver<R: Readiness = Watch> {
    queue: Handle,
    readiness: R,
}

impl<R: Readiness> Driver<R> {
    pub(super) fn new(queue: Handle, readiness: R) -> Self {
        Self { queue, readiness }
    }

    /// Takes events and completions until there are none, or until it is others' turn.
    fn turn(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let cq = self.queue.cq();
        let failed = |refusal: crate::Refusal| io::Error::other(refusal.to_string());
        for _ in 0..8 {
            // Completions from before the queue is armed raise no event.
            cq.req_notify(false).map_err(failed)?;
            while self.queue.drain() > 0 {}
            if self.queue.is_last() {
                return Poll::Ready(Ok(()));
            }
            match self.readiness.poll_readable(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Ready(Ok(())) => while cq.event(Duration::ZERO).map_err(failed)? {},
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }
}

impl<R: Readiness> Future for Driver<R> {
    /// An error says that the device is gone or the descriptor cannot be waited for. The queue goes
    /// on as a polled one.
    type Output = io::Result<()>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let driver = self.get_mut();
        // Before it looks whether it is the last: a handle that is dropped later wakes it.
        driver.queue.set_driver(cx);
        driver.turn(cx)
    }
}

impl<R: Readiness> Drop for Driver<R> {
    fn drop(&mut self) {
        self.queue.undriven();
    }
}
