//! Connections as futures. `crates/peerdma` runs this file with a library, too.

mod chosen;

use std::net::SocketAddr;
use std::pin::pin;
use std::task::{Context as Task, Waker};
use std::thread;

use pollster::block_on;
use verbs::Kind;
use verbs::aio::{
    Closed, ConnectError, Connection, ConnectionOptions, Drive, Listener, Nic, QpOptions,
};
use verbs::cm::{ConnParam, RejReason};
use verbs::owned::Pool;

/// Two open NICs, as two processes have them. A software NIC is one of this test's own.
fn nics(name: &str, drive: Drive) -> (Nic, Nic) {
    let device = chosen::device_for(&format!("conf-{name}"));
    let contexts = [device.open().unwrap(), chosen::another(&device)];
    let [a, b] = contexts.map(|context| Nic::new(&context, drive).unwrap());
    (a, b)
}

fn listen(nic: &Nic) -> Listener {
    nic.listen((nic.ip_addr().unwrap(), 0).into()).unwrap()
}

/// The two ends of a connection.
fn pair(a: &Nic, listener: &Listener) -> (Connection, Connection) {
    let to = listener.local_addr().to_string();
    let (a, options) = (a.clone(), ConnectionOptions::default());
    let connecting = thread::spawn(move || block_on(a.connect(&to, &options)));
    let accepted = block_on(listener.accept()).unwrap();
    (connecting.join().unwrap().unwrap(), accepted)
}

async fn send(over: &Connection, pool: &Pool, bytes: &[u8]) {
    let mut buffer = pool.take().await;
    buffer.fill_with(bytes);
    over.send(buffer).await.0.unwrap();
}

/// Drops a future after it was polled so often, unless it is ready before.
fn give_up(future: impl Future, polls: usize) {
    let mut future = pin!(future);
    for _ in 0..polls {
        if future.as_mut().poll(&mut Task::from_waker(Waker::noop())).is_ready() {
            return;
        }
        thread::yield_now();
    }
}

#[test]
fn connections_carry_messages_and_end() {
    for drive in [Drive::Thread, Drive::Polled] {
        let (a, b) = nics(&format!("carry{drive:?}"), drive);
        let listener = listen(&b);
        for round in 0..4_u8 {
            let (near, far) = pair(&a, &listener);
            assert_eq!(near.peer_addr(), Some(listener.local_addr()));
            assert_eq!(near.local_addr(), far.peer_addr());
            let [to, back] = [&a, &b].map(|nic| Pool::new(nic.pd(), 64, 2).unwrap());
            let (is_quiet, quiet) = std::sync::mpsc::channel();
            let echo = thread::spawn(move || {
                block_on(async {
                    while let Ok(message) = far.recv().await
                        && message[..] != *b"end"
                    {
                        send(&far, &back, &message).await;
                    }
                    // The last one is not answered: nothing is in flight when the peer ends it.
                    is_quiet.send(()).unwrap();
                    far.recv().await.expect_err("the peer ended it");
                    assert_eq!(far.closed().await, Ok(Closed::Disconnected));
                    assert_eq!(far.closed().await, Ok(Closed::Disconnected), "it stays so");
                });
            });
            block_on(async {
                for number in 0..10 {
                    send(&near, &to, &[round, number]).await;
                    assert_eq!(near.recv().await.unwrap()[..], [round, number]);
                }
                send(&near, &to, b"end").await;
                quiet.recv().unwrap();
                assert_eq!(near.disconnect().await, Ok(Closed::Disconnected));
            });
            echo.join().unwrap();
        }
    }
}

#[test]
fn what_was_sent_before_the_end_arrives() {
    let (a, b) = nics("before", Drive::Thread);
    let (near, far) = pair(&a, &listen(&b));
    let pool = Pool::new(a.pd(), 8, 8).unwrap();
    block_on(async {
        for number in 0..8 {
            send(&near, &pool, &[number]).await;
        }
        drop(near);
        assert_eq!(far.closed().await, Ok(Closed::Disconnected));
        for number in 0..8 {
            assert_eq!(far.recv().await.unwrap()[..], [number]);
        }
        let error = far.recv().await.expect_err("the peer is gone");
        assert!(error.to_string().contains("receive"), "{error}");
        // A library gives no reasons.
        let says_why = error.to_string().ends_with("the peer ended its connection");
        assert_eq!(says_why, !chosen::is_library(), "{error}");
    });
}

#[test]
fn a_request_has_private_data_and_is_answered() {
    let (a, b) = nics("private", Drive::Thread);
    let listener = listen(&b);
    let to = listener.local_addr().to_string();
    let said = |words: &[u8]| ConnectionOptions {
        param: ConnParam { private_data: words.to_vec(), ..ConnParam::default() },
        qp: QpOptions { receives: 2, ..QpOptions::default() },
        ..ConnectionOptions::default()
    };
    let server = thread::spawn(move || {
        block_on(async {
            let request = listener.request().await.unwrap();
            assert_eq!(&request.param().private_data[..6], b"enemy\0");
            request.reject(b"friends only").unwrap();
            let request = listener.request().await.unwrap();
            assert_eq!(&request.param().private_data[..7], b"friend\0");
            let from = request.peer_addr();
            let far = request.accept(&said(b"welcome")).await.unwrap();
            assert_eq!(far.peer_addr(), from);
            drop(listener.request().await.unwrap());
            far
        })
    });
    block_on(async {
        let error = a.connect(&to, &said(b"enemy")).await.expect_err("refused in words");
        let ConnectError::Rejected { reason, private_data } = error else { panic!("{error}") };
        assert_eq!(reason, RejReason::CONSUMER_DEFINED);
        assert_eq!(&private_data[..12], b"friends only");
        let near = a.connect(&to, &said(b"friend")).await.unwrap();
        assert_eq!(&near.param().private_data[..8], b"welcome\0");
        let error = a.connect(&to, &said(b"")).await.expect_err("dropped");
        assert!(error.to_string().contains("the peer refused"), "{error}");
        let far = server.join().unwrap();
        drop(far);
        assert_eq!(near.closed().await, Ok(Closed::Disconnected));
    });
}

/// A listener has many connections at once; peers that give up hold up nobody.
#[test]
fn many_connections_share_a_nic() {
    const MANY: usize = 40;
    let (a, b) = nics("many", Drive::Thread);
    let listener = listen(&b);
    let to = listener.local_addr().to_string();
    let options = ConnectionOptions {
        qp: QpOptions { sends: 2, receives: 2, receive_length: 64, ..QpOptions::default() },
        ..ConnectionOptions::default()
    };
    let server = thread::spawn({
        let options = options.clone();
        move || {
            let mut all = Vec::new();
            let pool = Pool::new(b.pd(), 64, 1).unwrap();
            while all.len() < MANY {
                let far = block_on(listener.accept_with(&options)).unwrap();
                block_on(async {
                    // Nothing comes from one that gave up as soon as it was connected.
                    let Ok(message) = far.recv().await else { return };
                    send(&far, &pool, &message).await;
                    all.push(far);
                });
            }
            // They end together.
            drop(listener);
            drop(all);
        }
    });
    let pool = Pool::new(a.pd(), 64, 1).unwrap();
    let mut all = Vec::new();
    for number in 0..MANY {
        // One that gives up: before the request is sent, in the midst of the handshake, or later.
        give_up(a.connect(&to, &options), number * number);
        let near = block_on(a.connect(&to, &options)).unwrap();
        block_on(send(&near, &pool, &number.to_ne_bytes()));
        all.push(near);
    }
    for (number, near) in all.iter().enumerate() {
        assert_eq!(block_on(near.recv()).unwrap()[..], number.to_ne_bytes());
    }
    server.join().unwrap();
    for near in &all {
        assert_eq!(block_on(near.closed()), Ok(Closed::Disconnected));
    }
}

#[test]
fn what_cannot_be_connected_is_refused_in_words() {
    let (a, b) = nics("refused", Drive::Thread);
    let at = {
        let listener = listen(&b);
        let taken = b.listen(listener.local_addr()).expect_err("the same port");
        assert_eq!(taken.kind(), Kind::AddressInUse);
        listener.local_addr()
    };
    let options = ConnectionOptions::default();
    let fails = |to: &str, options: &ConnectionOptions| {
        block_on(a.connect(to, options)).expect_err("there is no such peer")
    };
    let error = fails(&at.to_string(), &options);
    assert!(matches!(error, ConnectError::Rejected { .. }), "nobody listens: {error}");
    let error = fails("nowhere.invalid:7471", &options);
    assert!(matches!(error, ConnectError::Name(..)), "{error}");
    assert!(error.to_string().contains("nowhere.invalid:7471"), "{error}");
    let elsewhere: SocketAddr = "192.0.2.1:7".parse().unwrap();
    let from = ConnectionOptions { from: Some(elsewhere), ..options.clone() };
    let error = fails(&at.to_string(), &from);
    assert!(matches!(error, ConnectError::Refused(_)), "{error}");
    let long = ConnParam { private_data: vec![0; 57], ..ConnParam::default() };
    let error = fails(&at.to_string(), &ConnectionOptions { param: long, ..options.clone() });
    assert!(error.to_string().contains("57 bytes of private data"), "{error}");
    let error = block_on(Listener::bind("192.0.2.1:0")).expect_err("no device has it");
    assert!(matches!(error, ConnectError::Refused(_)), "{error}");
}

/// No ceremony: the devices, domains and queues are the library's business.
#[test]
fn an_address_is_enough() {
    let device = &verbs::devices().unwrap()[0];
    let ip = device.open().unwrap().default_gid().unwrap().gid.to_ip();
    let at = SocketAddr::new(ip, 0).to_string();
    let listener = block_on(Listener::bind(&at)).unwrap();
    let to = listener.local_addr().to_string();
    // A message that has arrived may not be acknowledged yet, and is flushed if the end comes
    // first.
    let (acknowledged, is_acknowledged) = std::sync::mpsc::channel();
    let client = thread::spawn(move || {
        block_on(async {
            let near = Connection::connect(&to).await.unwrap();
            let pool = Pool::new(near.pd(), 64, 1).unwrap();
            send(&near, &pool, b"hello").await;
            acknowledged.send(()).unwrap();
            near.closed().await
        })
    });
    let far = block_on(listener.accept()).unwrap();
    assert_eq!(block_on(far.recv()).unwrap()[..], *b"hello");
    is_acknowledged.recv().unwrap();
    assert_eq!(block_on(far.disconnect()), Ok(Closed::Disconnected));
    assert_eq!(client.join().unwrap(), Ok(Closed::Disconnected));
}
