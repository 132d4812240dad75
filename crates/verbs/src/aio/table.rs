//! The requests that are in flight, by their number, and what their QPs wait for.

use std::collections::VecDeque;
use std::sync::{Arc, Weak};
use std::task::Waker;

use slab::Slab;
use threads::biased;

use super::error::{Error, Failure};
use super::inbox::{Arrived, Inbox};
use super::members::{Member, OfSrq};
use super::receives::Home;
use super::wakers::Wakers;
use crate::owned::{Buffer, Held};
use crate::slots::{Places, wake};
use crate::{Cq, Wc};

/// All requests of one completion queue, and its QPs. There is one lock, as each message would need
/// several others, and a lock costs as much as all else that is done for it. As the device's own,
/// it is free for the thread that mostly takes it.
#[derive(Debug, Default)]
pub(super) struct Table(biased::Mutex<State>);

/// What a table has. Nothing is dropped and nobody is woken while it is locked: either may lead
/// back here.
#[derive(Debug, Default)]
pub(super) struct State {
    /// What is in here is held until its last completion.
    pub(super) entries: Slab<Entry>,
    pub(super) qps: Slab<OfQp>,
    pub(super) srqs: Slab<OfSrq>,
}

/// What a QP waits for.
#[derive(Debug)]
pub(super) struct OfQp {
    pub(super) inbox: Inbox,
    /// Places in its send queue.
    pub(super) sends: Places,
    /// Its requests that have not completed.
    in_flight: u32,
    /// The QP, if the program has it no more, as long as there are such.
    keep: Option<Arc<dyn Home>>,
    /// If it receives from a shared queue.
    pub(super) member: Option<Member>,
}

impl OfQp {
    pub(super) fn new(sends: u32) -> Self {
        let (inbox, sends) = (Inbox::default(), Places::new(sends));
        Self { inbox, sends, in_flight: 0, keep: None, member: None }
    }

    /// One more request is in flight.
    pub(super) fn enter(&mut self) {
        self.in_flight += 1;
    }

    /// One less. Returns the QP if nothing keeps it any more.
    pub(super) fn leave(&mut self) -> Option<Arc<dyn Home>> {
        self.in_flight -= 1;
        if self.in_flight == 0 { self.keep.take() } else { None }
    }

    /// The program has the QP no more: it exists as long as requests are in flight. Returns what
    /// arrived and nobody took.
    pub(super) fn close(&mut self, qp: Arc<dyn Home>) -> VecDeque<Arrived> {
        // What is not kept is not the last: the caller has it.
        self.keep = (self.in_flight > 0).then_some(qp);
        self.inbox.close()
    }
}

/// The memory of requests that complete as one.
#[derive(Debug)]
pub(super) struct Memory {
    pub(super) first: Held,
    pub(super) more: Vec<Held>,
}

/// Small, as each message moves one in and out.
#[derive(Debug)]
pub(super) enum Entry {
    Send(Sending),
    /// A receive, and the number of the QP that the message is for.
    Receive(Buffer, usize),
    /// A receive of a shared queue, and the number of the queue.
    Shared(Buffer, usize),
}

/// One request, or a batch that completes as one.
#[derive(Debug)]
pub(super) struct Sending {
    pub(super) memory: Held,
    /// What only a batch has.
    pub(super) batch: Option<Box<Rest>>,
    pub(super) progress: Progress,
    /// The number of the QP.
    pub(super) qp: usize,
}

/// What a batch has beside its first request.
#[derive(Debug)]
pub(super) struct Rest {
    pub(super) memory: Vec<Held>,
    /// How many of its completions are still to come, but those that only say that it failed.
    pub(super) left: u32,
    /// The first failure, which is the reason of those behind it.
    pub(super) failed: Option<Error>,
}

/// How far a request that is posted is.
#[derive(Debug)]
pub(super) enum Progress {
    /// It is in flight, and this task waits for it.
    Awaited(Option<Waker>),
    /// It is in flight, and its future is gone.
    Abandoned,
    Done(Result<Wc, Error>),
}

/// The number that a request is posted with: that of its entry, and whether another request of the
/// entry completes for it. Then its own completion says only that it failed.
pub(super) fn wr_id(key: usize, is_followed: bool) -> u64 {
    (key as u64) << 1 | u64::from(is_followed)
}

/// What [`wr_id`] made it of. It is a number of this process, as the queue is nobody else's.
pub(super) fn of_wr_id(wr_id: u64) -> Option<(usize, bool)> {
    usize::try_from(wr_id >> 1).ok().map(|key| (key, wr_id & 1 != 0))
}

/// What a completion leads to that is done without the lock: tasks are woken, and what is dropped
/// may wake others.
#[must_use = "tasks wait for it"]
#[derive(Default)]
pub(super) struct After {
    /// A QP without requests, which is destroyed if nobody else has it.
    qp: Option<Arc<dyn Home>>,
    /// A request whose future is gone.
    forgotten: Option<Box<Entry>>,
    /// A buffer without a message.
    pub(super) buffer: Option<Buffer>,
    /// The shared queue that it is posted to again.
    pub(super) shared: Option<Weak<dyn Home>>,
    /// The task whose turn it is to send.
    turn: Option<Waker>,
    /// The tasks that wait for what completed.
    pub(super) wakers: Wakers,
}

impl After {
    /// In place, as it is expensive to move.
    pub(super) fn finish(&mut self) {
        // The memory first: it is the QP's until here.
        drop(self.forgotten.take());
        if let Some(buffer) = self.buffer.take() {
            match self.shared.take().and_then(|shared| shared.upgrade()) {
                Some(shared) => shared.take_back(buffer),
                None => drop(buffer),
            }
        }
        drop(self.qp.take());
        wake(self.turn.take());
        self.wakers.take().wake();
    }
}

impl Table {
    pub(super) fn lock(&self) -> biased::MutexGuard<'_, State> {
        self.0.lock()
    }

    /// Takes the wakers of all tasks that wait.
    pub(super) fn wakers(&self) -> Vec<Waker> {
        let mut state = self.lock();
        let mut wakers = Vec::new();
        for (_, qp) in &mut state.qps {
            wakers.extend(qp.inbox.wakers.take());
            wakers.extend(qp.sends.wakers());
        }
        for (_, srq) in &mut state.srqs {
            wakers.extend(srq.take_wakers());
        }
        for (_, entry) in &state.entries {
            if let Entry::Send(Sending { progress: Progress::Awaited(waker), .. }) = entry {
                wakers.extend(waker.clone());
            }
        }
        wakers
    }
}

impl State {
    /// Hands a completion to its request, in the order in which the queue has them. What it leads
    /// to is added to `after`.
    pub(super) fn complete(&mut self, wc: Wc, cq: &Cq, after: &mut After) {
        // The device keeps the reason of a failure for a while only.
        let why = if wc.is_success() { None } else { cq.explain(&wc) };
        let Some((key, is_followed)) = of_wr_id(wc.wr_id) else { return };
        match self.entries.get_mut(key) {
            None => {}
            Some(Entry::Receive(..)) => {
                let Entry::Receive(buffer, qp) = self.entries.remove(key) else { unreachable!() };
                let qp = &mut self.qps[qp];
                after.buffer = qp.inbox.arrive(wc, why, buffer);
                after.wakers = qp.inbox.wakers.take();
                after.qp = qp.leave();
            }
            Some(Entry::Shared(..)) => {
                let Entry::Shared(buffer, srq) = self.entries.remove(key) else { unreachable!() };
                self.arrived(srq, wc, why, buffer, after);
            }
            Some(Entry::Send(sending)) => {
                let failure = |wc| Err(Failure::new(wc, why, false).into());
                let result = if wc.is_success() { Ok(wc) } else { failure(wc) };
                let Some(result) = sending.note(result, is_followed) else { return };
                (after.qp, after.turn) = sending.end(&mut self.qps);
                match std::mem::replace(&mut sending.progress, Progress::Done(result)) {
                    Progress::Awaited(waker) => after.wakers.extend(waker),
                    Progress::Abandoned => {
                        after.forgotten = Some(Box::new(self.entries.remove(key)));
                    }
                    Progress::Done(_) => unreachable!("it completes once"),
                }
            }
        }
    }

    /// A QP of a shared queue takes no more receives. Returns it if nothing else is in flight.
    pub(super) fn take_last(&mut self, key: usize) -> Option<Arc<dyn Home>> {
        let of_qp = &mut self.qps[key];
        let ends = of_qp.member.as_mut().is_some_and(Member::ends);
        if ends { of_qp.leave() } else { None }
    }
}

impl Sending {
    /// A completion of one of its requests. Returns the result if it was the last.
    fn note(&mut self, result: Result<Wc, Error>, is_followed: bool) -> Option<Result<Wc, Error>> {
        let Some(batch) = &mut self.batch else { return Some(result) };
        if let Err(error) = &result {
            batch.failed.get_or_insert_with(|| error.clone());
        }
        if is_followed {
            return None;
        }
        batch.left -= 1;
        (batch.left == 0).then(|| batch.failed.take().map_or(result, Err))
    }

    /// All of it has completed: its places in the send queue are free. Returns the QP if nothing
    /// keeps it any more, and the task whose turn it is to send.
    pub(super) fn end(&self, qps: &mut Slab<OfQp>) -> (Option<Arc<dyn Home>>, Option<Waker>) {
        let qp = &mut qps[self.qp];
        // CAST: no more than the QP has places for.
        let places = 1 + self.batch.as_ref().map_or(0, |batch| batch.memory.len() as u32);
        (qp.leave(), qp.sends.give(places))
    }
}
