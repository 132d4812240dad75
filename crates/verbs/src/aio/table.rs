//! The requests that are in flight, by their number, and what their QPs wait for.

use std::fmt::Debug;
use std::sync::{Arc, Weak};
use std::task::{Context, Waker};

use slab::Slab;
use threads::biased;

use super::error::{Error, Failure};
use super::inbox::Inbox;
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

/// A QP that exists as long as requests of it are in flight.
pub(super) trait Kept: Debug + Send + Sync + 'static {}

/// What a QP waits for.
#[derive(Debug)]
pub(super) struct OfQp {
    pub(super) inbox: Inbox,
    /// Places in its send queue.
    pub(super) sends: Places,
    /// Its requests that have not completed.
    in_flight: u32,
    /// The QP, as long as there are such.
    keep: Option<Arc<dyn Kept>>,
    /// If it receives from a shared queue.
    pub(super) member: Option<Member>,
}

impl OfQp {
    pub(super) fn new(sends: u32) -> Self {
        let (inbox, sends) = (Inbox::default(), Places::new(sends));
        Self { inbox, sends, in_flight: 0, keep: None, member: None }
    }

    /// One more request is in flight.
    pub(super) fn enter(&mut self, qp: &Arc<impl Kept>) {
        self.in_flight += 1;
        if self.keep.is_none() {
            self.keep = Some(Arc::clone(qp) as Arc<dyn Kept>);
        }
    }

    /// One less. Returns the QP if that was the last.
    fn leave(&mut self) -> Option<Arc<dyn Kept>> {
        self.in_flight -= 1;
        if self.in_flight == 0 { self.keep.take() } else { None }
    }
}

/// The memory of requests that complete as one.
#[derive(Debug)]
pub(super) struct Memory {
    pub(super) first: Held,
    pub(super) more: Vec<Held>,
}

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
    pub(super) memory: Memory,
    /// How many of its completions are still to come, but those that only say that it failed.
    pub(super) left: u32,
    pub(super) result: Option<Result<Wc, Error>>,
    pub(super) waiter: Waiter,
    /// Its places in the send queue, free as soon as it has completed.
    pub(super) places: u32,
    /// The number of the QP.
    pub(super) qp: usize,
}

/// The number that a request is posted with: that of its entry, and whether another request of the
/// entry completes for it. Then its own completion says only that it failed.
pub(super) fn wr_id(key: usize, is_followed: bool) -> u64 {
    (key as u64) << 1 | u64::from(is_followed)
}

fn is_followed(wr_id: u64) -> bool {
    wr_id & 1 != 0
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

/// What a completion leads to that is done without the lock: tasks are woken, and what is dropped
/// may wake others.
#[must_use = "tasks wait for it"]
#[derive(Default)]
pub(super) struct After {
    /// A QP without requests, which is destroyed if nobody else has it.
    qp: Option<Arc<dyn Kept>>,
    /// A request whose future is gone.
    forgotten: Option<Box<Entry>>,
    /// A buffer without a message.
    buffer: Option<Buffer>,
    /// The shared queue that it is posted to again.
    shared: Option<Weak<dyn Home>>,
    /// The task whose turn it is to send.
    turn: Option<Waker>,
    /// The tasks that wait for what completed.
    wakers: Wakers,
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
        }
        for (_, srq) in &mut state.srqs {
            wakers.extend(srq.take_wakers());
        }
        for (_, entry) in &state.entries {
            if let Entry::Send(Sending { waiter: Waiter::Task(waker), .. }) = entry {
                wakers.push(waker.clone());
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
        let wr_id = wc.wr_id;
        // A number of this process; the queue is nobody else's.
        let Ok(key) = usize::try_from(wr_id >> 1) else { return };
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
                let arrival = self.arrived(srq, wc, why, buffer);
                (after.buffer, after.shared) = arrival.buffer.unzip();
                after.wakers = arrival.wakers;
            }
            Some(Entry::Send(sending)) => {
                let failure = |wc| Err(Failure::new(wc, why, false).into());
                let result = if wc.is_success() { Ok(wc) } else { failure(wc) };
                sending.note(result);
                if is_followed(wr_id) {
                    return;
                }
                sending.left -= 1;
                if sending.left > 0 {
                    return;
                }
                (after.qp, after.turn) = sending.end(&mut self.qps);
                match std::mem::replace(&mut sending.waiter, Waiter::Nobody) {
                    Waiter::Nobody => {}
                    Waiter::Task(waker) => after.wakers.push(waker),
                    Waiter::Gone => {
                        after.forgotten = Some(Box::new(self.entries.remove(key)));
                    }
                }
            }
        }
    }

    /// The result and the memory of a request that has completed; otherwise its task is woken when
    /// it has.
    pub(super) fn take_sent(
        &mut self,
        key: usize,
        cx: &Context<'_>,
    ) -> Option<(Result<Wc, Error>, Memory)> {
        let sending = self.sending(key);
        if sending.left > 0 {
            match &mut sending.waiter {
                Waiter::Task(waker) => waker.clone_from(cx.waker()),
                waiter => *waiter = Waiter::Task(cx.waker().clone()),
            }
            return None;
        }
        let Entry::Send(sending) = self.entries.remove(key) else {
            unreachable!("looked at above")
        };
        Some((sending.result.expect("it has completed"), sending.memory))
    }

    /// A QP of a shared queue takes no more receives. Returns it if nothing else is in flight.
    pub(super) fn take_last(&mut self, key: usize) -> Option<Arc<dyn Kept>> {
        let of_qp = &mut self.qps[key];
        let ends = of_qp.member.as_mut().is_some_and(Member::ends);
        if ends { of_qp.leave() } else { None }
    }

    /// A request whose future is there.
    pub(super) fn sending(&mut self, key: usize) -> &mut Sending {
        match self.entries.get_mut(key) {
            Some(Entry::Send(sending)) => sending,
            _ => unreachable!("a request stays until its future is ready or gone"),
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

    /// All of it has completed. Returns the QP if that was its last, and the task whose turn it is
    /// to send.
    pub(super) fn end(&self, qps: &mut Slab<OfQp>) -> (Option<Arc<dyn Kept>>, Option<Waker>) {
        let qp = &mut qps[self.qp];
        (qp.leave(), qp.sends.give(self.places))
    }
}
