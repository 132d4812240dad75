//! Waiting for a buffer, as `poll` of its file does.
//!
//! Rules: `docs/semantics.md` 1.9. Reading is possible when the writers are done, writing when all
//! users are; fences of class [`Bookkeep`](Usage::Bookkeep) never count. A direction that is not
//! ready arms one callback, on one fence; when that is signaled, all waiters check again. A second
//! check of an armed direction returns "not ready" and relies on the first one's callback.

pub(crate) mod file;
pub(crate) mod queue;

use std::sync::Arc;
use std::time::Duration;

use rustix::event::PollFlags;

use self::file::poll_one;
pub use self::queue::{PollEvents, PollListener};
use crate::buf::DmaBuf;
use crate::fence::{TimedOut, deadline_of, left_until};
use crate::resv::Usage;

/// How often an exporter in another process is asked.
const ASK_AGAIN: Duration = Duration::from_millis(1);

impl DmaBuf {
    /// Waits, at most for `limit`, until all users that an access must wait for are done: writers,
    /// and for a write also readers. For a buffer of another process, this asks the exporter
    /// repeatedly.
    ///
    /// # Errors
    ///
    /// [`TimedOut`].
    pub fn wait_access(&self, writes: bool, limit: Option<Duration>) -> Result<(), TimedOut> {
        let deadline = deadline_of(limit);
        self.resv().wait(Usage::implicit(writes), limit)?;
        let Some(remote) = self.shared().remote() else { return Ok(()) };
        loop {
            match remote.is_idle(writes) {
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

    /// Which of `events` are ready now. For each of the others, waiters (in
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

    /// Waits until one of `events` is ready, at most for `limit`, and returns which are ready: none
    /// if the time has passed, or if none were requested.
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
                // The fences known to this process are done; the kernel knows the others.
                return self.poll_file(ready, left_until(deadline));
            }
            if !self.shared().poll.wait(wakes, deadline) {
                return PollEvents::empty();
            }
        }
    }

    /// Calls `listener` with the directions that may have become ready, each time a fence that
    /// [`poll`](Self::poll) armed is signaled. It runs inside a
    /// [`SignallingSection`](crate::SignallingSection), so it must not poll, but have another
    /// thread poll.
    ///
    /// For a file descriptor to wait on, use [`export_sync_file`](Self::export_sync_file).
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
