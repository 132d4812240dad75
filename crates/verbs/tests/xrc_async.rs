//! Extended reliable connections as futures. `crates/peerdma` runs this file with a library, too.

mod chosen;
mod queues;

use pollster::block_on;
use verbs::aio::{self, QpOptions};
use verbs::owned::Shared;
use verbs::{Access, Pd, WcStatus, XrcRecvQp, Xrcd};

use queues::{few, in_each_way, open, ready, send, small};

/// Both halves, connected.
fn pair(cq: &aio::Cq, pd: &Pd, xrcd: &Xrcd) -> (aio::Qp, XrcRecvQp) {
    let options = QpOptions { sends: 4, ..QpOptions::xrc_send() };
    let sender = cq.create_qp(pd, &options).unwrap();
    let receiver = xrcd.create_recv_qp(Access::LOCAL_WRITE | Access::REMOTE).unwrap();
    sender.connect(&receiver.endpoint().unwrap()).unwrap();
    receiver.connect(&sender.endpoint().unwrap()).unwrap();
    (sender, receiver)
}

/// One receiving QP, two queues; and one queue, two receiving QPs.
#[test]
fn each_queue_gives_the_messages_that_name_it() {
    in_each_way(|cq, pd| {
        let Some(xrcd) = chosen::xrc_domain(pd.context()) else { return };
        let queues = [(); 2].map(|()| cq.create_xrc_srq(pd, &xrcd, &few()).unwrap());
        let pairs = [(); 2].map(|()| pair(cq, pd, &xrcd));
        block_on(async {
            // Many times as many as there are buffers.
            for round in 0..20 {
                for (sender, _) in &pairs {
                    for (number, queue) in queues.iter().enumerate() {
                        let to = sender.to_srq(queue.number().unwrap());
                        send(&to, &format!("{round} to {number}")).await;
                    }
                }
                for (number, queue) in queues.iter().enumerate() {
                    for (_, receiver) in &pairs {
                        let (qpn, message) = queue.recv().await;
                        let expected = format!("{round} to {number}");
                        assert_eq!(message.unwrap()[..], *expected.as_bytes());
                        assert_eq!(qpn, receiver.qpn());
                    }
                    assert!(ready(queue.recv()).is_none());
                }
            }
        });
    });
}

/// One-sided requests and batches reach the memory of the queue's domain.
#[test]
fn what_reaches_memory_names_a_queue_too() {
    in_each_way(|cq, pd| {
        let Some(xrcd) = chosen::xrc_domain(pd.context()) else { return };
        let queue = cq.create_xrc_srq(pd, &xrcd, &few()).unwrap();
        let (sender, _receiver) = pair(cq, pd, &xrcd);
        let to = sender.to_srq(queue.number().unwrap());
        let there = Shared::<u64>::new(pd, 4, Access::REMOTE).unwrap();
        let remote = there.remote();
        let word = |word: u64| pd.register(word.to_ne_bytes().to_vec()).unwrap();
        block_on(async {
            to.write(word(5), remote.get(0..1).unwrap()).await.0.unwrap();
            assert_eq!(to.fetch_add(remote.get(0..1).unwrap(), 2).await.unwrap(), 5);
            assert_eq!(to.compare_swap(remote.get(0..1).unwrap(), 7, 9).await.unwrap(), 7);
            let (read, back) = to.read(word(0), remote.get(0..1).unwrap()).await;
            read.unwrap();
            assert_eq!(back[..], 9_u64.to_ne_bytes());
            let batch = to.batch().write(word(3), remote.get(1..2).unwrap()).send(word(4));
            batch.post().await.0.unwrap();
            assert_eq!(there.get(1), 3);
            let (_, message) = queue.recv().await;
            assert_eq!(message.unwrap()[..], 4_u64.to_ne_bytes());
        });
    });
}

#[test]
fn a_receive_that_fails_is_told_and_its_buffer_is_used_again() {
    in_each_way(|cq, pd| {
        let Some(xrcd) = chosen::xrc_domain(pd.context()) else { return };
        let queue = cq.create_xrc_srq(pd, &xrcd, &few()).unwrap();
        let number = queue.number().unwrap();
        block_on(async {
            // More often than there are buffers.
            for _ in 0..6 {
                let (sender, receiver) = pair(cq, pd, &xrcd);
                let to = sender.to_srq(number);
                let buffer = pd.register(vec![0; 65]).unwrap();
                to.send(buffer).await.0.unwrap_err();
                let (qpn, failed) = queue.recv().await;
                assert_eq!(qpn, receiver.qpn());
                let status = failed.unwrap_err().status();
                assert_eq!(status, Some(WcStatus::LocLenErr));
            }
            let (sender, _receiver) = pair(cq, pd, &xrcd);
            let to = sender.to_srq(number);
            let mut held = Vec::new();
            for _ in 0..4 {
                send(&to, "there is room").await;
                held.push(queue.recv().await.1.unwrap());
            }
            assert!(held.iter().all(|message| message[..] == *b"there is room"));
        });
    });
}

#[test]
fn a_request_without_a_queue_and_a_queue_without_a_domain_are_refused_in_words() {
    let (context, pd) = open();
    let Some(xrcd) = chosen::xrc_domain(&context) else { return };
    let cq = aio::Cq::polled(&context, 64).unwrap();
    let (sender, _receiver) = pair(&cq, &pd, &xrcd);
    let buffer = pd.register(vec![0; 8]).unwrap();
    let error = block_on(sender.send(buffer)).0.unwrap_err();
    assert!(error.to_string().contains("names a queue"), "{error}");
    let recv = block_on(sender.recv()).unwrap_err();
    assert!(recv.to_string().contains("without receives"), "{recv}");
    let plain = cq.create_srq(&pd, &few()).unwrap();
    assert!(plain.number().unwrap_err().what().contains("is not an XRC SRQ"));
    let queue = cq.create_xrc_srq(&pd, &xrcd, &few()).unwrap();
    let over = QpOptions { srq: Some(queue), ..small() };
    let refusal = cq.create_qp(&pd, &over).unwrap_err();
    assert!(refusal.what().contains("requests name an XRC SRQ"), "{refusal}");
}
