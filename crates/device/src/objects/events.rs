//! Queues of events behind a file descriptor that programs poll.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};

use descriptors::Known;
use rustix::event::{EventfdFlags, eventfd};

use crate::refusal::{Kind, Refusal, Result};

/// Events and an eventfd in semaphore mode whose count is their number.
///
/// So the descriptor is readable exactly while an event waits, one read takes one event,
/// `O_NONBLOCK` works as on a kernel's channel, and each event is an edge for edge-triggered epoll.
#[derive(Debug)]
pub(crate) struct EventQueue<T> {
    fd: Known,
    queue: VecDeque<T>,
}

impl<T> EventQueue<T> {
    pub(crate) fn new() -> Result<Self> {
        let fd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::SEMAPHORE)
            .map_err(|error| Refusal::new(Kind::NoMemory, format!("eventfd: {error}")))?;
        Ok(Self { fd: Known::marked(fd), queue: VecDeque::new() })
    }

    /// Adds an event and makes the descriptor readable.
    pub(crate) fn push(&mut self, event: T) {
        self.queue.push_back(event);
        if self.fd.look().is_ok() {
            // An eventfd refuses a write only at 2^64 - 1, which no queue in memory reaches.
            let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.queue.is_empty()
    }

    /// Takes the oldest event, after the caller read once from the descriptor.
    pub(crate) fn pop(&mut self) -> Option<T> {
        self.queue.pop_front()
    }

    /// Replaces an eventfd that is shared with another process by a new one.
    pub(crate) fn detach(&mut self) {
        self.queue.clear();
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::SEMAPHORE;
        if let Ok(fresh) = eventfd(0, flags) {
            // At worst the old one stays, which a child should not read anyway.
            let _ = self.fd.replace(&fresh);
        }
    }

    /// Drops the events of an object that is destroyed, and their count on the descriptor.
    pub(crate) fn remove(&mut self, mut is_gone: impl FnMut(&T) -> bool) {
        let before = self.queue.len();
        self.queue.retain(|event| !is_gone(event));
        if self.queue.len() < before && self.fd.look().is_err() {
            return;
        }
        for _ in self.queue.len()..before {
            let mut poll = [rustix::event::PollFd::new(&self.fd, rustix::event::PollFlags::IN)];
            let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
            // Another thread may have read the count already: do not block on it.
            if rustix::event::poll(&mut poll, Some(&now)).is_ok_and(|ready| ready > 0) {
                let _ = rustix::io::read(&self.fd, &mut [0u8; 8]);
            }
        }
    }
}

impl<T> AsFd for EventQueue<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}
