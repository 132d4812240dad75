//! Asynchronous events of a context as futures.

use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context as Task, Poll, ready};

use futures_core::Stream;

use super::reactor::Watch;
use super::readiness::Readiness;
use crate::{AsyncEvent, Context, Kind, Refusal, Result};

/// The asynchronous events of a context, one by one, for any executor; the thread of this library
/// waits. As a `Stream` it never ends.
///
/// ```no_run
/// # async fn f(context: &verbs::Context) -> verbs::Result<()> {
/// let mut events = verbs::aio::AsyncEvents::new(context)?;
/// loop {
///     println!("{:?}", events.next().await?);
/// }
/// # }
/// ```
#[derive(Debug)]
#[doc(alias = "ibv_get_async_event")]
pub struct AsyncEvents {
    events: crate::AsyncEvents,
    watch: Watch,
}

impl AsyncEvents {
    /// Those of this context.
    ///
    /// # Errors
    ///
    /// [`Kind::NoMemory`] or [`Kind::Io`] if the process has no descriptor or thread left.
    pub fn new(context: &Context) -> Result<Self> {
        let events = context.async_events()?;
        let watch = Watch::of(&events).map_err(failed)?;
        Ok(Self { events, watch })
    }

    /// The next one. Dropping the future loses none. Each event goes to whoever takes it first, be
    /// it here or by [`Context::async_event`].
    ///
    /// # Errors
    ///
    /// As [`Context::async_event`].
    pub async fn next(&mut self) -> Result<AsyncEvent> {
        poll_fn(|task| self.poll_event(task)).await
    }

    fn poll_event(&mut self, task: &mut Task<'_>) -> Poll<Result<AsyncEvent>> {
        loop {
            if let Some(event) = self.events.take()? {
                return Poll::Ready(Ok(event));
            }
            ready!(self.watch.poll_readable(task)).map_err(failed)?;
        }
    }
}

impl Stream for AsyncEvents {
    type Item = Result<AsyncEvent>;

    fn poll_next(self: Pin<&mut Self>, task: &mut Task<'_>) -> Poll<Option<Result<AsyncEvent>>> {
        self.get_mut().poll_event(task).map(Some)
    }
}

fn failed(error: std::io::Error) -> Refusal {
    Refusal::new(Kind::Io, format!("waiting for an event: {error}"))
}
