//! Extended reliable connections: requests that name a shared queue of the peer.

mod chosen;

use std::fs::File;
use std::time::Duration;

use verbs::{
    Access, Context, Cq, Flush, HostBuf, Kind, Mr, Pd, PostError, Qp, QpSpec, QpType, SendRequest,
    Wc, WcOpcode, XrcRecvQp,
};

const ALL: Access = Access::LOCAL_WRITE.union(Access::REMOTE).union(Access::FLUSH_GLOBAL);

fn open() -> Context {
    verbs::devices().unwrap()[0].open().unwrap()
}

fn memory(pd: &Pd) -> (HostBuf, Mr) {
    let buffer = HostBuf::anonymous(4096).unwrap();
    let mr = pd.reg_mr(&buffer, ALL).unwrap();
    (buffer, mr)
}

fn connect(sender: &Qp, receiver: &XrcRecvQp) {
    sender.connect(&receiver.endpoint().unwrap()).unwrap();
    receiver.connect(&sender.endpoint().unwrap()).unwrap();
}

#[track_caller]
fn completion(cq: &Cq) -> Wc {
    cq.wait_timeout(Duration::from_secs(10)).unwrap().expect("a completion within ten seconds")
}

fn bytes<const N: usize>(buffer: &HostBuf, at: usize) -> [u8; N] {
    let mut bytes = [0; N];
    buffer.read(at, &mut bytes).unwrap();
    bytes
}

/// Two queues, each with memory and completions of its own; one QP receives for both.
#[test]
fn one_receiver_serves_the_shared_queues_that_requests_name() {
    let context = open();
    let Some(xrcd) = chosen::xrc_domain(&context) else { return };
    let receiver = xrcd.create_recv_qp(ALL).unwrap();
    let queues = [b"one", b"two"].map(|name| {
        let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(8).unwrap());
        let srq = pd.create_xrc_srq(&xrcd, &cq, 8, 1).unwrap();
        let (buffer, mr) = memory(&pd);
        srq.post_recv(7, &[mr.slice(0, 64)]).unwrap();
        (name, srq, cq, buffer, mr)
    });
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(16).unwrap());
    let sender = pd.create_qp(&QpSpec::xrc_send(&cq)).unwrap();
    connect(&sender, &receiver);
    let (source, local) = memory(&pd);

    // Not in the order of their numbers.
    for (name, srq, received, buffer, mr) in queues.iter().rev() {
        let number = srq.number().unwrap();
        source.write(0, *name).unwrap();
        let send = SendRequest::send(1, &[local.slice(0, 3)]).to_srq(number).signaled();
        sender.post_send(&send).unwrap();
        assert!(completion(&cq).is_success());
        let wc = completion(received);
        assert!(wc.is_success(), "{wc:?}");
        assert_eq!((wc.wr_id, wc.byte_len, wc.qpn), (7, 3, receiver.qpn()));
        assert_eq!(bytes::<3>(buffer, 0), **name);

        // Memory is that of the queue's protection domain.
        let write = SendRequest::write(2, &[local.slice(0, 3)], mr.remote(100)).to_srq(number);
        sender.post_send(&write.signaled()).unwrap();
        assert!(completion(&cq).is_success());
        assert_eq!(bytes::<3>(buffer, 100), **name);
        let read = SendRequest::read(3, &[local.slice(200, 3)], mr.remote(100)).to_srq(number);
        sender.post_send(&read.signaled()).unwrap();
        assert!(completion(&cq).is_success());
        assert_eq!(bytes::<3>(&source, 200), **name);

        // So do those that a library has other calls for.
        let word = u64::from_ne_bytes(*b"a word !");
        let store = SendRequest::atomic_write(4, mr.remote(256), word).to_srq(number).signaled();
        let reach = Flush { length: 512, whole: false, global: true, persistent: false };
        let flush = SendRequest::flush(5, mr.remote(0), reach).to_srq(number).signaled();
        for (request, opcode) in [(store, WcOpcode::AtomicWrite), (flush, WcOpcode::Flush)] {
            sender.post_send(&request).unwrap();
            let wc = completion(&cq);
            assert!(wc.is_success() && wc.opcode == opcode, "{wc:?}");
        }
        assert_eq!(&bytes::<8>(buffer, 256), b"a word !");
    }
    for (_, _, cq, ..) in &queues {
        assert_eq!(cq.poll(), None, "each queue got its own message and no other");
    }
    // It receives nothing itself.
    assert_eq!(sender.post_recv(1, &[]), Err(PostError::HasSrq));
}

/// Whoever opens the file has the same domain.
#[test]
fn a_domain_of_a_file_is_one_however_often_it_is_opened() {
    let context = open();
    if chosen::xrc_domain(&context).is_none() {
        return;
    }
    let file = File::open(std::env::current_exe().unwrap()).unwrap();
    let (one, other) = (context.open_xrcd_of(&file).unwrap(), context.open_xrcd_of(&file).unwrap());
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(8).unwrap());
    let srq = pd.create_xrc_srq(&one, &cq, 8, 1).unwrap();
    let receiver = other.create_recv_qp(ALL).unwrap();
    let sender = pd.create_qp(&QpSpec::xrc_send(&cq)).unwrap();
    connect(&sender, &receiver);
    // What was made in it keeps a domain.
    drop((one, other));
    let (buffer, mr) = memory(&pd);
    srq.post_recv(1, &[mr.slice(0, 64)]).unwrap();
    let send = SendRequest::send(2, &[]).inline(b"inline").to_srq(srq.number().unwrap());
    sender.post_send(&send).unwrap();
    let wc = completion(&cq);
    assert!(wc.is_success() && wc.wr_id == 1, "{wc:?}");
    assert_eq!(&bytes::<6>(&buffer, 0), b"inline");
}

#[test]
fn what_does_not_belong_together_is_refused_in_words() {
    let context = open();
    let Some(xrcd) = chosen::xrc_domain(&context) else { return };
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(8).unwrap());
    let srq = pd.create_xrc_srq(&xrcd, &cq, 8, 1).unwrap();
    let refused = |spec| {
        let refusal = pd.create_qp(&spec).unwrap_err();
        assert_eq!(refusal.kind(), Kind::Invalid);
        refusal.what().to_owned()
    };
    let over = QpSpec { srq: Some(srq), ..QpSpec::rc(&cq) };
    assert!(refused(over).contains("requests name an XRC SRQ"));
    let plain = pd.create_srq(8, 1).unwrap();
    let both = QpSpec { srq: Some(plain.clone()), ..QpSpec::xrc_send(&cq) };
    assert!(refused(both).contains("receives nothing"));
    let target = QpSpec { qp_type: QpType::XrcRecv, ..QpSpec::rc(&cq) };
    assert!(refused(target).contains("an XRC domain creates"));
    assert!(plain.number().unwrap_err().what().contains("is not an XRC SRQ"));
}

#[test]
fn a_domain_or_a_queue_of_another_device_is_refused() {
    let context = open();
    let Some(xrcd) = chosen::xrc_domain(&context) else { return };
    let there = chosen::another(&verbs::devices().unwrap()[0]);
    let (pd, cq) = (context.alloc_pd().unwrap(), context.create_cq(8).unwrap());
    let (other_cq, other_xrcd) = (there.create_cq(8).unwrap(), there.open_xrcd().unwrap());
    for (xrcd, cq) in [(&other_xrcd, &cq), (&xrcd, &other_cq)] {
        let refusal = pd.create_xrc_srq(xrcd, cq, 8, 1).unwrap_err();
        assert_eq!(refusal.kind(), Kind::Invalid);
        assert!(refusal.what().contains("of another device"), "{refusal}");
    }
}
