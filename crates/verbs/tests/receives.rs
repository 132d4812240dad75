//! Receives: when they are flushed, and in which protection domain their memory is.

mod chosen;

use std::time::Duration;

use verbs::{
    Access, AttrMask, Context, Cq, HostBuf, Mr, Pd, Qp, QpAttr, QpSpec, QpState, SendRequest, Wc,
    WcStatus,
};

const ALL: Access = Access::LOCAL_WRITE.union(Access::REMOTE);

fn open() -> Context {
    verbs::devices().unwrap()[0].open().unwrap()
}

#[track_caller]
fn completion(cq: &Cq) -> Wc {
    cq.wait_timeout(Duration::from_secs(10)).unwrap().expect("a completion within ten seconds")
}

fn memory(pd: &Pd) -> (HostBuf, Mr) {
    let buffer = HostBuf::anonymous(4096).unwrap();
    let mr = pd.reg_mr(&buffer, ALL).unwrap();
    (buffer, mr)
}

fn to_error(qp: &Qp) {
    let attr = QpAttr { state: QpState::Err, ..QpAttr::default() };
    qp.modify(&attr, AttrMask::STATE).unwrap();
}

/// A program drains a queue with a receive of its own: nothing else happens on the QP, and the
/// receive must complete.
#[test]
fn a_receive_posted_to_a_qp_in_error_is_flushed_at_once() {
    let context = open();
    let pd = context.alloc_pd().unwrap();
    for spec in [QpSpec::rc, QpSpec::uc, QpSpec::ud] {
        let cq = context.create_cq(8).unwrap();
        let qp = pd.create_qp(&spec(&cq)).unwrap();
        to_error(&qp);
        for wr_id in 0..3 {
            qp.post_recv(wr_id, &[]).unwrap();
            if chosen::is_rxe() {
                // The queue is memory that its library shares with the kernel, and nothing tells
                // the kernel that it is not empty (`rxe_post_recv` of rdma-core): it is flushed
                // only if the kernel has not come to the end of the queue yet.
                let status = cq.poll().map(|wc| wc.status);
                assert!(matches!(status, None | Some(WcStatus::WrFlushErr)), "{status:?}");
                continue;
            }
            let wc = cq.poll().expect("nothing else moves the QP");
            assert_eq!((wc.wr_id, wc.status), (wr_id, WcStatus::WrFlushErr));
        }
    }
}

#[test]
fn a_qp_that_failed_is_reset_and_connected_again() {
    let context = open();
    let pd = context.alloc_pd().unwrap();
    let (buffer, mr) = memory(&pd);
    let [(a, a_cq), (b, b_cq)] = [(); 2].map(|()| {
        let cq = context.create_cq(16).unwrap();
        (pd.create_qp(&QpSpec::rc(&cq)).unwrap(), cq)
    });
    let mut starts = Vec::new();
    for round in 0..3_u8 {
        let (to_a, to_b) = (a.endpoint().unwrap(), b.endpoint().unwrap());
        assert_eq!((to_a.qpn, to_b.qpn), (a.qpn(), b.qpn()));
        assert!(!starts.contains(&to_a.psn), "packets of another connection would fit");
        starts.push(to_a.psn);
        a.connect(&to_b).unwrap();
        b.connect(&to_a).unwrap();
        buffer.write(0, &[round; 8]).unwrap();
        b.post_recv(1, &[mr.slice(64, 8)]).unwrap();
        a.post_send(&SendRequest::send(2, &[mr.slice(0, 8)]).signaled()).unwrap();
        for (cq, wr_id) in [(&a_cq, 2), (&b_cq, 1)] {
            let wc = completion(cq);
            assert_eq!((wc.wr_id, wc.status), (wr_id, WcStatus::Success));
        }
        let mut bytes = [9; 8];
        buffer.read(64, &mut bytes).unwrap();
        assert_eq!(bytes, [round; 8]);

        // One fails, and what waits there is flushed; what waits at the other is simply gone.
        b.post_recv(3, &[mr.slice(64, 8)]).unwrap();
        a.post_recv(4, &[mr.slice(128, 8)]).unwrap();
        to_error(&b);
        let wc = completion(&b_cq);
        assert_eq!((wc.wr_id, wc.status), (3, WcStatus::WrFlushErr));
        for (qp, cq) in [(&a, &a_cq), (&b, &b_cq)] {
            qp.reset().unwrap();
            assert_eq!(qp.query().unwrap().state, QpState::Init);
            assert!(cq.poll().is_none());
        }
    }
}

/// IBA 10.2.9: a shared queue has a protection domain of its own, and QPs of other domains may
/// receive from it.
#[test]
fn a_receive_of_a_shared_queue_is_in_the_domain_of_the_queue() {
    let context = open();
    let (of_qp, of_srq) = (context.alloc_pd().unwrap(), context.alloc_pd().unwrap());
    let srq = of_srq.create_srq(8, 1).unwrap();
    let (_sent, source) = memory(&of_qp);
    // rxe looks in the domain of the QP (`copy_data` in `send_data_in` of `rxe_responder`).
    let of_the_queue = [(&of_srq, WcStatus::Success), (&of_qp, WcStatus::LocProtErr)];
    let of_the_qp = [(&of_qp, WcStatus::Success), (&of_srq, WcStatus::LocQpOpErr)];
    for (domain, expected) in if chosen::is_rxe() { of_the_qp } else { of_the_queue } {
        let cq = context.create_cq(8).unwrap();
        let sender = of_qp.create_qp(&QpSpec::rc(&cq)).unwrap();
        let receiver =
            of_qp.create_qp(&QpSpec { srq: Some(srq.clone()), ..QpSpec::rc(&cq) }).unwrap();
        sender.connect(&receiver.endpoint().unwrap()).unwrap();
        receiver.connect(&sender.endpoint().unwrap()).unwrap();
        let (_buffer, room) = memory(domain);
        srq.post_recv(1, &[room.slice(0, 64)]).unwrap();
        sender.post_send(&SendRequest::send(2, &[source.slice(0, 64)]).signaled()).unwrap();
        let (one, other) = (completion(&cq), completion(&cq));
        let received = if one.wr_id == 1 { one } else { other };
        assert_eq!((received.wr_id, received.status), (1, expected));
    }
}

/// IBA 11.6.2: the receive that a WRITE with immediate data took completes with "local access
/// error"; the requester's own status differs.
#[test]
fn the_receive_of_a_write_with_a_wrong_key_is_a_local_access_error() {
    let context = open();
    let pd = context.alloc_pd().unwrap();
    let cqs = [context.create_cq(8).unwrap(), context.create_cq(8).unwrap()];
    let [sender, receiver] = cqs.each_ref().map(|cq| pd.create_qp(&QpSpec::rc(cq)).unwrap());
    sender.connect(&receiver.endpoint().unwrap()).unwrap();
    receiver.connect(&sender.endpoint().unwrap()).unwrap();
    let (_buffer, mr) = memory(&pd);
    receiver.post_recv(1, &[]).unwrap();
    let to = mr.remote(4096);
    let write = SendRequest::write_with_imm(2, &[mr.slice(0, 64)], to, 7).signaled();
    sender.post_send(&write).unwrap();
    assert_eq!(completion(&cqs[0]).status, WcStatus::RemAccessErr);
    // Of rxe, with the status of the requester.
    let expected = if chosen::is_rxe() { WcStatus::RemAccessErr } else { WcStatus::LocAccessErr };
    assert_eq!(completion(&cqs[1]).status, expected);
}
