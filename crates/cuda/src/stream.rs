//! Streams: work in order.
//!
//! Work is done by the call that brings it, unless something before it in its stream is not done: a wait for an event or for a
//! value in memory, or a function of the program's. Then it is queued, and the [worker](crate::worker) does it. A program cannot
//! tell, but for the time that a call takes: work of a stream is done in order, and a stream is idle when all of it is.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use crate::context::Context;
use crate::process::Process;
use crate::status::{Refusal, Result, Status};
use crate::worker;

/// A stream.
pub(crate) struct Stream {
    pub(crate) handle: u64,
    /// The handle of its context.
    pub(crate) context: u64,
    pub(crate) flags: u32,
    pub(crate) priority: i32,
    queue: Mutex<Queue>,
    changed: Condvar,
}

/// What came of a piece of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    /// It is done.
    Done,
    /// What it waits for is not there.
    Waiting,
}

/// When a piece of work may be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum When {
    /// By this call, if all before it is done.
    Now,
    /// By the worker: a function of the program's, which may take locks that the caller holds.
    Later,
}

type Work = Box<dyn FnMut() -> Result<Progress> + Send>;

#[derive(Default)]
struct Queue {
    work: VecDeque<Work>,
    /// Somebody does the first piece, without the lock.
    is_running: bool,
    submitted: u64,
    done: u64,
    /// What queued work met, for the next who waits.
    failure: Option<Refusal>,
    is_abandoned: bool,
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
        let (queue, changed) = (Mutex::default(), Condvar::new());
        Self { handle, context, flags, priority, queue, changed }
    }

    /// The stream of a context that has no handle.
    pub(crate) fn legacy(context: u64) -> Self {
        Self::new(LEGACY, context, 0, 0)
    }

    fn is_blocking(&self) -> bool {
        self.flags & NON_BLOCKING == 0
    }

    /// Does a piece of work, or queues it.
    ///
    /// # Errors
    ///
    /// The stream was destroyed; or, if it is done at once, what it met.
    pub(crate) fn submit(
        self: &Arc<Self>,
        when: When,
        mut work: impl FnMut() -> Result<Progress> + Send + 'static,
    ) -> Result<()> {
        let mut queue = self.lock();
        if queue.is_abandoned {
            return Err(Refusal::new(Status::InvalidHandle, "the stream was destroyed"));
        }
        queue.submitted += 1;
        if when == When::Later || queue.is_running || !queue.work.is_empty() {
            queue.work.push_back(Box::new(work));
            drop(queue);
            worker::call(self);
            return Ok(());
        }
        queue.is_running = true;
        drop(queue);
        let answer = work();
        let mut queue = self.lock();
        queue.is_running = false;
        match &answer {
            Ok(Progress::Waiting) => queue.work.push_front(Box::new(work)),
            _ => queue.done += 1,
        }
        let is_left = !queue.work.is_empty();
        drop(queue);
        self.changed.notify_all();
        if is_left {
            worker::call(self);
        }
        answer.map(|_| ())
    }

    /// Does queued work, up to what must wait. Returns whether some is left.
    pub(crate) fn run_queued(&self) -> bool {
        loop {
            let mut queue = self.lock();
            if queue.is_running {
                return true;
            }
            let Some(mut work) = queue.work.pop_front() else { return false };
            queue.is_running = true;
            drop(queue);
            let answer = crate::boundary::caught("work of a stream", &mut work);
            let mut queue = self.lock();
            queue.is_running = false;
            match answer {
                Ok(Progress::Waiting) if !queue.is_abandoned => {
                    queue.work.push_front(work);
                    return true;
                }
                Ok(_) => queue.done += 1,
                Err(refusal) => {
                    tracing::info!(target: crate::boundary::LOG, "work of a stream: {refusal}");
                    queue.failure.get_or_insert(refusal);
                    queue.done += 1;
                }
            }
            drop(queue);
            self.changed.notify_all();
        }
    }

    /// How much work there was so far.
    pub(crate) fn ticket(&self) -> u64 {
        self.lock().submitted
    }

    /// Whether so much work is done.
    pub(crate) fn has_done(&self, ticket: u64) -> bool {
        let queue = self.lock();
        queue.done >= ticket || queue.is_abandoned
    }

    /// Whether all work is done.
    pub(crate) fn is_idle(&self) -> bool {
        let queue = self.lock();
        queue.done >= queue.submitted || queue.is_abandoned
    }

    /// Waits until all work so far is done.
    ///
    /// # Errors
    ///
    /// What queued work met.
    pub(crate) fn synchronize(&self) -> Result<()> {
        self.settled().failure.take().map_or(Ok(()), Err)
    }

    /// The same, and leaves what queued work met to who synchronizes.
    pub(crate) fn wait_idle(&self) {
        drop(self.settled());
    }

    /// The queue once all work so far is done.
    fn settled(&self) -> MutexGuard<'_, Queue> {
        let mut queue = self.lock();
        let ticket = queue.submitted;
        while queue.done < ticket && !queue.is_abandoned {
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
        queue
    }

    /// The stream ends: what waits is not done any more.
    pub(crate) fn abandon(&self) {
        let mut queue = self.lock();
        queue.is_abandoned = true;
        queue.work.clear();
        drop(queue);
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// Has a stream do a piece of work, in its turn: that of the stream without a handle waits for all others of its context
    /// that do not say otherwise, and they for it.
    ///
    /// # Errors
    ///
    /// As [`Stream::submit`].
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
