//! Streams: queues of work, which belong to a context and may wait for each other.

use std::ops::Deref;
use std::sync::Arc;

pub(crate) use umd::queue::{Progress, When};

use crate::context::Context;
use crate::process::Process;
use crate::status::{Refusal, Result, Status};

/// A stream.
pub(crate) struct Stream {
    pub(crate) handle: u64,
    /// The handle of its context.
    pub(crate) context: u64,
    pub(crate) flags: u32,
    pub(crate) priority: i32,
    queue: Arc<Queue>,
}

type Queue = umd::queue::Queue<Refusal>;

impl Deref for Stream {
    type Target = Arc<Queue>;

    fn deref(&self) -> &Arc<Queue> {
        &self.queue
    }
}

/// Work in it does not wait for the stream that has no handle.
#[doc(alias = "CU_STREAM_NON_BLOCKING")]
pub(crate) const NON_BLOCKING: u32 = 1;

/// The handle of the stream that has none.
#[doc(alias = "CU_STREAM_LEGACY")]
pub(crate) const LEGACY: u64 = 1;

/// The stream of the calling thread.
#[doc(alias = "CU_STREAM_PER_THREAD")]
pub(crate) const PER_THREAD: u64 = 2;

impl Stream {
    pub(crate) fn new(handle: u64, context: u64, flags: u32, priority: i32) -> Self {
        Self { handle, context, flags, priority, queue: Arc::default() }
    }

    /// The stream of a context that has no handle.
    pub(crate) fn legacy(context: u64) -> Self {
        Self::new(LEGACY, context, 0, 0)
    }

    fn is_blocking(&self) -> bool {
        self.flags & NON_BLOCKING == 0
    }
}

impl Process {
    /// The stream of a handle, in the thread's context for one of those that have fixed ones.
    ///
    /// # Errors
    ///
    /// There is none, or the thread has no context.
    pub(crate) fn stream(&self, handle: u64) -> Result<Arc<Stream>> {
        match handle {
            0 | LEGACY | PER_THREAD => Ok(Arc::clone(&crate::context::current()?.legacy)),
            _ => self.streams.get(handle).ok_or_else(|| {
                Refusal::new(Status::InvalidHandle, format!("{handle:#x} is no stream"))
            }),
        }
    }

    /// Has a stream do a piece of work, in its turn: that of the stream without a handle waits for
    /// all others of its context that do not say otherwise, and they for it.
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

    /// All streams of a context.
    pub(crate) fn streams_of(&self, context: &Context) -> Vec<Arc<Stream>> {
        let mut streams = self.streams.all();
        streams.retain(|stream| stream.context == context.handle);
        streams.push(Arc::clone(&context.legacy));
        streams
    }
}

/// Lets a stream wait for what another has to do so far.
fn wait_for(stream: &Arc<Stream>, other: &Arc<Stream>) -> Result<()> {
    if other.is_idle() {
        return Ok(());
    }
    let (other, ticket) = (Arc::clone(other), other.ticket());
    stream.submit(When::Now, move || {
        Ok(if other.has_done(ticket) { Progress::Done } else { Progress::Waiting })
    })
}
