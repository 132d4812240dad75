//! Requests as a future: their turn, and their completion.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use smallvec::SmallVec;

use super::error::Error;
use super::inner::Inner;
use super::request::Request;
use super::table::{Entry, Memory, Sending, State, Waiter, wr_id};
use crate::owned::Held;
use crate::slots::wake;
use crate::{Refusal, Slice, Wc};

/// Requests that complete as one. Their memory comes back with the result; if this is dropped when
/// they are posted, the memory is dropped when they complete.
///
/// By hand and not an `async fn`: such a future has room for its arguments twice, and futures are
/// moved.
#[derive(Debug)]
pub(super) struct Op<'qp> {
    qp: &'qp Arc<Inner>,
    requests: SmallVec<[Request; 1]>,
    /// Here until it is posted.
    memory: Memory,
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

impl<'qp> Op<'qp> {
    pub(super) fn new(
        qp: &'qp Arc<Inner>,
        requests: SmallVec<[Request; 1]>,
        memory: Memory,
        refusal: Option<Refusal>,
    ) -> Self {
        debug_assert_eq!(requests.len(), memory.len(), "each has its memory");
        Self { qp, requests, memory, stage: Stage::New(refusal.map(Box::new)) }
    }

    /// Posts all of them, if it is their turn. Ready with the result if that is known already.
    fn poll_post(&mut self, cx: &Context<'_>) -> Poll<Option<(Result<Wc, Error>, Memory)>> {
        let Self { qp, requests, memory, stage } = self;
        if let Stage::New(refusal) = stage {
            let checked = match refusal.take() {
                Some(refusal) => Err(*refusal),
                None => qp.check_all(requests, memory),
            };
            if let Err(refusal) = checked {
                *stage = Stage::Done;
                return Poll::Ready(Some((Err(refusal.into()), std::mem::take(memory))));
            }
            *stage = Stage::Waits(None);
        }
        let Stage::Waits(ticket) = stage else { return Poll::Ready(None) };
        // CAST: no more than the QP has places for.
        let places = requests.len() as u32;
        let is_one = places > 1 && qp.completes_as_one(memory);
        let slices: SmallVec<[Option<Slice>; 1]> = memory.iter().map(Held::slice).collect();
        let inline = qp.inline(requests, memory);
        let mut state = qp.cq().table().lock();
        let of_qp = &mut state.qps[qp.key()];
        let turn = ready!(of_qp.sends.poll_take(ticket, places, cx));
        of_qp.enter(qp);
        let key = state.entries.insert(Entry::Send(Sending {
            memory: std::mem::take(memory),
            left: if is_one { 1 } else { places },
            result: None,
            waiter: Waiter::Task(cx.waker().clone()),
            places,
            qp: qp.key(),
        }));
        drop(state);
        *stage = Stage::Posted(key);
        wake(turn);
        for (done, (request, slice)) in (0..).zip(requests.iter().zip(&slices)) {
            let is_followed = is_one && done + 1 < places;
            let mut request = request.build(wr_id(key, is_followed), slice.as_slice());
            if !is_followed {
                request.signal();
            }
            if let Some(Some(bytes)) = inline.get(done as usize) {
                request.put_inline(bytes);
            }
            if let Err(error) = qp.qp().post(request) {
                let nothing_done = qp.refused(key, done, is_one, error.into());
                if nothing_done.is_some() {
                    *stage = Stage::Done;
                    return Poll::Ready(nothing_done);
                }
                // What is posted may have completed already, and nothing follows.
                cx.waker().wake_by_ref();
                break;
            }
        }
        Poll::Ready(None)
    }
}

impl Future for Op<'_> {
    type Output = (Result<Wc, Error>, Memory);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let is_posted = matches!(self.stage, Stage::Posted(_));
        if let Some(known) = ready!(self.poll_post(cx)) {
            return Poll::Ready(known);
        }
        let Stage::Posted(key) = self.stage else { unreachable!("polled after it was ready") };
        let take = |state: &mut State| state.take_sent(key, cx);
        let cq = self.qp.cq();
        // One that is new left its waker when it was posted.
        let done = ready!(if is_posted { cq.wait(cx, take) } else { cq.look(cx, take) });
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
