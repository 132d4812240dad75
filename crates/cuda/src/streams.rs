//! The streams of a process: look-up by handle, and how they wait for each other.

use std::sync::Arc;

use crate::context::{Context, current};
use crate::event::Event;
use crate::process::Process;
use crate::status::{Refusal, Result, Status};
use crate::stream::{LEGACY, PER_THREAD, Progress, Stream, When};

impl Process {
    /// The stream of a handle. The fixed handles name streams of the thread's context.
    ///
    /// # Errors
    ///
    /// There is no such stream, or the thread has no context.
    pub(crate) fn stream(&self, handle: u64) -> Result<Arc<Stream>> {
        match handle {
            0 | LEGACY | PER_THREAD => Ok(Arc::clone(&current()?.legacy)),
            _ => self.streams.get(handle).ok_or_else(|| {
                Refusal::new(Status::InvalidHandle, format!("{handle:#x} is not a stream"))
            }),
        }
    }

    /// Queues work in a stream. Work in the legacy default stream waits for all blocking streams of
    /// its context, and they wait for it.
    ///
    /// # Errors
    ///
    /// As [`Queue::submit`](umd::queue::Queue::submit).
    pub(crate) fn submit(
        &self,
        stream: &Arc<Stream>,
        when: When,
        work: impl FnMut() -> Result<Progress> + Send + 'static,
    ) -> Result<()> {
        if stream.handle == LEGACY {
            for other in self.streams.all() {
                if other.context == stream.context && other.is_blocking() {
                    wait_for(stream, &other)?;
                }
            }
        } else if stream.is_blocking()
            && let Ok(context) = self.contexts.find(stream.context)
        {
            wait_for(stream, &context.legacy)?;
        }
        stream.submit(when, work)
    }

    /// Records an event in the order of a stream.
    ///
    /// # Errors
    ///
    /// The stream was destroyed.
    pub(crate) fn record(&self, event: &Arc<Event>, stream: &Arc<Stream>) -> Result<()> {
        self.submit(stream, When::Now, event.record())
    }

    /// Makes a stream wait for the last record of an event.
    ///
    /// # Errors
    ///
    /// The stream was destroyed.
    pub(crate) fn delay(&self, event: &Arc<Event>, stream: &Arc<Stream>) -> Result<()> {
        match event.delay() {
            Some(work) => self.submit(stream, When::Now, work),
            None => Ok(()),
        }
    }

    /// All streams of a context.
    pub(crate) fn streams_of(&self, context: &Context) -> Vec<Arc<Stream>> {
        let mut streams = self.streams.all();
        streams.retain(|stream| stream.context == context.handle);
        streams.push(Arc::clone(&context.legacy));
        streams
    }
}

/// Makes a stream wait for the work that another has queued so far.
fn wait_for(stream: &Arc<Stream>, other: &Arc<Stream>) -> Result<()> {
    if other.is_idle() {
        return Ok(());
    }
    let (other, ticket) = (Arc::clone(other), other.ticket());
    stream.submit(When::Now, move || {
        Ok(if other.has_done(ticket) { Progress::Done } else { Progress::Waiting })
    })
}
