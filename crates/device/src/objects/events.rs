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
    /// Counts that threads have read for events that others took.
    read_early: u64,
}

impl<T> EventQueue<T> {
    pub(crate) fn new() -> Result<Self> {
        let bell = Arc::new(Bell::new(EventfdFlags::empty())?);
        Ok(Self { bell, queue: VecDeque::new(), read_early: 0 })
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
        if self.read_early > 0 {
            // What it read is the count of an event that another thread took.
            self.read_early -= 1;
            return self.take();
        }
        self.queue.pop_front()
    }

    /// Takes the oldest event and its count.
    pub(crate) fn take(&mut self) -> Option<T> {
        let event = self.queue.pop_front()?;
        self.take_count();
        Some(event)
    }

    /// Takes the count of an event that was taken. A thread that has read it already comes to
    /// [`EventQueue::pop`].
    fn take_count(&mut self) {
        if !self.bell.take_count_if_there() {
            self.read_early += 1;
        }
    }

    /// In a forked child: has a descriptor of its own from now on.
    pub(crate) fn detach(&mut self) {
        self.queue.clear();
        self.read_early = 0;
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
            self.take_count();
        }
    }
}

impl<T> AsFd for EventQueue<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One thread reads the descriptor, as programs do, and another takes the event.
    #[test]
    fn each_event_has_one_count_whoever_takes_it() {
        let mut queue = EventQueue::new().expect("descriptors are free");
        let push = |queue: &mut EventQueue<u32>, event| {
            let mut bells = Bells::default();
            queue.push(event, &mut bells);
            bells.ring();
        };
        let read = |queue: &EventQueue<u32>| {
            let flags = rustix::io::ReadWriteFlags::NOWAIT;
            let mut count = [0u8; 8];
            let mut rooms = [std::io::IoSliceMut::new(&mut count)];
            rustix::io::preadv2(queue, &mut rooms, u64::MAX, flags).is_ok()
        };
        push(&mut queue, 1);
        assert!(read(&queue));
        assert_eq!(queue.take(), Some(1));
        push(&mut queue, 2);
        assert_eq!(queue.pop(), Some(2), "to the one that has read");
        assert!(!read(&queue));
        push(&mut queue, 3);
        assert!(read(&queue));
        queue.remove(|_| true);
        assert_eq!(queue.pop(), None);
        push(&mut queue, 4);
        assert!(read(&queue));
        assert_eq!(queue.pop(), Some(4));
    }
}
