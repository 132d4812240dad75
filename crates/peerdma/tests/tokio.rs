//! Requests as futures in programs of tokio, on the software device and on a NIC of a library.

mod common;

use std::os::fd::AsRawFd;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::time::timeout;
use verbs::aio::{self, QpOptions};
use verbs::cm::{ConnParam, EventChannel, EventKind};
use verbs::owned::{Pool, RemoteSlice, Shared};
use verbs::{Access, Context, Endpoint, Pd, QpSpec, SendRequest};

const LONG: Duration = Duration::from_secs(20);

fn open() -> (Context, Pd) {
    let context = verbs::devices().unwrap()[0].open().unwrap();
    let pd = context.alloc_pd().unwrap();
    (context, pd)
}

fn pair(context: &Context, pd: &Pd) -> (aio::Qp, aio::Qp) {
    let cq = aio::Cq::spawn(context, 256).unwrap();
    let [a, b] = [(); 2].map(|()| cq.create_qp(pd, &QpOptions::default()).unwrap());
    a.connect(&b.endpoint().unwrap()).unwrap();
    b.connect(&a.endpoint().unwrap()).unwrap();
    (a, b)
}

/// A server task answers each message; many clients share one QP.
#[tokio::test]
async fn tasks_share_a_qp() {
    let (context, pd) = open();
    let (client, server) = pair(&context, &pd);
    let pool = Pool::new(&pd, 8, 8).unwrap();
    let echo = tokio::spawn(async move {
        let pool = Pool::new(server.pd(), 8, 1).unwrap();
        for _ in 0..200 {
            let message = server.recv().await.unwrap();
            let mut answer = pool.take().await;
            answer.fill_with(&message);
            server.send(answer).await.0.unwrap();
        }
    });
    let answers = tokio::spawn({
        let client = client.clone();
        async move {
            let mut sum = 0;
            for _ in 0..200 {
                let answer = client.recv().await.unwrap();
                sum += u64::from_ne_bytes(answer[..].try_into().unwrap());
            }
            sum
        }
    });
    for task in 0..4 {
        let (client, pool) = (client.clone(), pool.clone());
        tokio::spawn(async move {
            for number in 0..50_u64 {
                let mut buffer = pool.take().await;
                buffer.fill_with(&(task * 50 + number).to_ne_bytes());
                client.send(buffer).await.0.unwrap();
            }
        });
    }
    let sum = timeout(LONG, answers).await.expect("within twenty seconds").unwrap();
    assert_eq!(sum, (0..200).sum::<u64>());
    echo.await.unwrap();
}

/// A receive that lost in `select!` loses no message.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn select_loses_no_message() {
    let (context, pd) = open();
    let (client, server) = pair(&context, &pd);
    let sender = tokio::spawn(async move {
        let mut buffer = client.pd().register(BytesMut::zeroed(8)).unwrap();
        for number in 0..100_u64 {
            buffer.fill_with(&number.to_ne_bytes());
            let (result, back) = client.send(buffer).await;
            result.unwrap();
            buffer = back;
            if number % 10 == 0 {
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        }
        client
    });
    let mut next = 0;
    while next < 100_u64 {
        tokio::select! {
            message = server.recv() => {
                assert_eq!(message.unwrap()[..], next.to_ne_bytes());
                next += 1;
            }
            () = tokio::time::sleep(Duration::from_micros(50)) => {}
        }
    }
    drop(sender.await.unwrap());
}

#[tokio::test]
async fn memory_of_bytes_is_sent_as_it_is() {
    let (context, pd) = open();
    let (client, server) = pair(&context, &pd);
    let text = pd.register_const(Bytes::from_static(b"not copied")).unwrap();
    let (result, text) = client.send(text).await;
    result.unwrap();
    assert_eq!(&server.recv().await.unwrap()[..], b"not copied");
    assert_eq!(text.into_owner::<Bytes>().unwrap().unwrap(), "not copied");
}

/// Remote memory travels in whatever the program serializes with.
#[tokio::test]
async fn remote_memory_is_serialized() {
    let (context, pd) = open();
    let (client, _server) = pair(&context, &pd);
    let there = Shared::<u64>::new(&pd, 4, Access::REMOTE).unwrap();
    let text = serde_json::to_string(&there.remote()).unwrap();
    let remote: RemoteSlice<u64> = serde_json::from_str(&text).unwrap();
    assert_eq!(remote, there.remote());
    assert_eq!(client.fetch_add(remote.at(3).unwrap(), 5).await.unwrap(), 0);
    assert_eq!(there.get(3), 5);
    let refused = serde_json::from_str::<RemoteSlice<u64>>("[4097,1,7]").unwrap_err();
    assert!(refused.to_string().contains("not aligned"), "{refused}");
}

#[test]
fn the_endpoint_of_a_qp_is_serialized() {
    let (context, pd) = open();
    let cq = context.create_cq(1).unwrap();
    let endpoint = pd.create_qp(&QpSpec::rc(&cq)).unwrap().endpoint().unwrap();
    let text = serde_json::to_string(&endpoint).unwrap();
    assert_eq!(serde_json::from_str::<Endpoint>(&text).unwrap(), endpoint);
    let too_large = format!("[{:?},{},0]", endpoint.gid.0, 1 << 24);
    let refused = serde_json::from_str::<Endpoint>(&too_large).unwrap_err();
    assert!(refused.to_string().contains("more than 24 bits"), "{refused}");
}

/// What is taken from `of` once its descriptor says that it is there.
async fn woken<T: AsRawFd, R>(of: &AsyncFd<T>, take: impl Fn(&T) -> Option<R>) -> R {
    loop {
        let ready = timeout(LONG, of.readable()).await.expect("within twenty seconds");
        if let Some(taken) = take(of.get_ref()) {
            return taken;
        }
        ready.unwrap().clear_ready();
    }
}

/// A program with a loop of its own needs no thread and no task of this library.
#[tokio::test]
#[expect(unsafe_code, reason = "tokio asks for a promise that a descriptor stays open")]
async fn a_queue_and_a_channel_wake_tasks_as_they_are() {
    let (context, pd) = open();
    let (cq, channel) = (context.create_cq(8).unwrap(), EventChannel::new(&context).unwrap());
    // SAFETY: a queue has one descriptor, which is open until the queue is dropped.
    let cq = unsafe { AsyncFd::register_with_interest(cq, Interest::READABLE) }.unwrap();
    // SAFETY: likewise a channel.
    let channel = unsafe { AsyncFd::register_with_interest(channel, Interest::READABLE) }.unwrap();
    let event = |channel: &EventChannel| channel.event(Duration::ZERO).unwrap();
    let [from, to] = [(); 2].map(|()| pd.create_qp(&QpSpec::rc(cq.get_ref())).unwrap());

    let listener = channel.get_ref().create_id().unwrap();
    let at = listener.bind((context.default_gid().unwrap().gid.to_ip(), 0).into()).unwrap();
    listener.listen(1).unwrap();
    let id = channel.get_ref().create_id().unwrap();
    id.resolve(None, at).unwrap();
    id.connect(&from, &ConnParam::default()).unwrap();
    let request = woken(&channel, event).await;
    assert!(matches!(request.kind, EventKind::ConnectRequest { .. }), "{request:?}");
    request.id.accept(&to, &ConnParam::default()).unwrap();
    for _ in 0..2 {
        let established = woken(&channel, event).await;
        assert!(matches!(established.kind, EventKind::Established { .. }), "{established:?}");
    }

    to.post_recv(1, &[]).unwrap();
    cq.get_ref().req_notify(false).unwrap();
    from.post_send(&SendRequest::send(2, &[])).unwrap();
    woken(&cq, |cq| cq.event(Duration::ZERO).unwrap().then_some(())).await;
    let received = cq.get_ref().poll().expect("the event said so");
    assert!(received.is_success() && received.wr_id == 1, "{received:?}");
}

/// The task that drives a queue ends with it, so the runtime has nothing left.
#[tokio::test]
async fn the_driver_ends_with_its_queue() {
    let metrics = tokio::runtime::Handle::current().metrics();
    let before = metrics.num_alive_tasks();
    let (context, pd) = open();
    let (client, server) = pair(&context, &pd);
    assert_eq!(metrics.num_alive_tasks(), before + 1);
    drop((client, server));
    let ended = async {
        while metrics.num_alive_tasks() > before {
            tokio::task::yield_now().await;
        }
    };
    timeout(LONG, ended).await.expect("within twenty seconds");
}

#[test]
fn the_same_tests_pass_with_a_library() {
    let text = common::again_with_the_library("the_same_tests_pass_with_a_library");
    assert!(text.contains("test tasks_share_a_qp ... ok"), "{text}");
}
