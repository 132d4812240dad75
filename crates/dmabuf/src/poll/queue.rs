//! The waiters for a buffer, and what they wait for.

use std::fmt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Instant;

use crate::fence::left_until;
use crate::resv::Usage;

bitflags::bitflags! {
    /// What to wait for on a buffer.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct PollEvents: u8 {
        /// The content can be read: there are no writers (POLLIN).
        #[doc(alias = "POLLIN")]
        const READ = 1;
        /// The content can be overwritten: there are no writers or readers (POLLOUT).
        #[doc(alias = "POLLOUT")]
        const WRITE = 2;
    }
}

/// The waiters for a buffer.
#[derive(Default)]
pub(crate) struct PollQueue {
    state: Mutex<State>,
    woken: Condvar,
}

#[derive(Default)]
pub(crate) struct State {
    /// Directions that have a callback on a fence.
    pub(crate) armed: PollEvents,
    /// Counts wake-ups.
    pub(crate) wakes: u64,
    pub(crate) listeners: Vec<(u64, Listener)>,
    pub(crate) next_listener: u64,
}

pub(crate) type Listener = Arc<dyn Fn(PollEvents) + Send + Sync>;

/// A function that is called at wake-ups, until this is dropped.
#[must_use = "the function is forgotten when the value is dropped"]
pub struct PollListener {
    pub(crate) queue: Weak<PollQueue>,
    pub(crate) id: u64,
}

impl PollEvents {
    /// The fences that must be signaled.
    pub(crate) fn class(self) -> Usage {
        Usage::implicit(self.contains(Self::WRITE))
    }
}

impl Default for PollEvents {
    fn default() -> Self {
        Self::empty()
    }
}

impl PollQueue {
    /// The fence of a direction is signaled: all waiters check again.
    pub(crate) fn wake(&self, event: PollEvents) {
        let listeners: Vec<_> = {
            let mut state = self.state();
            state.armed &= !event;
            state.wakes += 1;
            state.listeners.iter().map(|(_, listener)| Arc::clone(listener)).collect()
        };
        self.woken.notify_all();
        for listener in listeners {
            listener(event);
        }
    }

    /// Waits for a wake-up after the first `wakes`; `false` if the time has passed.
    pub(crate) fn wait(&self, wakes: u64, deadline: Option<Instant>) -> bool {
        let mut state = self.state();
        while state.wakes == wakes {
            state = match left_until(deadline) {
                None => self.woken.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(left) if left.is_zero() => return false,
                Some(left) => {
                    self.woken.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        true
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for PollListener {
    fn drop(&mut self) {
        let Some(queue) = self.queue.upgrade() else { return };
        let mut state = queue.state();
        let at = state.listeners.iter().position(|(id, _)| *id == self.id);
        let listener = at.map(|at| state.listeners.remove(at));
        drop(state);
        drop(listener);
    }
}

impl fmt::Debug for PollListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PollListener").field("id", &self.id).finish_non_exhaustive()
    }
}
