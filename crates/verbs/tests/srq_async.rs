//! Shared receive queues as futures. `crates/peerdma` runs this file with a library, too.

mod chosen;
mod queues;

use std::collections::HashMap;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::mpsc::channel;
use std::task::Poll;
use std::thread;
use std::time::Duration;

use pollster::block_on;
use verbs::aio::{self, Connection, Drive, Nic, QpOptions, Srq, SrqOptions};
use verbs::owned::{Pool, Shared};
use verbs::{Access, AttrMask, Kind, Pd, QpAttr, QpState, Qpn, WcStatus};

use queues::{few, in_each_way, open, ready, send, small, soon};

/// A QP over the shared queue, and its peer.
fn pair(cq: &aio::Cq, pd: &Pd, srq: &Srq) -> (aio::Qp, aio::Qp) {
    let over = QpOptions { srq: Some(srq.clone()), ..small() };
    let (server, client) = (cq.create_qp(pd, &over).unwrap(), cq.create_qp(pd, &small()).unwrap());
    server.connect(&client.endpoint().unwrap()).unwrap();
    client.connect(&server.endpoint().unwrap()).unwrap();
    (server, client)
}

fn to_error(qp: &aio::Qp) {
    let attr = QpAttr { state: QpState::Err, ..QpAttr::default() };
    qp.modify(&attr, AttrMask::STATE).unwrap();
}

#[test]
fn each_qp_gives_its_own_messages_in_order() {
    in_each_way(|cq, pd| {
        let srq = cq.create_srq(pd, &few()).unwrap();
        let pairs = [(); 3].map(|()| pair(cq, pd, &srq));
        block_on(async {
            // Many times as many as there are buffers.
            for round in 0..20 {
                for (number, (_, client)) in pairs.iter().enumerate() {
                    send(client, &format!("{round} to {number}")).await;
                }
                for (number, (server, _)) in pairs.iter().enumerate().rev() {
                    let message = server.recv().await.unwrap();
                    assert_eq!(message[..], *format!("{round} to {number}").as_bytes());
                    assert_eq!(message.wc().qpn, server.qpn());
                }
            }
        });
    });
}

#[test]
fn a_queue_gives_the_messages_of_all_its_qps_in_turn() {
    in_each_way(|cq, pd| {
        let srq = cq.create_srq(pd, &few()).unwrap();
        let pairs = [(); 2].map(|()| pair(cq, pd, &srq));
        let [(one, to_one), (other, to_other)] = &pairs;
        block_on(async {
            for text in ["a", "b", "c"] {
                send(to_one, text).await;
            }
            send(to_other, "d").await;
            let mut taken = Vec::new();
            for _ in 0..4 {
                let (qpn, message) = srq.recv().await;
                taken.push((qpn, String::from_utf8_lossy(&message.unwrap()).into_owned()));
            }
            let said = |qpn: Qpn| -> Vec<&str> {
                taken.iter().filter(|(of, _)| *of == qpn).map(|(_, text)| &**text).collect()
            };
            assert_eq!((said(one.qpn()), said(other.qpn())), (vec!["a", "b", "c"], vec!["d"]));
            assert_ne!(taken[3].0, other.qpn(), "who has more does not keep others waiting");

            // What a QP gave is not given again.
            send(to_one, "e").await;
            send(to_one, "f").await;
            assert_eq!(one.recv().await.unwrap()[..], *b"e");
            let (qpn, message) = srq.recv().await;
            assert_eq!((qpn, &message.unwrap()[..]), (one.qpn(), &b"f"[..]));
            assert!(ready(srq.recv()).is_none());
        });
    });
}

/// As many messages as the queue has buffers can be held, by whomever, and then every peer waits.
#[test]
fn held_messages_hold_every_peer_back() {
    let (context, pd) = open();
    let cq = aio::Cq::polled(&context, 64).unwrap();
    let srq = cq.create_srq(&pd, &few()).unwrap();
    let (one, other) = (pair(&cq, &pd, &srq), pair(&cq, &pd, &srq));
    let mut held = Vec::new();
    block_on(async {
        for (server, client) in [&one, &other, &one, &other] {
            send(client, "held").await;
            held.push(server.recv().await.unwrap());
        }
        let buffer = pd.register(b"waits".to_vec()).unwrap();
        let mut fifth = pin!(one.1.send(buffer));
        assert!(poll_fn(|cx| Poll::Ready(fifth.as_mut().poll(cx).is_pending())).await);
        thread::sleep(Duration::from_millis(20));
        assert!(poll_fn(|cx| Poll::Ready(fifth.as_mut().poll(cx).is_pending())).await);
        // A buffer that the program kept is missed until it is dropped.
        let kept = held.pop().unwrap().into_buffer();
        assert!(poll_fn(|cx| Poll::Ready(fifth.as_mut().poll(cx).is_pending())).await);
        drop(kept);
        // This looks for buffers that are back. The peer may send again at once.
        let waited = match ready(srq.recv()) {
            Some((qpn, message)) => {
                assert_eq!(qpn, one.0.qpn());
                message.unwrap()
            }
            None => one.0.recv().await.unwrap(),
        };
        assert_eq!(waited[..], *b"waits");
        fifth.await.0.unwrap();
    });
}

/// IBA 11.6.3.1: nothing is flushed; an asynchronous event says that there is no more.
#[test]
fn a_qp_that_goes_to_error_gives_what_has_arrived_and_then_the_reason() {
    in_each_way(|cq, pd| {
        let srq = cq.create_srq(pd, &few()).unwrap();
        let (server, client) = pair(cq, pd, &srq);
        let (still, to_still) = pair(cq, pd, &srq);
        block_on(async {
            send(&client, "before").await;
            to_error(&server);
            assert_eq!(server.recv().await.unwrap()[..], *b"before");
            for _ in 0..2 {
                let error = server.recv().await.unwrap_err();
                assert_eq!(error.status(), Some(WcStatus::WrFlushErr), "{error}");
            }
            let (qpn, end) = srq.recv().await;
            assert_eq!((qpn, end.is_err()), (server.qpn(), true));
            assert!(ready(srq.recv()).is_none(), "it is said once");
            // The others go on, with every buffer.
            for round in 0..8 {
                send(&to_still, &round.to_string()).await;
                assert_eq!(still.recv().await.unwrap()[..], *round.to_string().as_bytes());
            }
        });
    });
}

/// By the peer's request, and by one of its own.
#[test]
fn a_qp_that_fails_ends_a_receive_that_waits() {
    let (context, pd) = open();
    let (cq, driver) = aio::Cq::with_driver(&context, 64).unwrap();
    let driving = thread::spawn(|| block_on(driver));
    let srq = cq.create_srq(&pd, &few()).unwrap();
    let memory = Shared::<u64>::new(&pd, 1, Access::REMOTE_READ).unwrap();
    for is_by_peer in [true, false] {
        let (server, client) = pair(&cq, &pd, &srq);
        let waits = {
            let server = server.clone();
            thread::spawn(move || block_on(server.recv()).map(drop).unwrap_err())
        };
        let (asks, qpn) = (if is_by_peer { &client } else { &server }, server.qpn());
        let buffer = pd.register(vec![1; 8]).unwrap();
        let error = block_on(asks.write(buffer, memory.remote())).0.unwrap_err();
        assert_eq!(error.status(), Some(WcStatus::RemAccessErr));
        assert_eq!(waits.join().unwrap().status(), Some(WcStatus::WrFlushErr));
        let (ended, result) = block_on(srq.recv());
        assert_eq!((ended, result.is_err()), (qpn, true));
    }
    drop((srq, cq));
    driving.join().unwrap().unwrap();
}

#[test]
fn a_dropped_receive_loses_no_message() {
    in_each_way(|cq, pd| {
        let srq = cq.create_srq(pd, &few()).unwrap();
        let (server, client) = pair(cq, pd, &srq);
        for _ in 0..3 {
            assert!(ready(server.recv()).is_none() && ready(srq.recv()).is_none());
        }
        std::mem::forget(Box::pin(srq.recv()));
        block_on(async {
            send(&client, "one").await;
            send(&client, "two").await;
            assert_eq!(server.recv().await.unwrap()[..], *b"one");
            assert_eq!(srq.recv().await.1.unwrap()[..], *b"two");
        });
    });
}

/// A message outlives its QP, and its buffer is posted again for the others. What nobody has taken
/// of a QP that is dropped is posted again, too.
#[test]
fn a_dropped_qp_takes_no_buffer_along() {
    in_each_way(|cq, pd| {
        let srq = cq.create_srq(pd, &few()).unwrap();
        block_on(async {
            let mut last = None;
            for round in 0..6 {
                let (server, client) = pair(cq, pd, &srq);
                for text in ["taken", "left", "left"] {
                    send(&client, text).await;
                }
                let message = server.recv().await.unwrap();
                drop((server, client));
                assert_eq!(message[..], *b"taken", "in round {round}");
                last = Some(message);
                cq.turn();
            }
            let (server, client) = pair(cq, pd, &srq);
            for _ in 0..3 {
                send(&client, "there is room").await;
            }
            drop(last);
            send(&client, "for four").await;
            let mut held = Vec::new();
            for _ in 0..4 {
                held.push(server.recv().await.unwrap());
            }
            assert!(ready(srq.recv()).is_none(), "a QP that the program dropped says nothing");
        });
    });
}

#[test]
fn nothing_is_left_when_all_is_dropped() {
    if chosen::is_library() {
        return; // A library does not say how many objects there are.
    }
    let device = chosen::device_for("srq_async");
    let context = device.open().unwrap();
    let counts = || {
        let of = verbs::soft::resources(&context).unwrap();
        (of.qp, of.srq, of.cq, of.mr, of.pd)
    };
    let before = counts();
    {
        let pd = context.alloc_pd().unwrap();
        let cq = aio::Cq::polled(&context, 64).unwrap();
        let srq = cq.create_srq(&pd, &few()).unwrap();
        let (server, client) = pair(&cq, &pd, &srq);
        let over = QpOptions { srq: Some(srq.clone()), ..small() };
        let never_connected = cq.create_qp(&pd, &over).unwrap();
        let pool = Pool::new(&pd, 8, 1).unwrap();
        drop(ready(client.send(pool.try_take().unwrap())));
        block_on(server.recv()).unwrap();
        drop((srq, server, client, never_connected));
    }
    soon(|| (counts() == before).then_some(()));
}

#[test]
fn a_queue_and_its_qps_have_one_completion_queue_with_room_for_both() {
    let (context, pd) = open();
    let [cq, other] = [(); 2].map(|()| aio::Cq::polled(&context, 8).unwrap());
    let refused = cq.create_srq(&pd, &SrqOptions { receives: 9, ..few() }).unwrap_err();
    assert_eq!(refused.kind(), Kind::NoMemory);
    assert!(refused.what().starts_with("create_srq: "), "{refused}");
    let srq = cq.create_srq(&pd, &few()).unwrap();
    let over = QpOptions { srq: Some(srq.clone()), ..small() };
    assert_eq!(other.create_qp(&pd, &over).unwrap_err().kind(), Kind::Invalid);
    let _one = cq.create_qp(&pd, &over).unwrap();
    assert_eq!(cq.create_qp(&pd, &over).unwrap_err().kind(), Kind::NoMemory);
    let none = cq.create_srq(&pd, &SrqOptions { receives: 0, ..few() }).unwrap_err();
    assert_eq!(none.kind(), Kind::Invalid);
}

/// Events that are not the QP's own wait for the program, whoever takes them from the device.
#[test]
fn the_program_gets_its_events_all_the_same() {
    let (context, pd) = open();
    let cq = aio::Cq::polled(&context, 64).unwrap();
    let srq = cq.create_srq(&pd, &few()).unwrap();
    let (server, client) = pair(&cq, &pd, &srq);
    let memory = Shared::<u64>::new(&pd, 1, Access::REMOTE_READ).unwrap();
    let buffer = pd.register(vec![1; 8]).unwrap();
    block_on(async {
        client.write(buffer, memory.remote()).await.0.unwrap_err();
        server.recv().await.unwrap_err();
    });
    // Of rxe, none is told of access that is refused.
    let events = std::iter::from_fn(|| context.async_event(Duration::from_millis(200)).unwrap());
    let events: Vec<_> = events.map(|event| (event.event, event.qpn)).collect();
    if !chosen::is_rxe() {
        assert!(
            events.contains(&(verbs::EventType::QpAccessErr, Some(server.qpn()))),
            "{events:?}"
        );
    }
    let last = |(event, _): &_| *event == verbs::EventType::QpLastWqeReached;
    assert!(!events.iter().any(last), "{events:?}");
}

#[test]
fn connections_share_a_queue_and_end_one_by_one() {
    const CLIENTS: u32 = 3;
    let device = chosen::device_for("srq_async_cm");
    let context = device.open().unwrap();
    let nic = Nic::new(&context, Drive::Thread).unwrap();
    let srq = nic.create_srq(&few(), 64 * CLIENTS).unwrap();
    let here = nic.ip_addr().unwrap();
    let listener = nic.listen(std::net::SocketAddr::new(here, 0)).unwrap();
    let to = listener.local_addr().to_string();
    let options = aio::ConnectionOptions {
        qp: QpOptions { srq: Some(srq.clone()), ..QpOptions::default() },
        ..aio::ConnectionOptions::default()
    };
    // A client that disconnects before the server has the ACK of its answer flushes the answer.
    let (is_acknowledged, answers): (Vec<_>, Vec<_>) = (0..CLIENTS).map(|_| channel()).unzip();
    let clients = thread::spawn(move || {
        for (number, answer) in answers.into_iter().enumerate() {
            let server: Connection = block_on(nic.connect(&to, &Default::default())).unwrap();
            block_on(async {
                send(&server, &format!("client {number}")).await;
                assert_eq!(server.recv().await.unwrap()[..], *b"answer");
                answer.recv().unwrap();
                send(&server, "the last").await;
                server.disconnect().await.unwrap();
            });
        }
    });
    block_on(async {
        let mut served = HashMap::new();
        for (number, is_acknowledged) in is_acknowledged.iter().enumerate() {
            let client = listener.accept_with(&options).await.unwrap();
            let of_client = client.qpn();
            served.insert(of_client, client);
            let (qpn, message) = srq.recv().await;
            assert_eq!(message.unwrap()[..], *format!("client {number}").as_bytes());
            assert_eq!(qpn, of_client);
            send(&served[&qpn], "answer").await;
            is_acknowledged.send(()).unwrap();
            assert_eq!(srq.recv().await.1.unwrap()[..], *b"the last");
            let (qpn, end) = srq.recv().await;
            assert_eq!((qpn, end.is_err()), (of_client, true));
            served.remove(&qpn).unwrap().closed().await.unwrap();
        }
    });
    clients.join().unwrap();
}
