//! Waiting for a buffer as `poll` of its file does.
//!
//! Rules: `docs/semantics.md` 1.9. Reading is possible when the writers are done, writing when all
//! users are; fences of class [`Bookkeep`](Usage::Bookkeep) never count. A direction that is not
//! ready arms one callback, on one fence; when that is signaled, all waiters check again. A second
//! check of an armed direction returns "not ready" and relies on the first one's callback.

use std::fmt;
use std::os::fd::BorrowedFd;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;

use crate::DmaBuf;
use crate::fence::{TimedOut, deadline_of, left_until};
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
struct State {
    /// Directions that have a callback on a fence.
    armed: PollEvents,
    /// Counts wake-ups.
    wakes: u64,
    listeners: Vec<(u64, Listener)>,
    next_listener: u64,
}

type Listener = Arc<dyn Fn(PollEvents) + Send + Sync>;

/// A function that hears of wake-ups, until this is dropped.
#[must_use = "the function is forgotten when the value is dropped"]
pub struct PollListener {
    queue: Weak<PollQueue>,
    id: u64,
}

/// How often an exporter in another process is asked.
const ASK_AGAIN: Duration = Duration::from_millis(1);

impl DmaBuf {
    /// Waits, at most for `limit`, until all users that an access must wait for are done: writers,
    /// and for a write also readers. For a buffer of another process, the exporter knows, and is
    /// asked repeatedly.
    ///
    /// # Errors
    ///
    /// [`TimedOut`].
    pub fn wait_access(&self, writes: bool, limit: Option<Duration>) -> Result<(), TimedOut> {
        let deadline = deadline_of(limit);
        self.resv().wait(Usage::implicit(writes), limit)?;
        let Some(proxy) = self.shared().proxy() else { return Ok(()) };
        loop {
            match proxy.poll(writes) {
                Ok(false) => {}
                // If the exporter is gone, no work is in progress.
                Ok(true) | Err(_) => return Ok(()),
            }
            match left_until(deadline) {
                Some(Duration::ZERO) => return Err(TimedOut),
                left => std::thread::sleep(left.map_or(ASK_AGAIN, |left| left.min(ASK_AGAIN))),
            }
        }
    }

    /// Which of `events` are ready now. For each other one, a waiter (in
    /// [`poll_wait`](Self::poll_wait) or with [`poll_listen`](Self::poll_listen)) will be woken.
    #[doc(alias = "dma_buf_poll")]
    pub fn poll(&self, events: PollEvents) -> PollEvents {
        let ready = self.poll_fences(events);
        if ready.is_empty() || !self.is_kernel() {
            ready
        } else {
            self.poll_file(ready, Some(Duration::ZERO))
        }
    }

    /// Waits until one of `events` is ready, at most for `limit`, and returns which are: none if
    /// the time passed, or if none were requested.
    pub fn poll_wait(&self, events: PollEvents, limit: Option<Duration>) -> PollEvents {
        let deadline = deadline_of(limit);
        if events.is_empty() {
            return events;
        }
        loop {
            let wakes = self.shared().poll.state().wakes;
            let ready = self.poll_fences(events);
            if !ready.is_empty() {
                if !self.is_kernel() {
                    return ready;
                }
                // The fences that this process knows are done; the kernel knows the others.
                return self.poll_file(ready, left_until(deadline));
            }
            if !self.shared().poll.wait(wakes, deadline) {
                return PollEvents::empty();
            }
        }
    }

    /// Calls `listener` with the directions that may have become ready, each time a fence that
    /// [`poll`](Self::poll) armed is signaled. It runs inside a
    /// [`SignallingSection`](crate::SignallingSection): it must not poll there, but tell a thread
    /// that does.
    ///
    /// For a file descriptor to wait on, take [`export_sync_file`](Self::export_sync_file).
    pub fn poll_listen(
        &self,
        listener: impl Fn(PollEvents) + Send + Sync + 'static,
    ) -> PollListener {
        let queue = &self.shared().poll;
        let mut state = queue.state();
        let id = state.next_listener;
        state.next_listener += 1;
        state.listeners.push((id, Arc::new(listener)));
        PollListener { queue: Arc::downgrade(queue), id }
    }

    /// The fences that this process knows of.
    fn poll_fences(&self, events: PollEvents) -> PollEvents {
        self.resv().assert_unlocked("poll");
        let queue = &self.shared().poll;
        let mut ready = PollEvents::empty();
        for event in events.iter() {
            {
                let mut state = queue.state();
                if state.armed.contains(event) {
                    continue;
                }
                state.armed |= event;
            }
            let resv = self.resv().lock();
            let armed = resv.resv().fences(event.class()).iter().any(|(fence, _)| {
                let queue = Arc::clone(queue);
                fence.add_callback(move |_| queue.wake(event)).is_ok()
            });
            drop(resv);
            if !armed {
                // Nothing to wait for. A thread that checked meanwhile found the direction armed,
                // and checks again.
                queue.wake(event);
                ready |= event;
            }
        }
        ready
    }

    /// The fences that the kernel knows of.
    fn poll_file(&self, events: PollEvents, limit: Option<Duration>) -> PollEvents {
        let mut flags = PollFlags::empty();
        flags.set(PollFlags::IN, events.contains(PollEvents::READ));
        flags.set(PollFlags::OUT, events.contains(PollEvents::WRITE));
        let answer = poll_one(self.fd(), flags, limit);
        let mut ready = PollEvents::empty();
        ready.set(PollEvents::READ, answer.contains(PollFlags::IN));
        ready.set(PollEvents::WRITE, answer.contains(PollFlags::OUT));
        ready & events
    }
}

impl PollEvents {
    /// The fences that must be signaled.
    fn class(self) -> Usage {
        Usage::implicit(self.contains(Self::WRITE))
    }
}

impl Default for PollEvents {
    fn default() -> Self {
        Self::empty()
    }
}

impl PollQueue {
    /// The fence of a direction is signaled: everybody looks again.
    fn wake(&self, event: PollEvents) {
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

    /// Waits for a wake-up after the first `wakes`; `false` if the time passed.
    fn wait(&self, wakes: u64, deadline: Option<Instant>) -> bool {
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

    fn state(&self) -> MutexGuard<'_, State> {
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

/// Polls one file: what is ready when something is, or when the time passed.
pub(crate) fn poll_one(
    file: BorrowedFd<'_>,
    flags: PollFlags,
    limit: Option<Duration>,
) -> PollFlags {
    let deadline = deadline_of(limit);
    loop {
        let mut fds = [PollFd::from_borrowed_fd(file, flags)];
        let left = left_until(deadline).map(|left| Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(left.subsec_nanos()),
        });
        match rustix::event::poll(&mut fds, left.as_ref()) {
            Err(Errno::INTR) => {}
            Ok(_) => return fds[0].revents(),
            Err(errno) => {
                tracing::warn!("poll failed: {errno}");
                return PollFlags::empty();
            }
        }
    }
}
