//! Work in order: the basis of CUDA's streams and Level Zero's queues.
//!
//! The call that submits work does it, unless something before it in its queue is not done: a wait
//! for an event or for a value in memory, or a function of the program's. In that case it is
//! queued, and a thread that all queues share does it. A program cannot tell the difference, except
//! by the time that a call takes: work of a queue is done in order, and a queue is idle when all of
//! its work is done.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use crate::boundary::{LOG, caught};
use crate::refusal::{Error, Kind, Refusal};
use crate::worker::{self, Ordered};

/// Work in order. `E` is the error of the driver.
pub struct Queue<E> {
    state: Mutex<State<E>>,
    changed: Condvar,
}

/// The result of a piece of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "there is no third case")]
pub enum Progress {
    /// It is done.
    Done,
    /// What it waits for has not happened.
    Waiting,
}

/// When a piece of work may be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "there is no third case")]
pub enum When {
    /// In this call, if all work before it is done.
    Now,
    /// By the worker: a function of the program, which may take locks that the caller holds.
    Later,
}

type Work<E> = Box<dyn FnMut() -> Result<Progress, E> + Send>;

struct State<E> {
    work: VecDeque<Work<E>>,
    /// A thread does the first piece, without the lock.
    is_running: bool,
    submitted: u64,
    done: u64,
    /// The error that queued work met, for the next caller that waits.
    failure: Option<E>,
    is_abandoned: bool,
}

impl<E> fmt::Debug for Queue<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue").finish_non_exhaustive()
    }
}

impl<E: Error> Default for Queue<E> {
    fn default() -> Self {
        let state = State {
            work: VecDeque::new(),
            is_running: false,
            submitted: 0,
            done: 0,
            failure: None,
            is_abandoned: false,
        };
        Self { state: Mutex::new(state), changed: Condvar::new() }
    }
}

impl<E: Error> Queue<E> {
    /// Does a piece of work, or queues it.
    ///
    /// # Errors
    ///
    /// The queue was destroyed; or, if the work is done at once, its error.
    pub fn submit(
        self: &Arc<Self>,
        when: When,
        mut work: impl FnMut() -> Result<Progress, E> + Send + 'static,
    ) -> Result<(), E> {
        let mut state = self.lock();
        if state.is_abandoned {
            return Err(Refusal::new(Kind::Destroyed, "the stream was destroyed").into());
        }
        state.submitted += 1;
        if when == When::Later || state.is_running || !state.work.is_empty() {
            state.work.push_back(Box::new(work));
            drop(state);
            self.call();
            return Ok(());
        }
        state.is_running = true;
        drop(state);
        let answer = work();
        let mut state = self.lock();
        state.is_running = false;
        match &answer {
            Ok(Progress::Waiting) => state.work.push_front(Box::new(work)),
            _ => state.done += 1,
        }
        let is_left = !state.work.is_empty();
        drop(state);
        self.changed.notify_all();
        if is_left {
            self.call();
        }
        answer.map(|_| ())
    }

    fn call(self: &Arc<Self>) {
        let this: Arc<dyn Ordered> = Arc::<Self>::clone(self);
        worker::call(&this);
    }

    /// How much work there was so far.
    pub fn ticket(&self) -> u64 {
        self.lock().submitted
    }

    /// Whether this much work is done.
    pub fn has_done(&self, ticket: u64) -> bool {
        let state = self.lock();
        state.done >= ticket || state.is_abandoned
    }

    /// Whether all work is done.
    pub fn is_idle(&self) -> bool {
        let state = self.lock();
        state.done >= state.submitted || state.is_abandoned
    }

    /// Waits until all work so far is done.
    ///
    /// # Errors
    ///
    /// What queued work met.
    pub fn synchronize(&self) -> Result<(), E> {
        self.settled(None).failure.take().map_or(Ok(()), Err)
    }

    /// The same, until a point in time. Returns whether all of it is done.
    ///
    /// # Errors
    ///
    /// What queued work met.
    pub fn synchronize_until(&self, end: Option<Instant>) -> Result<bool, E> {
        let ticket = self.ticket();
        let mut state = self.settled(end);
        if state.done < ticket && !state.is_abandoned {
            return Ok(false);
        }
        state.failure.take().map_or(Ok(true), Err)
    }

    /// The same as [`synchronize`](Self::synchronize), and leaves errors of queued work to the
    /// caller that synchronizes.
    pub fn wait_idle(&self) {
        drop(self.settled(None));
    }

    /// The queue once all work so far is done, or at `end`.
    fn settled(&self, end: Option<Instant>) -> MutexGuard<'_, State<E>> {
        let mut state = self.lock();
        let ticket = state.submitted;
        while state.done < ticket && !state.is_abandoned {
            let Some(end) = end else {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        state
    }

    /// The queue ends: waiting work is not done any more.
    pub fn abandon(&self) {
        let mut state = self.lock();
        state.is_abandoned = true;
        state.work.clear();
        drop(state);
        self.changed.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State<E>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<E: Error> Ordered for Queue<E> {
    fn run_queued(&self) -> bool {
        loop {
            let mut state = self.lock();
            if state.is_running {
                return true;
            }
            let Some(mut work) = state.work.pop_front() else { return false };
            state.is_running = true;
            drop(state);
            let answer = caught("work of a stream", &mut work);
            let mut state = self.lock();
            state.is_running = false;
            match answer {
                Ok(Progress::Waiting) if !state.is_abandoned => {
                    state.work.push_front(work);
                    return true;
                }
                Ok(_) => state.done += 1,
                Err(refusal) => {
                    tracing::info!(target: LOG, "work of a stream: {refusal}");
                    state.failure.get_or_insert(refusal);
                    state.done += 1;
                }
            }
            drop(state);
            self.changed.notify_all();
        }
    }

    fn ticket(&self) -> u64 {
        self.lock().submitted
    }
}
