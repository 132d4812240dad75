//! Queues of events behind a file descriptor that programs poll.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use rustix::event::EventfdFlags;

use super::bell::{Bell, Bells};
use crate::refusal::Result;

/// Events and a bell that counts them.
#[derive(Debug)]
pub(crate) struct EventQueue<T> {
    bell: Arc<Bell>,
    queue: VecDeque<T>,
}

impl<T> EventQueue<T> {
    pub(crate) fn new() -> Result<Self> {
        Ok(Self { bell: Arc::new(Bell::new(EventfdFlags::empty())?), queue: VecDeque::new() })
    }

    /// Adds an event. The descriptor becomes readable when the engine is unlocked.
    pub(crate) fn push(&mut self, event: T, bells: &mut Bells) {
        self.queue.push_back(event);
        self.bell.add();
        bells.of_events(&self.bell);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Takes the oldest event, after the caller read once from the descriptor.
    pub(crate) fn pop(&mut self) -> Option<T> {
        self.queue.pop_front()
    }

    /// In a forked child: has a descriptor of its own from now on.
    pub(crate) fn detach(&mut self) {
        self.queue.clear();
        // Unless a thread of the parent was about to ring: see [`Bell::detach`].
        if let Some(bell) = Arc::get_mut(&mut self.bell) {
            bell.detach();
        }
    }

    /// Drops the events of an object that is destroyed, and their count on the descriptor.
    pub(crate) fn remove(&mut self, mut is_gone: impl FnMut(&T) -> bool) {
        let before = self.queue.len();
        self.queue.retain(|event| !is_gone(event));
        for _ in self.queue.len()..before {
            // Another thread may have read the count already: do not wait for it.
            self.bell.take_count_if_there();
        }
    }
}

impl<T> AsFd for EventQueue<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}
