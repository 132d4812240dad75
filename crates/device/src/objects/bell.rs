//! Descriptors that are readable while events wait, and when they become so.
//!
//! Whoever is woken takes the engine's lock at once, often on the processor of the thread that
//! wakes it, so that neither gets on. So a bell rings when the engine is unlocked: the engine
//! collects those that are due ([`Bells`]), and whoever unlocks it rings them.

use std::mem;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use descriptors::Known;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::Errno;

use crate::rdma_cm::Sink;
use crate::refusal::{Kind, Refusal, Result};
use crate::waits::Waits;

/// How long the thread that rings for an event may take, which has only a system call to make.
const PATIENCE: Duration = Duration::from_millis(900);

/// An eventfd in semaphore mode whose count is the number of events that wait.
///
/// So the descriptor is readable exactly while an event waits, one read takes one event,
/// `O_NONBLOCK` works as on a kernel's channel, and each event is an edge for edge-triggered epoll.
#[derive(Debug)]
pub(crate) struct Bell {
    fd: Known,
    /// Events that are not counted by the descriptor yet.
    unrung: AtomicU64,
}

impl Bell {
    pub(crate) fn new(flags: EventfdFlags) -> Result<Self> {
        let fd = eventfd(0, flags | EventfdFlags::CLOEXEC | EventfdFlags::SEMAPHORE)
            .map_err(|error| Refusal::new(Kind::NoMemory, format!("eventfd: {error}")))?;
        Ok(Self { fd: Known::marked(fd), unrung: AtomicU64::new(0) })
    }

    /// There is one event more, for which the bell is to be rung.
    pub(crate) fn add(&self) {
        self.unrung.fetch_add(1, Ordering::Relaxed);
    }

    /// Rings for the events that were added.
    pub(crate) fn ring(&self) {
        let count = self.unrung.swap(0, Ordering::Relaxed);
        if count > 0 && self.fd.look().is_ok() {
            // An eventfd refuses a write only at 2^64 - 1, which no queue in memory reaches.
            let _ = rustix::io::write(&self.fd, &count.to_ne_bytes());
        }
    }

    /// An event was taken before the bell rang for it, if there is such an event.
    fn take_back(&self) -> bool {
        let less = |unrung: u64| unrung.checked_sub(1);
        self.unrung.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }

    /// Takes the count of an event that was taken, if another thread has not read it already.
    pub(crate) fn take_count_if_there(&self) {
        if !self.take_back() && self.fd.look().is_ok() && self.is_readable(Duration::ZERO) {
            let _ = self.read();
        }
    }

    /// Takes the count of an event that was taken, from a descriptor that does not block. The
    /// thread that rings for it may not be done: then it is awaited.
    pub(crate) fn take_count(&self) {
        if self.take_back() || self.fd.look().is_err() {
            return;
        }
        if self.read() == Err(Errno::AGAIN) && self.is_readable(PATIENCE) {
            let _ = self.read();
        }
    }

    fn is_readable(&self, patience: Duration) -> bool {
        let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
        let patience = Timespec { tv_sec: 0, tv_nsec: patience.subsec_nanos().into() };
        poll(&mut fds, Some(&patience)).is_ok_and(|ready| ready > 0)
    }

    fn read(&self) -> std::result::Result<usize, Errno> {
        rustix::io::read(&self.fd, &mut [0u8; 8])
    }

    /// In a forked child: puts a new eventfd in the place of the one that it shares with its
    /// parent.
    pub(crate) fn detach(&mut self) {
        *self.unrung.get_mut() = 0;
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::SEMAPHORE;
        if let Ok(fresh) = eventfd(0, flags) {
            // At worst the old one stays, which a child should not read anyway.
            let _ = self.fd.replace(&fresh);
        }
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

#[derive(Debug)]
enum Due {
    Events(Arc<Bell>),
    Sink(Arc<dyn Sink>),
    /// The background thread.
    Thread(Arc<Waits>),
}

/// The bells that are to be rung when the engine is unlocked.
#[derive(Debug, Default)]
#[must_use]
pub(crate) struct Bells(Vec<Due>);

impl Bells {
    /// An event of this bell was added.
    pub(crate) fn of_events(&mut self, bell: &Arc<Bell>) {
        let is_last = matches!(self.0.last(), Some(Due::Events(last)) if Arc::ptr_eq(last, bell));
        if !is_last {
            self.0.push(Due::Events(Arc::clone(bell)));
        }
    }

    /// This sink has taken an event.
    pub(crate) fn of_sink(&mut self, sink: &Arc<dyn Sink>) {
        let is_last = matches!(self.0.last(), Some(Due::Sink(last)) if Arc::ptr_eq(last, sink));
        if !is_last {
            self.0.push(Due::Sink(Arc::clone(sink)));
        }
    }

    /// The background thread is to wake up.
    pub(crate) fn of_thread(&mut self, waits: &Arc<Waits>) {
        self.0.push(Due::Thread(Arc::clone(waits)));
    }

    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes all out, for the caller to ring.
    pub(crate) fn take(&mut self) -> Self {
        mem::take(self)
    }

    /// Rings all.
    pub(crate) fn ring(self) {
        for due in self.0 {
            match due {
                Due::Events(bell) => bell.ring(),
                Due::Sink(sink) => sink.ring(),
                Due::Thread(waits) => waits.wake(),
            }
        }
    }
}

/// Bells that are rung when this is dropped.
#[derive(Debug, Default)]
pub(crate) struct Ringing(pub(crate) Bells);

impl Drop for Ringing {
    #[inline]
    fn drop(&mut self) {
        if !self.0.is_empty() {
            self.0.take().ring();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn count(bell: &Bell) -> usize {
        std::iter::from_fn(|| rustix::io::read(bell, &mut [0u8; 8]).ok()).count()
    }

    #[test]
    fn a_bell_counts_the_events_that_nobody_took_before_it_rang() {
        let bell = Bell::new(EventfdFlags::NONBLOCK).expect("descriptors are free");
        (0..3).for_each(|_| bell.add());
        assert_eq!(count(&bell), 0, "it has not rung");
        bell.take_count();
        bell.ring();
        bell.ring();
        bell.take_count_if_there();
        assert_eq!(count(&bell), 1);
    }

    #[test]
    fn who_took_an_event_waits_for_the_bell_that_rings_for_it() {
        let bell = Bell::new(EventfdFlags::NONBLOCK).expect("descriptors are free");
        // As between the two halves of `ring`.
        bell.add();
        assert_eq!(bell.unrung.swap(0, Ordering::Relaxed), 1);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(20));
                rustix::io::write(&bell, &1u64.to_ne_bytes()).expect("there is room");
            });
            bell.take_count();
        });
        assert_eq!(count(&bell), 0);
    }
}
