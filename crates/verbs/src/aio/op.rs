//! The future of a request that is posted.

use std::pin::Pin;
use std::task::{Context, Poll};

use super::error::Error;
use super::handle::Handle;
use super::table::{Entry, Memory, Waiter};
use crate::Wc;

/// A request in flight. Its memory comes back with the result; if this is dropped before, the
/// memory is dropped when the request completes.
#[derive(Debug)]
pub(super) struct Op {
    cq: Handle,
    key: Option<usize>,
}

impl Op {
    pub(super) fn new(cq: Handle, key: usize) -> Self {
        Self { cq, key: Some(key) }
    }
}

/// The result, if the request has completed; otherwise the task is woken when it has.
fn take(
    cq: &Handle,
    own: &mut Option<usize>,
    cx: &Context<'_>,
) -> Option<(Result<Wc, Error>, Memory)> {
    let key = own.expect("polled after it was ready");
    let mut entries = cq.table().lock();
    let Some(Entry::Send(sending)) = entries.get_mut(key) else {
        unreachable!("a request stays until its future is ready or gone");
    };
    if sending.left > 0 {
        match &mut sending.waiter {
            Waiter::Task(waker) => waker.clone_from(cx.waker()),
            waiter => *waiter = Waiter::Task(cx.waker().clone()),
        }
        return None;
    }
    *own = None;
    let Entry::Send(sending) = entries.remove(key) else { unreachable!("looked at above") };
    drop(entries);
    Some((sending.result.expect("it has completed"), sending.memory))
}

impl Future for Op {
    type Output = (Result<Wc, Error>, Memory);

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Self { cq, key } = &mut *self;
        cq.wait(cx, || take(cq, key, cx))
    }
}

impl Drop for Op {
    fn drop(&mut self) {
        let Some(key) = self.key else { return };
        let mut entries = self.cq.table().lock();
        let Some(Entry::Send(sending)) = entries.get_mut(key) else { return };
        if sending.left > 0 {
            sending.waiter = Waiter::Gone;
        } else {
            let done = entries.remove(key);
            drop(entries);
            drop(done);
        }
    }
}
