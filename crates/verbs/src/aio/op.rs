//! Requests as a future: their turn, and their completion.

use std::pin::Pin;
use std::task::{Context, Poll, Waker, ready};

use super::error::Error;
use super::handle::Wanted;
use super::qp::Qp;
use super::request::Work;
use super::table::{Entry, Memory, Progress, Rest, Sending, State, wr_id};
use crate::owned::Held;
use crate::slots::wake;
use crate::{Refusal, Wc};

/// Requests that complete as one. Their memory comes back with the result; if this is dropped when
/// they are posted, the memory is dropped when they complete.
///
/// By hand and not an `async fn`: such a future has room for its arguments twice, and futures are
/// moved.
#[derive(Debug)]
pub(super) struct Op<'qp> {
    qp: &'qp Qp,
    /// They have their memory until they are posted.
    first: Work,
    more: Vec<Work>,
    stage: Stage,
}

/// How far it is.
#[derive(Debug)]
enum Stage {
    /// It was not polled yet. It will not be posted if there is a reason already.
    New(Option<Box<Refusal>>),
    /// It waits for places in the send queue, with a ticket.
    Waits(Option<u64>),
    /// It has this number.
    Posted(usize),
    Done,
}

/// What became of it.
type Output = (Result<Wc, Error>, Memory);

impl<'qp> Op<'qp> {
    pub(super) fn new(qp: &'qp Qp, work: Work, refusal: Option<Refusal>) -> Self {
        Self::batch(qp, work, Vec::new(), refusal)
    }

    pub(super) fn batch(
        qp: &'qp Qp,
        first: Work,
        more: Vec<Work>,
        refusal: Option<Refusal>,
    ) -> Self {
        Self { qp, first, more, stage: Stage::New(refusal.map(Box::new)) }
    }

    fn memory(&mut self) -> Memory {
        Memory { first: self.first.take_memory(), more: self.memory_of_more() }
    }

    fn memory_of_more(&mut self) -> Vec<Held> {
        self.more.iter_mut().map(Work::take_memory).collect()
    }

    /// It has failed, and nothing is posted.
    fn fail(&mut self, error: Error) -> Output {
        self.stage = Stage::Done;
        (Err(error), self.memory())
    }

    /// Checks all of them, once.
    fn check(&mut self) -> crate::Result<()> {
        let Stage::New(refusal) = &mut self.stage else { return Ok(()) };
        if let Some(refusal) = refusal.take() {
            return Err(*refusal);
        }
        let (qp, srq) = (self.qp.inner(), self.qp.srq());
        qp.check(&self.first, srq)?;
        self.more.iter().try_for_each(|work| qp.check(work, srq))?;
        self.stage = Stage::Waits(None);
        Ok(())
    }

    /// Posts all of them, if it is their turn. Ready with the result if that is known already.
    fn poll_post(&mut self, cx: &Context<'_>) -> Poll<Option<Output>> {
        if let Err(refusal) = self.check() {
            return Poll::Ready(Some(self.fail(refusal.into())));
        }
        let Stage::Waits(ticket) = &mut self.stage else { return Poll::Ready(None) };
        // CAST: no more than the QP has places for.
        let places = 1 + self.more.len() as u32;
        let qp = self.qp.inner();
        let mut state = qp.cq().table().lock();
        let State { entries, qps, .. } = &mut *state;
        let (entry, of_qp) = (entries.vacant_entry(), &mut qps[qp.key()]);
        let Poll::Ready(turn) = of_qp.sends.poll_take(ticket, places, cx) else {
            drop(state);
            qp.cq().look_meanwhile(cx);
            return Poll::Pending;
        };
        let key = entry.key();
        let is_one = qp.completes_as_one(&self.first, &self.more);
        // Posted before the entry is there: nobody looks for it as long as the table is locked.
        let (done, refused) = qp.post_all(&self.first, &self.more, self.qp.srq(), key, is_one);
        if let (0, Some(error)) = (done, &refused) {
            let next = of_qp.sends.give(places);
            drop(state);
            [turn, next].into_iter().for_each(wake);
            return Poll::Ready(Some(self.fail((*error).into())));
        }
        of_qp.enter();
        let batch = if self.more.is_empty() {
            None
        } else {
            let (memory, left) = (self.memory_of_more(), if is_one { 1 } else { done });
            Some(Box::new(Rest { memory, left, failed: refused.map(Error::from) }))
        };
        let (memory, progress) = (self.first.take_memory(), Progress::Awaited(None));
        entry.insert(Entry::Send(Sending { memory, batch, progress, qp: qp.key() }));
        let is_cut = is_one && done < places;
        drop(state);
        self.stage = Stage::Posted(key);
        wake(turn);
        if is_cut {
            qp.complete_what_is_posted(key);
        }
        Poll::Ready(None)
    }
}

/// The end of the request with this number, whose future is there.
struct Sent(usize);

fn sending(state: &mut State, key: usize) -> &mut Sending {
    match state.entries.get_mut(key) {
        Some(Entry::Send(sending)) => sending,
        _ => unreachable!("a request stays until its future is ready or gone"),
    }
}

impl Wanted for Sent {
    type Found = Output;

    fn find(&self, state: &mut State, task: Option<&Waker>) -> Option<Output> {
        if let Progress::Awaited(waker) = &mut sending(state, self.0).progress {
            match (waker, task) {
                (_, None) => {}
                (Some(waker), Some(task)) => waker.clone_from(task),
                (waker, task) => *waker = task.cloned(),
            }
            return None;
        }
        let Entry::Send(Sending { memory, batch, progress: Progress::Done(result), .. }) =
            state.entries.remove(self.0)
        else {
            unreachable!("looked at above")
        };
        let more = batch.map(|batch| batch.memory).unwrap_or_default();
        Some((result, Memory { first: memory, more }))
    }

    fn claim(&self, state: &mut State, wc: &Wc) -> Option<(Output, Option<Waker>)> {
        if wc.wr_id != wr_id(self.0, false) || !wc.is_success() {
            return None;
        }
        if sending(state, self.0).batch.is_some() {
            return None;
        }
        let Entry::Send(sending) = state.entries.remove(self.0) else { unreachable!() };
        // Nothing keeps the QP but the program, which waits for this.
        let (_, turn) = sending.end(&mut state.qps);
        let memory = Memory { first: sending.memory, more: Vec::new() };
        Some(((Ok(*wc), memory), turn))
    }
}

impl Future for Op<'_> {
    type Output = Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Output> {
        if let Some(known) = ready!(self.poll_post(cx)) {
            return Poll::Ready(known);
        }
        let Stage::Posted(key) = self.stage else { unreachable!("polled after it was ready") };
        let done = ready!(self.qp.inner().cq().wait(cx, &Sent(key)));
        self.stage = Stage::Done;
        Poll::Ready(done)
    }
}

impl Drop for Op<'_> {
    fn drop(&mut self) {
        let table = self.qp.inner().cq().table();
        match self.stage {
            Stage::New(_) | Stage::Done | Stage::Waits(None) => {}
            Stage::Waits(Some(ticket)) => {
                let turn = table.lock().qps[self.qp.inner().key()].sends.leave(ticket);
                wake(turn);
            }
            Stage::Posted(key) => {
                let mut state = table.lock();
                let progress = &mut sending(&mut state, key).progress;
                if matches!(progress, Progress::Awaited(_)) {
                    *progress = Progress::Abandoned;
                } else {
                    let done = state.entries.remove(key);
                    drop(state);
                    drop(done);
                }
            }
        }
    }
}
