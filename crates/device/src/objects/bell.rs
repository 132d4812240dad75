//! Descriptors that are readable while events wait, and when they become so.
//!
//! Whoever is woken takes the engine's lock at once, often on the processor of the thread that
//! wakes it, so that neither gets on. So a bell rings when the engine is unlocked: the engine
//! collects those that are due ([`Bells`]), and whoever unlocks it rings them.

use std::io::IoSliceMut;
use std::mem;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use descriptors::Known;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::io::{Errno, ReadWriteFlags, preadv2};
use threads::whole::Mutex;

use crate::rdma_cm::Sink;
use crate::refusal::{Kind, Refusal, Result};
use crate::waits::Waits;

/// An eventfd in semaphore mode whose count is the number of events that wait, less those for which
/// it has not rung yet.
///
/// So the descriptor is readable only while an event waits, one read takes one event, `O_NONBLOCK`
/// works as on a kernel's channel, and each event is an edge for edge-triggered epoll.
#[derive(Debug)]
pub(crate) struct Bell {
    fd: Known,
    /// Events that the descriptor does not count yet.
    unrung: AtomicU64,
    /// Held while it rings.
    ringing: Mutex<()>,
}

impl Bell {
    pub(crate) fn new(flags: EventfdFlags) -> Result<Self> {
        let fd = eventfd(0, flags | EventfdFlags::CLOEXEC | EventfdFlags::SEMAPHORE)
            .map_err(|error| Refusal::new(Kind::NoMemory, format!("eventfd: {error}")))?;
        Ok(Self { fd: Known::marked(fd), unrung: AtomicU64::new(0), ringing: Mutex::default() })
    }

    /// There is one event more, for which the bell is to be rung.
    pub(crate) fn add(&self) {
        self.unrung.fetch_add(1, Ordering::Relaxed);
    }

    /// Rings for the events that were added.
    pub(crate) fn ring(&self) {
        if self.unrung.load(Ordering::Relaxed) == 0 {
            return;
        }
        let _ringing = self.ringing.lock();
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

    /// Takes the count of an event that was taken.
    pub(crate) fn take_count(&self) {
        if self.take_back() {
            return;
        }
        // Most often the bell has woken the thread that comes here, and the thread that rang has
        // the lock still.
        if self.fd.look().is_ok() && !self.read() {
            let _ringing = self.ringing.lock();
            // In this order: while nobody rings, the descriptor counts less and less, and those
            // that it does not count become more.
            if !self.read() {
                self.take_back();
            }
        }
    }

    /// Takes the count of an event that was taken, if another thread has not read it already.
    /// Returns whether it was there.
    pub(crate) fn take_count_if_there(&self) -> bool {
        if self.take_back() {
            return true;
        }
        let _ringing = self.ringing.lock();
        self.take_back() || (self.fd.look().is_ok() && self.read())
    }

    /// Takes one event from the descriptor if it counts any. It does not wait, even if programs
    /// have made the descriptor block and read at the same time.
    fn read(&self) -> bool {
        let mut count = [0u8; 8];
        let mut rooms = [IoSliceMut::new(&mut count)];
        match preadv2(&self.fd, &mut rooms, u64::MAX, ReadWriteFlags::NOWAIT) {
            Ok(_) => true,
            Err(Errno::AGAIN) => false,
            // Eventfds know the flag since Linux 5.8, and some sandboxes do not.
            Err(_) => {
                let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
                poll(&mut fds, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
                    && rustix::io::read(&self.fd, &mut [0u8; 8]).is_ok()
            }
        }
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
pub(crate) struct Ringing(Bells);

impl Ringing {
    /// Takes all bells that are due.
    #[inline]
    pub(crate) fn take(&mut self, bells: &mut Bells) {
        self.0 = bells.take();
    }
}

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
    use std::time::Duration;

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
    fn a_descriptor_that_blocks_holds_nobody_up() {
        let bell = Bell::new(EventfdFlags::empty()).expect("descriptors are free");
        assert!(!bell.read());
        bell.add();
        bell.ring();
        assert!(bell.read() && !bell.read());
    }

    #[test]
    fn who_takes_an_event_waits_for_the_thread_that_rings_for_it() {
        let bell = Bell::new(EventfdFlags::NONBLOCK).expect("descriptors are free");
        let takes: [fn(&Bell); 2] = [Bell::take_count, |bell| _ = bell.take_count_if_there()];
        for take in takes {
            bell.add();
            std::thread::scope(|scope| {
                // As in the midst of `ring`.
                let ringing = bell.ringing.lock();
                assert_eq!(bell.unrung.swap(0, Ordering::Relaxed), 1);
                let taker = scope.spawn(|| take(&bell));
                std::thread::sleep(Duration::from_millis(20));
                assert!(!taker.is_finished());
                rustix::io::write(&bell, &1u64.to_ne_bytes()).expect("there is room");
                drop(ringing);
            });
            assert_eq!(count(&bell), 0);
        }
    }
}
