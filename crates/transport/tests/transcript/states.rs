//! The states of a QP: what each accepts, and what moves between them.

use iba::{AttrMask, QpAttr, TransitionError};

use crate::prelude::*;

#[test]
fn each_state_accepts_what_the_standard_says() {
    use QpState::{Init, Reset, Rtr, Rts, Sqd};
    for (state, sends, receives) in [
        (Reset, false, false),
        (Init, false, true),
        (Rtr, false, true),
        (Rts, true, true),
        (Sqd, true, true),
    ] {
        let mut s = Station::in_state(&Options::rc(), state);
        let expected = |accepted| if accepted { Ok(()) } else { Err(PostError::State(state)) };
        assert_eq!(s.qp.post_send(build::send(1, BASE, 0)), expected(sends));
        assert_eq!(s.qp.post_recv(build::recv(1, BASE, 0)), expected(receives));
    }
}

#[test]
fn queues_hold_what_they_were_created_for() {
    let mut s = Station::new(&Options::rc());
    s.host.room = Some(0);
    for _ in 0..64 {
        s.post(build::send(1, BASE, 0));
        s.post_recv(build::recv(1, BASE, 0));
    }
    assert_eq!(s.qp.post_send(build::send(1, BASE, 0)), Err(PostError::Full(64)));
    assert_eq!(s.qp.post_recv(build::recv(1, BASE, 0)), Err(PostError::Full(64)));
}

/// Requests begun by `ibv_wr_start` are posted by `ibv_wr_complete`, all or none.
#[test]
fn posts_that_belong_together_are_taken_all_or_none() {
    let mut s = Station::new(&Options::rc());
    s.host.room = Some(0);
    s.post(build::send(1, BASE, 0));
    let wrong = SendWr { opcode: WrOpcode::AtomicFetchAndAdd, ..build::send(3, BASE, 7) };
    let posted = s.qp.post_sends([build::send(2, BASE, 0), wrong]);
    assert_eq!(posted, Err(PostError::AtomicLength(7)));
    let sends = |count| (0..count).map(|id| build::send(id, BASE, 0));
    assert_eq!(s.qp.post_sends(sends(64)), Err(PostError::Full(64)), "one is in the queue already");
    assert_eq!(s.qp.post_sends(sends(63)), Ok(()));
}

#[test]
fn a_post_is_checked_as_far_as_the_qp_can() {
    let mut s = Station::new(&Options::rc());
    let five = |length| Data::Sges([build::sge(BASE, length); 5].into_iter().collect());
    assert_eq!(
        s.qp.post_send(SendWr { data: five(1), ..build::send(1, 0, 0) }),
        Err(PostError::Sges { count: 5, max: 4 })
    );
    let inline = Data::Inline([0; 65][..].into());
    assert_eq!(
        s.qp.post_send(SendWr { data: inline.clone(), ..build::send(1, 0, 0) }),
        Err(PostError::Inline { length: 65, max: 64 })
    );
    assert_eq!(
        s.qp.post_send(SendWr { data: inline, ..build::read(1, 0, 0, 0) }),
        Err(PostError::Inline { length: 65, max: 0 })
    );
    let wr = SendWr { opcode: WrOpcode::AtomicFetchAndAdd, ..build::send(1, BASE, 7) };
    assert_eq!(s.qp.post_send(wr), Err(PostError::AtomicLength(7)));
    let two = Data::Sges([build::sge(BASE, 1 << 31), build::sge(BASE, 1)].into_iter().collect());
    assert_eq!(
        s.qp.post_send(SendWr { data: two, ..build::send(1, 0, 0) }),
        Err(PostError::Length((1 << 31) + 1))
    );
    let mut recv = build::recv(1, BASE, 1);
    recv.sges = [build::sge(BASE, 1); 5].into_iter().collect();
    assert_eq!(s.qp.post_recv(recv), Err(PostError::Sges { count: 5, max: 4 }));
}

#[test]
fn before_rtr_packets_are_dropped() {
    let mut s = Station::in_state(&Options::rc(), QpState::Init);
    s.post_recv(build::recv(7, BASE, 8));
    send!(s, 0, packet(Opcode::RcSendOnly, rq(0)).ackreq());
    recv_nothing!(s, 0);
    assert_eq!(s.host.counted(Counter::DroppedPacket), 1);
}

#[test]
fn in_rtr_requests_are_answered_and_the_first_packet_raises_an_event() {
    let mut s = Station::in_state(&Options::rc(), QpState::Rtr);
    s.post_recv(build::recv(7, BASE, 8));
    s.post_recv(build::recv(8, BASE, 8));
    send!(s, 0, packet(Opcode::RcSendOnly, rq(0)).ackreq());
    recv!(s, 0, ack(rq(0), 1));
    send!(s, 0, packet(Opcode::RcSendOnly, rq(1)).ackreq());
    assert_eq!(s.events(), [QpEvent::CommEst]);
}

#[test]
fn sqd_finishes_what_was_begun_and_begins_nothing() {
    let mut s = Station::new(&Options::rc());
    s.qp.set_window(1);
    s.post(build::send(9, BASE, 512));
    s.post(build::send(10, BASE, 0));
    recv!(s, 0, packet(Opcode::RcSendFirst, sq(0)).ackreq(), &[0; 256]);
    let attr = QpAttr { state: QpState::Sqd, en_sqd_async_notify: true, ..QpAttr::default() };
    s.qp.modify(&mut s.host, &attr, AttrMask::STATE | AttrMask::EN_SQD_ASYNC_NOTIFY).unwrap();
    assert!(s.qp.query().sq_draining);
    send!(s, 1, ack(sq(0), 0));
    recv!(s, 1, packet(Opcode::RcSendLast, sq(1)).ackreq(), &[0; 256]);
    assert_eq!(s.events(), []);
    send!(s, 2, ack(sq(1), 1));
    s.sent(9, WcStatus::Success);
    assert_eq!(s.events(), [QpEvent::SqDrained]);
    assert!(!s.qp.query().sq_draining);
    recv_nothing!(s, 2);

    s.to_state(QpState::Rts);
    recv!(s, 3, packet(Opcode::RcSendOnly, sq(2)).ackreq());
}

#[test]
fn an_idle_send_queue_is_drained_at_once() {
    let mut s = Station::new(&Options::rc());
    let attr = QpAttr { state: QpState::Sqd, en_sqd_async_notify: true, ..QpAttr::default() };
    s.qp.modify(&mut s.host, &attr, AttrMask::STATE | AttrMask::EN_SQD_ASYNC_NOTIFY).unwrap();
    assert_eq!(s.events(), [QpEvent::SqDrained]);
}

#[test]
fn a_refused_modify_changes_nothing() {
    let mut s = Station::new(&Options::rc());
    let before = s.qp.query();
    let mut modify = |attr: QpAttr, mask| s.qp.modify(&mut s.host, &attr, mask);

    let rtr = QpAttr { state: QpState::Rtr, ..QpAttr::default() };
    assert!(matches!(
        modify(rtr, AttrMask::STATE),
        Err(ModifyError::Transition { error: TransitionError::NoSuchTransition { .. }, .. })
    ));
    let claimed = QpAttr { state: QpState::Rts, cur_state: QpState::Sqd, ..QpAttr::default() };
    assert_eq!(
        modify(claimed, AttrMask::STATE | AttrMask::CUR_STATE),
        Err(ModifyError::CurrentState { claimed: QpState::Sqd, actual: QpState::Rts })
    );
    let migration = QpAttr { path_mig_state: 3, ..QpAttr::default() };
    assert_eq!(
        modify(migration, AttrMask::PATH_MIG_STATE),
        Err(ModifyError::Range { attribute: "path_mig_state", value: 3, max: 2 })
    );
    assert_eq!(s.qp.query(), before);
}

#[test]
fn retry_counts_have_three_bits() {
    let options = Options { retry_cnt: 8, ..Options::rc() };
    let mut qp = options.qp(QPN);
    let mut host = options.host();
    let rtr = std::panic::AssertUnwindSafe(|| {
        options.bring_to(&mut qp, &mut host, QpState::Rts, PEER, SQ_PSN, RQ_PSN);
    });
    assert!(std::panic::catch_unwind(rtr).is_err());
}

#[test]
fn a_query_returns_what_was_set_and_the_progress_of_the_qp() {
    let s = Station::new(&Options::rc());
    let attr = s.qp.query();
    assert_eq!((attr.state, attr.cur_state), (QpState::Rts, QpState::Rts));
    assert_eq!((attr.sq_psn, attr.rq_psn, attr.dest_qpn), (SQ_PSN, RQ_PSN, PEER));
    assert_eq!((attr.retry_cnt, attr.rnr_retry, attr.max_rd_atomic), (7, 7, 4));
}

#[test]
fn an_idle_qp_is_small() {
    assert!(size_of::<transport::Qp>() <= 1024, "{} bytes", size_of::<transport::Qp>());
}
