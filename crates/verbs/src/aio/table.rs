//! The requests that are in flight, by their number.

use std::any::Any;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;

use slab::Slab;
use smallvec::SmallVec;

use super::error::{Error, Failure};
use super::wakers::Wakers;
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
    /// A receive has completed: with a message, or with the reason why there is none; then the
    /// buffer comes back. Wakes nobody.
    fn arrive(&self, wc: Wc, why: Option<String>, buffer: Buffer) -> Option<Buffer>;

    /// Takes the wakers of all tasks that wait for messages.
    fn wakers(&self) -> Wakers;
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

/// The future of a request.
#[derive(Debug)]
pub(super) enum Waiter {
    /// It was not polled since.
    Nobody,
    Task(Waker),
    /// It is gone.
    Gone,
}

/// What a completion leads to that needs no order, done without any lock: tasks are woken, and what
/// is dropped may wake others.
#[must_use = "tasks wait for it"]
pub(super) enum After {
    Nothing,
    /// What it needed is given back, and then its task is woken.
    Done(Option<Permit>, Option<Keep>, Option<Waker>),
    Forget(Box<Sending>),
    /// A buffer without a message, and the QP whose tasks are woken.
    Arrived(Option<Buffer>, Arc<dyn Receiver>),
}

impl After {
    pub(super) fn finish(self) {
        match self {
            Self::Nothing => {}
            Self::Done(permit, qp, waker) => {
                drop((permit, qp));
                if let Some(waker) = waker {
                    waker.wake();
                }
            }
            Self::Forget(sending) => drop(sending),
            Self::Arrived(buffer, qp) => {
                drop(buffer);
                qp.wakers().wake();
            }
        }
    }
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
                Entry::Receive(_, qp) => wakers.extend(qp.wakers()),
                Entry::Send(sending) => {
                    if let Waiter::Task(waker) = &sending.waiter {
                        wakers.push(waker.clone());
                    }
                }
            }
        }
        wakers
    }

    /// Hands a completion to its request, in the order in which the queue has them.
    pub(super) fn complete(&self, wc: Wc, cq: &Cq) -> After {
        // The device keeps the reason of a failure for a while only.
        let why = if wc.is_success() { None } else { cq.explain(&wc) };
        let mut entries = self.lock();
        // A number of this process; the queue is nobody else's.
        let Ok(key) = usize::try_from(wc.wr_id) else { return After::Nothing };
        if let Some(Entry::Send(sending)) = entries.get_mut(key) {
            sending.left -= 1;
            sending.note(if wc.is_success() {
                Ok(wc)
            } else {
                Err(Failure::new(wc, why.clone(), false).into())
            });
            if sending.left > 0 {
                return After::Nothing;
            }
            if !matches!(sending.waiter, Waiter::Gone) {
                return sending.done();
            }
        }
        match entries.try_remove(key) {
            None => After::Nothing,
            Some(Entry::Receive(buffer, qp)) => {
                drop(entries);
                After::Arrived(qp.arrive(wc, why, buffer), qp)
            }
            Some(Entry::Send(sending)) => After::Forget(Box::new(sending)),
        }
    }
}

impl Sending {
    /// A result of one of its requests. The first failure is the reason of those behind it.
    pub(super) fn note(&mut self, result: Result<Wc, Error>) {
        if !matches!(self.result, Some(Err(_))) {
            self.result = Some(result);
        }
    }

    /// All of it has completed: what it needed, and the task that waits.
    fn done(&mut self) -> After {
        let waker = match std::mem::replace(&mut self.waiter, Waiter::Nobody) {
            Waiter::Task(waker) => Some(waker),
            Waiter::Nobody | Waiter::Gone => None,
        };
        After::Done(self.permit.take(), self.qp.take(), waker)
    }
}
