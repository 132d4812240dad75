//! A queue of events behind a descriptor that a program may poll. The type of the events is a
//! parameter.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use descriptors::Known;
use device::{Engine, Hca};
use threads::whole;

use super::bell::Bell;
use super::{Answer, Failure};
use crate::abi::cancel::{After, Step, wait_uncancelled};
use crate::abi::waiting::{Next, Waiting, blocks};

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
    waiting: Waiting,
}

/// What a step has led to.
#[derive(Debug)]
pub(super) enum Taken<E> {
    Entry(E),
    /// Nothing yet: the call goes on with this step.
    NotYet(Step),
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
            waiting: Waiting::default(),
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
        if self.is_due.load(Ordering::Relaxed) {
            let _ringing = self.ringing.lock();
            if self.is_due.swap(false, Ordering::Relaxed) {
                // It has not rung for what was there.
                return;
            }
        }
        // Most often the bell has woken the thread that comes here, and the thread that rang has
        // the lock still.
        if !self.bell.silence() {
            let _ringing = self.ringing.lock();
            self.is_due.store(false, Ordering::Relaxed);
            self.bell.silence();
        }
    }

    /// Takes the oldest event, and waits for one unless the program made the descriptor
    /// non-blocking. `taken` sees the event while the queue is still locked. `hca` names a device
    /// that may cause events, and lets go on others that do; it is called before a wait, with
    /// nothing locked.
    ///
    /// # Errors
    /// As of recv(2): EAGAIN, EINTR. EBADF if the program took the descriptor.
    pub(super) fn take(&self, taken: impl Fn(&E), hca: impl Fn() -> Option<Arc<Hca>>) -> Answer<E> {
        let mut after = After::Begin;
        loop {
            match self.take_in_steps(after, &taken, &hca)? {
                Taken::Entry(entry) => return Ok(entry),
                Taken::NotYet(step) => after = wait_uncancelled(step),
            }
        }
    }

    /// The same in a call of a program whose thread may be cancelled.
    ///
    /// # Errors
    /// As of recv(2): EAGAIN, EINTR. EBADF if the program took the descriptor.
    pub(super) fn take_in_steps(
        &self,
        after: After,
        taken: impl Fn(&E),
        hca: impl Fn() -> Option<Arc<Hca>>,
    ) -> Answer<Taken<E>> {
        let found = Cell::new(None);
        let find = |_: &mut Engine| self.find(&taken, &found);
        let next = match after {
            After::Begin | After::Read => {
                found.set(self.pop(&taken));
                None
            }
            After::Sleep(..) | After::SleepFailed(_) => {
                hca().and_then(|hca| self.waiting.end(&hca, after, find))
            }
            After::Failed(errno) => return Err(Failure(errno)),
        };
        if let Some(entry) = found.take() {
            return Ok(Taken::Entry(entry));
        }
        let next = next.unwrap_or_else(|| {
            let hca = blocks(self.descriptor()).then(hca).flatten();
            hca.map_or(Next::Read, |hca| self.waiting.begin(&hca, self.descriptor(), find))
        });
        match next {
            Next::Sleep(set) => Ok(Taken::NotYet(Step::Sleep(set))),
            Next::Read => Ok(Taken::NotYet(Step::Peek(self.bell.to_wait_for()?))),
            Next::Interrupted => Err(Failure(libc::EINTR)),
            Next::Found => {
                let found = found.take().map(Taken::Entry);
                found.ok_or_else(|| Failure::new(libc::EIO, "an event was found, and is gone"))
            }
        }
    }

    /// Takes the oldest event. Returns whether there is one.
    fn find(&self, taken: impl Fn(&E), found: &Cell<Option<E>>) -> bool {
        let entry = self.pop(taken);
        let is_found = entry.is_some();
        found.set(entry);
        is_found
    }

    fn pop(&self, taken: impl Fn(&E)) -> Option<E> {
        let mut queue = self.queue();
        let entry = queue.pop_front()?;
        taken(&entry);
        if queue.is_empty() {
            self.fall_silent();
        }
        Some(entry)
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
