//! Calls that wait, made on a thread of their own: name look-ups, and the look for a route.

use std::future::poll_fn;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};
use std::thread;

#[derive(Debug)]
struct Slot<T> {
    result: Option<thread::Result<T>>,
    waker: Option<Waker>,
}

/// The result of a call that waits. If the process can have no more threads, the caller makes it.
pub(super) async fn off_the_task<T: Send + 'static>(
    call: impl FnOnce() -> T + Send + 'static,
) -> T {
    let slot = Arc::new(Mutex::new(Slot { result: None, waker: None }));
    let call = Arc::new(Mutex::new(Some(call)));
    let run = {
        let (slot, call) = (Arc::clone(&slot), Arc::clone(&call));
        move || {
            let call = call.lock().unwrap_or_else(PoisonError::into_inner).take();
            let Some(call) = call else { return };
            let result = catch_unwind(AssertUnwindSafe(call));
            let waker = {
                let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
                slot.result = Some(result);
                slot.waker.take()
            };
            if let Some(waker) = waker {
                waker.wake();
            }
        }
    };
    if thread::Builder::new().name("verbs-resolve".into()).spawn(run.clone()).is_err() {
        run();
    }
    let result = poll_fn(|cx| {
        let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
        match slot.result.take() {
            Some(result) => Poll::Ready(result),
            None => {
                slot.waker = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    });
    result.await.unwrap_or_else(|panic| resume_unwind(panic))
}
