//! What tests of requests as futures have in common.
#![allow(dead_code, reason = "each test program uses its part")]

use std::pin::pin;
use std::task::{Context as Task, Poll, Waker};
use std::thread;
use std::time::{Duration, Instant};

use pollster::block_on;
use verbs::aio::{self, QpOptions, SrqOptions};
use verbs::{Context, Pd};

pub(crate) fn open() -> (Context, Pd) {
    let context = verbs::devices().unwrap()[0].open().unwrap();
    let pd = context.alloc_pd().unwrap();
    (context, pd)
}

pub(crate) fn small() -> QpOptions {
    QpOptions { sends: 4, receives: 4, receive_length: 64, ..QpOptions::default() }
}

pub(crate) fn few() -> SrqOptions {
    SrqOptions { receives: 4, receive_length: 64 }
}

pub(crate) async fn send(qp: &aio::Qp, text: &str) {
    let buffer = qp.pd().register(text.as_bytes().to_vec()).unwrap();
    qp.send(buffer).await.0.unwrap();
}

/// Two connected QPs on one queue.
pub(crate) fn pair(cq: &aio::Cq, pd: &Pd, options: &QpOptions) -> (aio::Qp, aio::Qp) {
    let [a, b] = [cq.create_qp(pd, options).unwrap(), cq.create_qp(pd, options).unwrap()];
    a.connect(&b.endpoint().unwrap()).unwrap();
    b.connect(&a.endpoint().unwrap()).unwrap();
    (a, b)
}

/// A queue in each of the ways, and what drives it.
pub(crate) fn in_each_way(test: impl Fn(&aio::Cq, &Pd)) {
    let (context, pd) = open();
    test(&aio::Cq::polled(&context, 64).unwrap(), &pd);
    let (cq, driver) = aio::Cq::with_driver(&context, 64).unwrap();
    let driving = thread::spawn(|| block_on(driver));
    test(&cq, &pd);
    drop(cq);
    driving.join().unwrap().expect("the driver ends with the queue");
}

/// What becomes so within half a minute.
#[track_caller]
pub(crate) fn soon<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(began.elapsed() < Duration::from_secs(30), "it did not become so");
        thread::yield_now();
    }
}

pub(crate) fn ready<F: Future>(future: F) -> Option<F::Output> {
    let mut future = pin!(future);
    match future.as_mut().poll(&mut Task::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}
