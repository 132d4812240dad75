//! Requests as a future: their turn, and their completion.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use super::error::Error;
use super::inner::Inner;
use super::request::Work;
use super::table::{Entry, Memory, Sending, State, Waiter};
use crate::slots::wake;
use crate::{Refusal, Wc};

/// Requests that complete as one. Their memory comes back with the result; if this is dropped when
/// they are posted, the memory is dropped when they complete.
///
/// By hand and not an `async fn`: such a future has room for its arguments twice, and futures are
/// moved.
#[derive(Debug)]
pub(super) struct Op<'qp> {
    qp: &'qp Arc<Inner>,
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
    pub(super) fn new(qp: &'qp Arc<Inner>, work: Work, refusal: Option<Refusal>) -> Self {
        Self::batch(qp, work, Vec::new(), refusal)
    }

    pub(super) fn batch(
        qp: &'qp Arc<Inner>,
        first: Work,
        more: Vec<Work>,
        refusal: Option<Refusal>,
    ) -> Self {
        Self { qp, first, more, stage: Stage::New(refusal.map(Box::new)) }
    }

    fn memory(&mut self) -> Memory {
        let first = self.first.take_memory();
        Memory { first, more: self.more.iter_mut().map(Work::take_memory).collect() }
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
        self.qp.check(&self.first)?;
        self.more.iter().try_for_each(|work| self.qp.check(work))?;
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
        let qp = self.qp;
        let mut state = qp.cq().table().lock();
        let State { entries, qps, .. } = &mut *state;
        let (entry, of_qp) = (entries.vacant_entry(), &mut qps[qp.key()]);
        let turn = ready!(of_qp.sends.poll_take(ticket, places, cx));
        let key = entry.key();
        let is_one = qp.completes_as_one(&self.first, &self.more);
        // Posted before the entry is there: nobody looks for it as long as the table is locked.
        let (done, refused) = qp.post_all(&self.first, &self.more, key, is_one);
        if let (0, Some(error)) = (done, &refused) {
            let next = of_qp.sends.give(places);
            drop(state);
            [turn, next].into_iter().for_each(wake);
            return Poll::Ready(Some(self.fail((*error).into())));
        }
        of_qp.enter(qp);
        entry.insert(Entry::Send(Sending {
            memory: self.memory(),
            left: if is_one { 1 } else { done },
            result: refused.map(|error| Err(error.into())),
            waiter: Waiter::Task(cx.waker().clone()),
            places,
            qp: qp.key(),
        }));
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

impl Future for Op<'_> {
    type Output = Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Output> {
        if let Some(known) = ready!(self.poll_post(cx)) {
            return Poll::Ready(known);
        }
        let Stage::Posted(key) = self.stage else { unreachable!("polled after it was ready") };
        let done = ready!(self.qp.cq().wait(cx, |state| state.take_sent(key, cx)));
        self.stage = Stage::Done;
        Poll::Ready(done)
    }
}

impl Drop for Op<'_> {
    fn drop(&mut self) {
        let table = self.qp.cq().table();
        match self.stage {
            Stage::New(_) | Stage::Done | Stage::Waits(None) => {}
            Stage::Waits(Some(ticket)) => {
                let turn = table.lock().qps[self.qp.key()].sends.leave(ticket);
                wake(turn);
            }
            Stage::Posted(key) => {
                let mut state = table.lock();
                let sending = state.sending(key);
                if sending.left > 0 {
                    sending.waiter = Waiter::Gone;
                } else {
                    let done = state.entries.remove(key);
                    drop(state);
                    drop(done);
                }
            }
        }
    }
}
