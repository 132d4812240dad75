//! Requests as futures. `crates/peerdma` runs this file with a library, too.

mod chosen;
mod queues;

use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::task::{Context as Task, Poll, Wake, Waker};
use std::thread;
use std::time::Duration;

use pollster::block_on;
use verbs::aio::{self, Error, Outcome, QpOptions};
use verbs::owned::{Buffer, Pool, RemoteSlice, Shared};
use verbs::{Access, Kind, PostError, WcOpcode, WcStatus};

use queues::{in_each_way, open, pair, ready, small, soon};

/// For a queue that the test turns: a task takes one completion at most when it is polled.
struct Never;

impl aio::Readiness for Never {
    fn poll_readable(&mut self, _cx: &mut Task<'_>) -> Poll<std::io::Result<()>> {
        Poll::Pending
    }
}

#[track_caller]
fn done<T, B>((result, memory): Outcome<T, B>) -> B {
    result.map(drop).unwrap();
    memory
}

#[test]
fn messages_arrive_one_by_one() {
    in_each_way(|cq, pd| {
        let (a, b) = pair(cq, pd, &small());
        let mut buffer = pd.register(vec![0_u8; 64]).unwrap();
        let buffer = block_on(async {
            for round in 0..20_u8 {
                buffer.fill_with(&[round; 5]);
                buffer = done(a.send_with_imm(buffer, u32::from(round)).await);
                let message = b.recv().await.unwrap();
                assert_eq!(message[..], [round; 5]);
                assert_eq!(message.imm(), Some(u32::from(round)));
                assert_eq!(message.wc().opcode, WcOpcode::Recv);
            }
            buffer
        });
        let memory: Vec<u8> = buffer.into_owner().unwrap().unwrap();
        assert_eq!(memory[..5], [19; 5]);
    });
}

#[test]
fn one_sided_requests_move_typed_memory() {
    in_each_way(|cq, pd| {
        let (a, _b) = pair(cq, pd, &small());
        let there = Shared::<u64>::new(pd, 8, Access::REMOTE).unwrap();
        let remote = RemoteSlice::from_bytes(&there.remote().to_bytes()).unwrap();
        block_on(async {
            let mut buffer = pd.register(vec![7_u8; 16]).unwrap();
            buffer = done(a.write(buffer, remote.get(2..4).unwrap()).await);
            let seven = u64::from_ne_bytes([7; 8]);
            assert_eq!(
                [there.get(1), there.get(2), there.get(3), there.get(4)],
                [0, seven, seven, 0]
            );
            there.set(0, 41);
            buffer = done(a.read(buffer, remote.at(0).unwrap()).await);
            assert_eq!(buffer[..], 41_u64.to_ne_bytes());

            assert_eq!(a.fetch_add(remote, 1).await.unwrap(), 41);
            assert_eq!(a.compare_swap(remote, 42, 50).await.unwrap(), 42);
            assert_eq!(a.compare_swap(remote, 42, 60).await.unwrap(), 50);
            assert_eq!(there.load(0, Ordering::Acquire), 50);

            // Memory of a region that peers reach is a place for requests, too.
            let here = Shared::<u64>::new(pd, 4, Access::empty()).unwrap();
            done(a.read(here.range(1, 2).unwrap(), remote.get(1..3).unwrap()).await);
            assert_eq!([here.get(0), here.get(1), here.get(2), here.get(3)], [0, 0, seven, 0]);
        });
    });
}

#[test]
fn shared_memory_may_lie_in_a_file() {
    in_each_way(|cq, pd| {
        let (a, _b) = pair(cq, pd, &small());
        let there = Shared::<u64>::in_file(pd, 8, Access::REMOTE).unwrap();
        let at = |index| there.remote().at(index).unwrap();
        block_on(async {
            done(a.write(pd.register(vec![7_u8; 8]).unwrap(), at(3)).await);
            assert_eq!(a.fetch_add(at(7), 5).await.unwrap(), 0);
            assert_eq!((there.get(3), there.get(4)), (u64::from_ne_bytes([7; 8]), 0));
            assert_eq!(there.load(7, Ordering::Acquire), 5);
        });
    });
}

#[test]
fn a_request_that_leaves_its_bounds_is_refused_before_it_is_posted() {
    let (context, pd) = open();
    let cq = aio::Cq::polled(&context, 64).unwrap();
    let (a, _b) = pair(&cq, &pd, &small());
    let there = Shared::<u8>::new(&pd, 16, Access::REMOTE).unwrap();
    let buffer = pd.register(vec![1_u8; 17]).unwrap();
    block_on(async {
        let (result, mut buffer) = a.write(buffer, there.remote()).await;
        let Err(Error::Refused(refusal)) = result else { panic!("{result:?}") };
        assert_eq!(refusal.what(), "a WRITE of 17 bytes: the remote slice has 16");
        buffer.set_len(16);
        buffer = done(a.write(buffer, there.remote()).await);

        let mut small = pd.register(vec![0_u8; 15]).unwrap();
        let (result, back) = a.read(small, there.remote()).await;
        assert!(
            matches!(&result, Err(Error::Refused(r)) if r.kind() == Kind::Invalid),
            "{result:?}"
        );
        small = back;
        assert_eq!(small.len(), 15);

        let none = RemoteSlice::<u64>::new(there.remote().remote(), 0).unwrap();
        assert!(matches!(a.fetch_add(none, 1).await, Err(Error::Refused(_))));
        drop(buffer);
    });
    assert_eq!(a.query().unwrap().state, verbs::QpState::Rts);
}

/// The request goes on without its future, and its buffer returns to the pool when it is done.
#[test]
fn a_dropped_future_frees_nothing_in_flight() {
    let (context, pd) = open();
    let cq = aio::Cq::polled(&context, 64).unwrap();
    let (a, b) = pair(&cq, &pd, &small());
    let pool = Pool::new(&pd, 64, 2).unwrap();
    let mut buffer = pool.try_take().unwrap();
    buffer.fill_with(b"dropped");
    // With no completion looked for between: the first poll posts, and may see it done.
    drop(ready(a.send(buffer)));
    let mut buffer = pool.try_take().unwrap();
    buffer.fill_with(b"forgotten");
    let mut forgotten = Box::pin(a.send(buffer));
    let _ = forgotten.as_mut().poll(&mut Task::from_waker(Waker::noop()));
    std::mem::forget(forgotten);
    block_on(async {
        assert_eq!(&b.recv().await.unwrap()[..], b"dropped");
        assert_eq!(&b.recv().await.unwrap()[..], b"forgotten");
    });
    cq.turn();
    assert!(pool.free() >= 1, "the dropped one is back");
}

/// The driver and the tasks that wait look at the queue at the same time.
#[test]
fn messages_keep_their_order_whoever_takes_them() {
    const MANY: u32 = 20_000;
    let (context, pd) = open();
    let (cq, driver) = aio::Cq::with_driver(&context, 256).unwrap();
    let driving = thread::spawn(|| block_on(driver));
    let options = QpOptions { sends: 32, receives: 32, receive_length: 64, ..small() };
    let (a, b) = pair(&cq, &pd, &options);
    let receiving = thread::spawn(move || {
        for number in 0..MANY {
            let message = block_on(b.recv()).unwrap();
            assert_eq!(message[..], number.to_ne_bytes());
        }
    });
    let pool = Pool::new(&pd, 4, 32).unwrap();
    block_on(async {
        for first in (0..MANY).step_by(32) {
            let mut batch = a.batch();
            for number in first..(first + 32).min(MANY) {
                let mut buffer = pool.take().await;
                buffer.fill_with(&number.to_ne_bytes());
                batch = batch.send(buffer);
            }
            done(batch.post().await);
        }
    });
    receiving.join().unwrap();
    drop((a, cq));
    driving.join().unwrap().unwrap();
}

#[test]
fn a_dropped_receive_loses_no_message() {
    in_each_way(|cq, pd| {
        let (a, b) = pair(cq, pd, &small());
        for _ in 0..3 {
            assert!(ready(b.recv()).is_none());
        }
        block_on(async {
            let mut buffer = pd.register(vec![0_u8; 8]).unwrap();
            let mut next = 0;
            for byte in 0..4 {
                buffer.fill_with(&[byte]);
                buffer = done(a.send(buffer).await);
                // Looked for once, and given up if none is here yet.
                if let Some(message) = ready(b.recv()) {
                    assert_eq!(message.unwrap()[..], [next]);
                    next += 1;
                }
            }
            for byte in next..4 {
                assert_eq!(b.recv().await.unwrap()[..], [byte]);
            }
        });
    });
}

/// More requests than the queue has places: they wait their turn, and none is refused.
#[test]
fn a_full_queue_is_waited_for() {
    in_each_way(|cq, pd| {
        let (a, b) = pair(cq, pd, &small());
        let there = Shared::<u32>::new(pd, 1, Access::REMOTE).unwrap();
        let remote = there.remote();
        let done_count = Arc::new(AtomicU32::new(0));
        thread::scope(|scope| {
            for _ in 0..4 {
                let (a, count) = (a.clone(), Arc::clone(&done_count));
                scope.spawn(move || {
                    block_on(async {
                        let mut buffer = a.pd().register(vec![1_u8; 4]).unwrap();
                        for _ in 0..50 {
                            buffer = done(a.write(buffer, remote).await);
                            count.fetch_add(1, Ordering::Relaxed);
                        }
                    });
                });
            }
        });
        assert_eq!(done_count.load(Ordering::Relaxed), 200);
        drop(b);
    });
}

/// Nobody waits for what fills the queue, and the peer takes nothing for a while.
#[test]
fn a_queue_that_dropped_futures_fill_is_waited_for() {
    in_each_way(|cq, pd| {
        let (a, b) = pair(cq, pd, &QpOptions { receives: 5, ..small() });
        let send = |number: u8| a.send(pd.register(vec![number; 8]).unwrap());
        let mut held = Vec::new();
        for _ in 0..5 {
            block_on(async { done(send(9).await) });
            held.push(block_on(b.recv()).unwrap());
        }
        for number in 0..4 {
            assert!(ready(send(number)).is_none());
        }
        thread::scope(|scope| {
            scope.spawn(|| {
                thread::sleep(Duration::from_millis(20));
                drop(held);
            });
            block_on(async { done(send(4).await) });
        });
        for number in 0..5 {
            assert_eq!(block_on(b.recv()).unwrap()[..], [number; 8]);
        }
    });
}

#[test]
fn a_batch_completes_as_one() {
    in_each_way(|cq, pd| {
        let (a, b) = pair(cq, pd, &small());
        let there = Shared::<u32>::new(pd, 4, Access::REMOTE).unwrap();
        let pool = Pool::new(pd, 4, 8).unwrap();
        let word = |value: u32| {
            let mut buffer = pool.try_take().unwrap();
            buffer.fill_with(&value.to_ne_bytes());
            buffer
        };
        let at = |index: u64| there.remote().at(index).unwrap();
        block_on(async {
            let batch = a.batch().write(word(1), at(0)).write(word(2), at(1)).send(word(3));
            assert_eq!(batch.len(), 3);
            let (result, buffers) = batch.post().await;
            result.unwrap();
            assert_eq!(buffers.len(), 3);
            assert_eq!(buffers[1][..], 2_u32.to_ne_bytes());
            assert_eq!(b.recv().await.unwrap()[..], 3_u32.to_ne_bytes());
            assert_eq!([there.get(0), there.get(1)], [1, 2]);
            drop(buffers);

            let (result, buffers) =
                a.batch().read(word(0), at(1)).write_with_imm(word(9), at(3), 77).post().await;
            result.unwrap();
            assert_eq!(buffers[0][..], 2_u32.to_ne_bytes());
            let message = b.recv().await.unwrap();
            assert_eq!((message.imm(), message.len(), there.get(3)), (Some(77), 0, 9));
            drop(buffers);

            // More than the queue takes at once would wait for ever.
            let five = (0..5).fold(a.batch(), |batch, value| batch.write(word(value), at(0)));
            let (result, buffers) = five.post().await;
            assert!(matches!(result, Err(Error::Post(PostError::Full(4)))), "{result:?}");
            assert_eq!(buffers.len(), 5);
            assert_eq!(there.get(0), 1, "none was posted");

            let (result, none) = a.batch::<Buffer>().post().await;
            assert!(result.is_ok() && none.is_empty());
        });
        assert_eq!(pool.free(), 8);
    });
}

/// The first error of a batch is its error, and the buffers of those behind it come back, too.
#[test]
fn a_batch_fails_by_its_first_error() {
    let (context, pd) = open();
    let cq = aio::Cq::polled(&context, 64).unwrap();
    let (a, _b) = pair(&cq, &pd, &small());
    let there = Shared::<u32>::new(&pd, 4, Access::REMOTE_READ).unwrap();
    let pool = Pool::new(&pd, 4, 3).unwrap();
    let take = || pool.try_take().unwrap();
    block_on(async {
        let batch = a.batch().read(take(), there.remote().at(0).unwrap());
        let batch = batch.write(take(), there.remote().at(1).unwrap()).send(take());
        let (result, buffers) = batch.post().await;
        assert_eq!(buffers.len(), 3);
        assert_eq!(result.unwrap_err().status(), Some(WcStatus::RemAccessErr));
        drop(buffers);
    });
    assert_eq!(pool.free(), 3);
}

/// On a reliable connection; what completes before the first that fails does so in silence.
#[test]
fn a_batch_has_one_completion_and_one_for_each_request_that_fails() {
    let (context, pd) = open();
    let (cq, _driver) = aio::Cq::with_readiness(&context, 64, |_cq| Ok(Never)).unwrap();
    let options = QpOptions { sends: 8, ..small() };
    let (a, b) = pair(&cq, &pd, &options);
    let there = Shared::<u32>::new(&pd, 4, Access::REMOTE_WRITE).unwrap();
    let pool = Pool::new(&pd, 4, 8).unwrap();
    let take = || pool.try_take().unwrap();
    let at = |index: u64| there.remote().at(index).unwrap();
    let completions = |batch: aio::Batch<'_, Buffer>| {
        let mut posting = Box::pin(batch.post());
        let mut taken = 0;
        let result = soon(|| {
            // The first look posts.
            taken += cq.turn();
            match posting.as_mut().poll(&mut Task::from_waker(Waker::noop())) {
                Poll::Ready(done) => Some(done),
                Poll::Pending => None,
            }
        });
        (result, taken)
    };
    for _ in 0..3 {
        let batch = (0..8).fold(a.batch(), |batch, _| batch.write(take(), at(0)));
        let ((result, buffers), taken) = completions(batch);
        result.unwrap();
        assert_eq!(buffers.len(), 8);
        assert!(taken <= 1, "{taken} completions");
    }
    let reads = Shared::<u32>::new(&pd, 4, Access::REMOTE_READ).unwrap();
    let batch = a.batch().write(take(), at(0)).write(take(), at(1));
    let batch = batch.write(take(), reads.remote().at(2).unwrap());
    let batch = (0..3).fold(batch, |batch, _| batch.write(take(), at(3)));
    let ((result, buffers), _) = completions(batch);
    assert_eq!(result.unwrap_err().status(), Some(WcStatus::RemAccessErr));
    drop(buffers);
    assert_eq!(pool.free(), 8);
    // Nothing more comes, and the places are free.
    assert_eq!(cq.turn(), 0);
    let ((result, _), _) = completions((0..8).fold(a.batch(), |batch, _| batch.send(take())));
    assert_eq!(result.unwrap_err().status(), Some(WcStatus::WrFlushErr));
    drop(b);
}

#[test]
fn a_dropped_batch_frees_nothing_in_flight() {
    let (context, pd) = open();
    let cq = aio::Cq::polled(&context, 64).unwrap();
    let (a, b) = pair(&cq, &pd, &small());
    let pool = Pool::new(&pd, 64, 4).unwrap();
    let message = |text: &[u8]| {
        let mut buffer = pool.try_take().unwrap();
        buffer.fill_with(text);
        buffer
    };
    drop(ready(a.batch().send(message(b"one")).send(message(b"two")).post()));
    let mut forgotten = Box::pin(a.batch().send(message(b"three")).send(message(b"four")).post());
    let _ = forgotten.as_mut().poll(&mut Task::from_waker(Waker::noop()));
    std::mem::forget(forgotten);
    block_on(async {
        for text in ["one", "two", "three", "four"] {
            assert_eq!(&b.recv().await.unwrap()[..], text.as_bytes());
        }
    });
    soon(|| {
        cq.turn();
        (pool.free() >= 2).then_some(())
    });
}

/// Bytes that the request has are not read again. A part of a region is never copied.
#[test]
fn short_requests_are_inline() {
    let (context, pd) = open();
    let cq = aio::Cq::polled(&context, 64).unwrap();
    let (a, b) = pair(&cq, &pd, &QpOptions { inline: 16, ..small() });
    let there = Shared::<u64>::new(&pd, 4, Access::REMOTE).unwrap();
    block_on(async {
        let mut buffer = pd.register(vec![0_u8; 64]).unwrap();
        for length in [0, 1, 16, 17, 64] {
            let bytes: Vec<u8> = (0..length).map(|at| at as u8 ^ 0x5a).collect();
            buffer.fill_with(&bytes);
            buffer = done(a.send(buffer).await);
            assert_eq!(b.recv().await.unwrap()[..], bytes);
        }
        for (index, length) in [(0, 8), (1, 24)] {
            buffer.fill_with(&[7; 24][..length]);
            buffer = done(a.write(buffer, there.remote().get(index..).unwrap()).await);
        }
        buffer = done(a.read(buffer, there.remote().get(..2).unwrap()).await);
        assert_eq!(buffer[..], [7; 16]);
        done(a.send(there.range(2, 1).unwrap()).await);
        assert_eq!(b.recv().await.unwrap()[..], [7; 8]);
        let batch = ["a", "longer than inline"].into_iter().fold(a.batch(), |batch, text| {
            let mut buffer = pd.register(vec![0_u8; 32]).unwrap();
            buffer.fill_with(text.as_bytes());
            batch.send(buffer)
        });
        done(batch.post().await);
        for text in ["a", "longer than inline"] {
            assert_eq!(&b.recv().await.unwrap()[..], text.as_bytes());
        }
    });
}

#[test]
fn an_error_has_its_reason() {
    in_each_way(|cq, pd| {
        let (a, b) = pair(cq, pd, &small());
        let there = Shared::<u8>::new(pd, 16, Access::REMOTE_READ).unwrap();
        let buffer = pd.register(vec![1_u8; 16]).unwrap();
        let (result, buffer) = block_on(a.write(buffer, there.remote()));
        let error = result.unwrap_err();
        assert_eq!(error.status(), Some(WcStatus::RemAccessErr));
        let text = error.to_string();
        assert!(text.contains("failed: REM_ACCESS_ERR"), "{text}");
        if !chosen::is_library() {
            assert!(text.contains("the peer refused access"), "{text}");
        }
        // The QP is in error, and so is its peer's.
        let (result, _buffer) = block_on(a.send(buffer));
        assert_eq!(result.unwrap_err().status(), Some(WcStatus::WrFlushErr));
        for qp in [&a, &b] {
            let error = block_on(qp.recv()).unwrap_err();
            assert_eq!(error.status(), Some(WcStatus::WrFlushErr), "{error}");
        }
    });
}

/// What is in flight on a dropped QP comes back to its pool, and its room to the queue.
#[test]
fn a_dropped_qp_gives_back_what_it_had() {
    let (context, pd) = open();
    let cq = aio::Cq::polled(&context, 8).unwrap();
    let pool = Pool::new(&pd, 64, 4).unwrap();
    for _ in 0..3 {
        // A device may flush at its leisure.
        let alone = soon(|| {
            cq.turn();
            cq.create_qp(&pd, &small()).ok()
        });
        let refused = cq.create_qp(&pd, &small()).unwrap_err();
        assert_eq!(refused.kind(), Kind::NoMemory);
        assert!(refused.what().contains("could overrun"), "{refused}");
        // Nobody answers there.
        let mut nowhere = alone.endpoint().unwrap();
        nowhere.qpn = verbs::Qpn::new(0xfff0);
        alone.connect(&nowhere).unwrap();
        assert!(ready(alone.send(pool.try_take().unwrap())).is_none());
        assert_eq!(pool.free(), 3);
        drop(alone);
        soon(|| {
            cq.turn();
            (pool.free() == 4).then_some(())
        });
    }
}

/// A queue whose driver is dropped goes on: the tasks look for themselves.
#[test]
fn a_queue_goes_on_without_its_driver() {
    let (context, pd) = open();
    let (cq, driver) = aio::Cq::with_driver(&context, 64).unwrap();
    let (a, b) = pair(&cq, &pd, &small());
    let (told, hears) = mpsc::channel();
    let waits = thread::spawn(move || {
        told.send(()).unwrap();
        let message = block_on(b.recv()).unwrap();
        message.to_vec()
    });
    hears.recv().unwrap();
    drop(driver);
    let mut buffer = pd.register(vec![0_u8; 8]).unwrap();
    buffer.fill_with(b"alone");
    done(block_on(a.send(buffer)));
    assert_eq!(waits.join().unwrap(), b"alone");
}

/// As many messages as there are receives can be held, and then the sender waits.
#[test]
fn held_messages_hold_the_sender_back() {
    let (context, pd) = open();
    let cq = aio::Cq::polled(&context, 64).unwrap();
    let (a, b) = pair(&cq, &pd, &small());
    let mut held = Vec::new();
    block_on(async {
        let mut buffer = pd.register(vec![0_u8; 1]).unwrap();
        for _ in 0..4 {
            buffer = done(a.send(buffer).await);
            held.push(b.recv().await.unwrap());
        }
        let mut fifth = pin!(a.send(buffer));
        assert!(poll_fn(|cx| Poll::Ready(fifth.as_mut().poll(cx).is_pending())).await);
        thread::sleep(Duration::from_millis(20));
        assert!(poll_fn(|cx| Poll::Ready(fifth.as_mut().poll(cx).is_pending())).await);
        // A buffer that the program kept is missed until it is dropped.
        let kept = held.pop().unwrap().into_buffer();
        assert!(poll_fn(|cx| Poll::Ready(fifth.as_mut().poll(cx).is_pending())).await);
        drop(kept);
        b.recv().await.unwrap();
        done(fifth.await);
    });
}

/// rxe has both, and Debian's library for it neither.
#[test]
fn a_word_is_stored_and_what_was_written_is_flushed() {
    let (context, pd) = open();
    let cq = aio::Cq::polled(&context, 64).unwrap();
    let access = Access::LOCAL_WRITE | Access::REMOTE | Access::FLUSH_GLOBAL;
    let (a, _b) = pair(&cq, &pd, &QpOptions { access, ..small() });
    let words = Shared::<u64>::new(&pd, 4, Access::REMOTE | Access::FLUSH_GLOBAL).unwrap();
    block_on(async {
        let stored = a.atomic_write(words.remote().at(2).unwrap(), 7).await;
        let flushed = a.flush(words.remote(), false).await;
        if chosen::is_rxe() {
            for refused in [stored, flushed] {
                assert!(matches!(refused, Err(Error::Post(PostError::Absent(_)))), "{refused:?}");
            }
            return;
        }
        stored.unwrap();
        flushed.unwrap();
        assert_eq!((words.get(1), words.get(2)), (0, 7));
        let none = a.atomic_write(words.remote().get(4..).unwrap(), 7).await.unwrap_err();
        assert!(none.to_string().contains("no word"), "{none}");
        // What the QP of the peer does not grant at all is no valid request there.
        let error = a.flush(words.remote(), true).await.unwrap_err();
        assert_eq!(error.status(), Some(WcStatus::RemInvReqErr), "{error}");
    });
}

#[test]
fn datagrams_carry_what_was_sent() {
    let (context, pd) = open();
    let cq = aio::Cq::polled(&context, 256).unwrap();
    let [a, b] = [(); 2].map(|()| {
        let qp = cq.create_qp(&pd, &QpOptions { receive_length: 64, ..QpOptions::datagrams() });
        let qp = qp.unwrap();
        qp.to_rts().unwrap();
        qp
    });
    let ah = pd.create_ah(context.av_to(b.endpoint().unwrap().gid)).unwrap();
    let buffer = pd.register_const(&b"a datagram"[..]).unwrap();
    block_on(async {
        done(a.send_to(buffer, &ah, b.qpn(), verbs::DEFAULT_QKEY).await);
        let message = b.recv().await.unwrap();
        assert_eq!(&message[..], b"a datagram");
        assert_eq!(message.wc().src_qpn, a.qpn());
    });
}

#[test]
fn a_qp_without_receives_says_so() {
    let (context, pd) = open();
    let cq = aio::Cq::polled(&context, 64).unwrap();
    let qp = cq.create_qp(&pd, &QpOptions { receives: 0, ..small() }).unwrap();
    let error = block_on(qp.recv()).unwrap_err();
    assert!(error.to_string().contains("created without receives"), "{error}");
    let none = cq.create_qp(&pd, &QpOptions { sends: 0, ..small() }).unwrap_err();
    assert_eq!(none.kind(), Kind::Invalid);
}

#[test]
fn owners_come_back_from_their_registration() {
    let (_context, pd) = open();
    let text = pd.register_const(Arc::<[u8]>::from(&b"shared"[..])).unwrap();
    assert_eq!(&text[..], b"shared");
    let text = text.into_owner::<Vec<u8>>().expect_err("it is no vector");
    let text: Arc<[u8]> = text.into_owner().unwrap().unwrap();
    assert_eq!(Arc::strong_count(&text), 1);
    let boxed = pd.register(vec![3_u8; 3].into_boxed_slice()).unwrap();
    assert_eq!(boxed.into_owner::<Box<[u8]>>().unwrap().unwrap()[..], [3; 3]);
    let piece = Pool::new(&pd, 8, 1).unwrap().try_take().unwrap();
    assert!(piece.into_owner::<Vec<u8>>().is_err());
    assert_eq!(pd.register(Vec::new()).unwrap_err().kind(), Kind::Invalid);
    assert_eq!(Pool::new(&pd, 0, 1).unwrap_err().kind(), Kind::Invalid);
    assert_eq!(Pool::new(&pd, usize::MAX, 2).unwrap_err().kind(), Kind::Invalid);
}

#[test]
fn buffers_of_a_pool_are_apart() {
    let (_context, pd) = open();
    for pool in [Pool::new(&pd, 100, 3).unwrap(), Pool::in_huge_pages(&pd, 100, 3).unwrap()] {
        let mut buffers: Vec<Buffer> = (0..3).map(|_| pool.try_take().unwrap()).collect();
        assert!(pool.try_take().is_none());
        for (number, buffer) in buffers.iter_mut().enumerate() {
            assert_eq!((buffer.len(), buffer.capacity()), (100, 100));
            buffer.fill(number as u8);
        }
        for (number, buffer) in buffers.iter().enumerate() {
            assert!(buffer.iter().all(|byte| usize::from(*byte) == number));
        }
        let waits = pool.clone();
        let waiter = thread::spawn(move || block_on(waits.take())[0]);
        drop(buffers.remove(1));
        assert_eq!(waiter.join().unwrap(), 1);
    }
}

/// A program with an event loop of its own: it polls the descriptor and turns the queue.
#[test]
fn an_event_loop_can_turn_the_queue() {
    #[derive(Default)]
    struct Woken(AtomicU32);
    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Release);
        }
    }
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    let (context, pd) = open();
    let (cq, _driver) = aio::Cq::with_readiness(&context, 64, |_cq| Ok(Never)).unwrap();
    let (a, b) = pair(&cq, &pd, &small());
    cq.turn();
    let woken = Arc::new(Woken::default());
    let waker = Waker::from(Arc::clone(&woken));
    let mut task = Task::from_waker(&waker);
    let mut receives = pin!(b.recv());
    assert!(receives.as_mut().poll(&mut task).is_pending());
    let sender = thread::spawn(move || {
        let mut buffer = pd.register(vec![0_u8; 8]).unwrap();
        buffer.fill_with(b"by hand");
        let _ = ready(a.send(buffer));
        a
    });
    let _a = sender.join().unwrap();
    while woken.0.load(Ordering::Acquire) == 0 {
        let timeout = Timespec { tv_sec: 20, tv_nsec: 0 };
        let ready = poll(&mut [PollFd::new(&cq, PollFlags::IN)], Some(&timeout)).unwrap();
        assert_eq!(ready, 1, "an event within twenty seconds");
        cq.turn();
    }
    let Poll::Ready(message) = receives.as_mut().poll(&mut task) else { panic!("it was woken") };
    assert_eq!(&message.unwrap()[..], b"by hand");
}
