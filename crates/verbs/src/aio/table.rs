//! The requests that are in flight, by their number.

use std::any::Any;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use slab::Slab;
use smallvec::SmallVec;

use super::error::{Error, Failure};
use crate::owned::{Buffer, Held};
use crate::slots::Permit;
use crate::{Cq, Wc};

/// All requests of one completion queue. What is in here is held until its last completion.
#[derive(Debug, Default)]
pub(super) struct Table(Mutex<Slab<Entry>>);

/// What must exist until a request has completed.
type Keep = Arc<dyn Any + Send + Sync>;

pub(super) type Memory = SmallVec<[Held; 1]>;

#[derive(Debug)]
pub(super) enum Entry {
    Send(Sending),
    /// A receive, and the QP that the message is for.
    Receive(Buffer, Arc<dyn Receiver>),
}

/// A QP, as what arrives sees it.
pub(super) trait Receiver: Debug + Send + Sync {
    /// A receive has completed: with a message, or with the reason why there is none.
    fn arrive(&self, wc: Wc, why: Option<String>, buffer: Buffer);

    /// Takes the wakers of all tasks that wait for messages.
    fn wakers(&self) -> Vec<Waker>;
}

/// One request, or a batch that completes as one.
#[derive(Debug)]
pub(super) struct Sending {
    pub(super) memory: Memory,
    /// How many of its completions are still to come.
    pub(super) left: usize,
    pub(super) result: Option<Result<Wc, Error>>,
    pub(super) waiter: Waiter,
    /// Its places in the send queue, free as soon as it has completed.
    pub(super) permit: Option<Permit>,
    /// Keeps the QP until it has completed.
    pub(super) qp: Option<Keep>,
}

/// Who waits for a request.
#[derive(Debug)]
pub(super) enum Waiter {
    /// A future that was not polled since.
    Nobody,
    Task(Waker),
    /// The future is gone.
    Gone,
}

/// What a completion leads to, done without the lock.
enum After {
    Nothing,
    Wake(Waker, Option<Permit>, Option<Keep>),
    Drop(Option<Permit>, Option<Keep>),
    Forget(Sending),
    Arrived(Wc, Buffer, Arc<dyn Receiver>),
}

impl Table {
    pub(super) fn lock(&self) -> MutexGuard<'_, Slab<Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn insert(&self, entry: Entry) -> usize {
        self.lock().insert(entry)
    }

    /// Takes an entry whose request was not posted.
    pub(super) fn remove(&self, key: usize) -> Entry {
        self.lock().remove(key)
    }

    /// Takes the wakers of all tasks that wait.
    pub(super) fn wakers(&self) -> Vec<Waker> {
        let mut wakers = Vec::new();
        for (_, entry) in self.lock().iter_mut() {
            match entry {
                Entry::Receive(_, qp) => wakers.append(&mut qp.wakers()),
                Entry::Send(sending) => {
                    if let Waiter::Task(waker) = &sending.waiter {
                        wakers.push(waker.clone());
                    }
                }
            }
        }
        wakers
    }

    /// Hands a completion to its request.
    pub(super) fn complete(&self, wc: Wc, cq: &Cq) {
        // The device keeps the reason of a failure for a while only.
        let why = if wc.is_success() { None } else { cq.explain(&wc) };
        match self.note(wc, why.clone()) {
            After::Nothing => {}
            After::Wake(waker, permit, qp) => {
                drop((permit, qp));
                waker.wake();
            }
            After::Drop(permit, qp) => drop((permit, qp)),
            After::Forget(sending) => drop(sending),
            After::Arrived(wc, buffer, qp) => qp.arrive(wc, why, buffer),
        }
    }

    fn note(&self, wc: Wc, why: Option<String>) -> After {
        let mut entries = self.lock();
        // A number of this process; the queue is nobody else's.
        let Ok(key) = usize::try_from(wc.wr_id) else { return After::Nothing };
        match entries.get_mut(key) {
            None => After::Nothing,
            Some(Entry::Receive(..)) => {
                let Entry::Receive(buffer, qp) = entries.remove(key) else { unreachable!() };
                After::Arrived(wc, buffer, qp)
            }
            Some(Entry::Send(sending)) => {
                let after = sending.note(wc, why);
                match after {
                    Some(after) => after,
                    None => match entries.remove(key) {
                        Entry::Send(sending) => After::Forget(sending),
                        Entry::Receive(..) => unreachable!("looked at above"),
                    },
                }
            }
        }
    }
}

impl Sending {
    /// `None` if it has completed and nobody asks for it.
    fn note(&mut self, wc: Wc, why: Option<String>) -> Option<After> {
        self.left -= 1;
        // The first failure of a batch is the reason of those behind it.
        if !matches!(self.result, Some(Err(_))) {
            let failed = |wc| Error::Failed(Failure::new(wc, why, false));
            self.result = Some(if wc.is_success() { Ok(wc) } else { Err(failed(wc)) });
        }
        if self.left > 0 {
            return Some(After::Nothing);
        }
        match std::mem::replace(&mut self.waiter, Waiter::Nobody) {
            Waiter::Gone => None,
            Waiter::Nobody => Some(After::Drop(self.permit.take(), self.qp.take())),
            Waiter::Task(waker) => Some(After::Wake(waker, self.permit.take(), self.qp.take())),
        }
    }
}
