//! A queue of events behind a descriptor that a program may poll. The type of the events is a
//! parameter.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use descriptors::Known;
use threads::whole;

use super::bell::Bell;
use super::{Answer, Failure};

/// The queue of a channel, oldest event first.
#[derive(Debug)]
pub(super) struct Channel<E> {
    bell: Bell,
    /// The first event is there, and the bell is to be rung for it. Set with the queue locked, and
    /// cleared with `ringing` held.
    is_due: AtomicBool,
    /// Held while it rings; taken while the queue is locked, and not the other way round.
    ringing: whole::Mutex<()>,
    queue: Mutex<VecDeque<E>>,
}

impl<E> Channel<E> {
    pub(super) fn new() -> Answer<Self> {
        let bell = Bell::new().map_err(|error| {
            let what = format!("rdma_create_event_channel: {error}");
            Failure::new(error.raw_os_error(), what)
        })?;
        Ok(Self {
            bell,
            is_due: AtomicBool::new(false),
            ringing: whole::Mutex::default(),
            queue: Mutex::default(),
        })
    }

    /// The descriptor that is readable while an event waits.
    pub(super) fn descriptor(&self) -> &Known {
        self.bell.descriptor()
    }

    /// Adds an event, and tells of it.
    pub(super) fn push(&self, entry: E) {
        self.add(entry);
        self.ring();
    }

    /// Adds an event, of which [`Channel::ring`] tells.
    pub(super) fn add(&self, entry: E) {
        let mut queue = self.queue();
        queue.push_back(entry);
        if queue.len() == 1 {
            self.is_due.store(true, Ordering::Relaxed);
        }
    }

    /// Tells of the events that were added. Whoever is woken takes the engine's lock and the
    /// queue's, so neither is held here.
    pub(super) fn ring(&self) {
        if !self.is_due.load(Ordering::Relaxed) {
            return;
        }
        let _ringing = self.ringing.lock();
        if self.is_due.swap(false, Ordering::Relaxed) {
            self.bell.ring();
        }
    }

    /// There are no events any more. The queue is locked.
    fn fall_silent(&self) {
        // Most often the bell has woken the thread that comes here, and the thread that rang has
        // the lock still.
        if !self.bell.silence() {
            let _ringing = self.ringing.lock();
            self.is_due.store(false, Ordering::Relaxed);
            self.bell.silence();
        }
    }

    /// Takes the oldest event, and waits for one unless the program made the descriptor
    /// non-blocking. `taken` sees the event while the queue is still locked; `about_to_wait` is
    /// called before a wait, with nothing locked, and may have caused an event.
    ///
    /// # Errors
    /// As [`Bell::wait`].
    pub(super) fn take(&self, taken: impl Fn(&E), about_to_wait: impl Fn()) -> Answer<E> {
        loop {
            let mut queue = self.queue();
            if let Some(entry) = queue.pop_front() {
                taken(&entry);
                if queue.is_empty() {
                    self.fall_silent();
                }
                return Ok(entry);
            }
            drop(queue);
            if self.bell.blocks() {
                about_to_wait();
            }
            self.bell.wait()?;
        }
    }

    /// Takes out the events for which `is_it` holds.
    pub(super) fn remove_if(&self, is_it: impl Fn(&E) -> bool) -> Vec<E> {
        let mut queue = self.queue();
        // Most often there is none.
        if !queue.iter().any(&is_it) {
            return Vec::new();
        }
        let mut out = Vec::new();
        let mut rest = VecDeque::with_capacity(queue.len());
        for entry in queue.drain(..) {
            if is_it(&entry) {
                out.push(entry);
            } else {
                rest.push_back(entry);
            }
        }
        *queue = rest;
        if queue.is_empty() {
            self.fall_silent();
        }
        out
    }

    fn queue(&self) -> MutexGuard<'_, VecDeque<E>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
