//! Connections: made, refused, delayed, ended.

use std::time::Duration;

use cm::{CmError, Event, ListenAddr, PortSpace, RejReason, State, Unanswered};
use iba::{Psn, QpType, Qpn};
use wire::cm::CommId;

use crate::rig::{PORT, Rig, rep, req};

const SECOND: Duration = Duration::from_secs(1);

/// Sends a REQ that arrives; returns the ids of the connection.
fn asked(rig: &mut Rig) -> (CommId, CommId) {
    let active = rig.sides[0].connect(rig.now, &req()).expect("good parameters");
    rig.settle();
    let Event::Req { conn: passive, .. } = rig.one(1) else { panic!("a REQ") };
    assert_eq!(rig.said(), "0 REQ");
    (active, passive)
}

#[test]
fn each_side_learns_of_the_other() {
    let mut rig = Rig::new().with_listener();
    let (active, passive) = rig.connected();
    let a = rig.sides[0].qp_info(active).expect("it stands");
    let b = rig.sides[1].qp_info(passive).expect("it stands");
    assert_eq!((a.remote_qpn, b.remote_qpn), (Qpn::new(0x222), Qpn::new(0x111)));
    assert_eq!((a.rq_psn, a.sq_psn), (Psn::new(0xaaa), Psn::new(0xbbb)));
    assert_eq!((b.rq_psn, b.sq_psn), (Psn::new(0xbbb), Psn::new(0xaaa)));
    assert_eq!((a.initiator_depth, a.responder_resources), (2, 3));
    assert_eq!((b.initiator_depth, b.responder_resources), (3, 2));
    assert_eq!((a.rnr_retry_count, b.rnr_retry_count), (5, 6));
    assert_eq!((a.retry_count, b.retry_count), (7, 7));
    assert_eq!((a.ack_timeout, b.ack_timeout), (17, 17));
    assert_eq!((a.state, b.state), (State::Established, State::Established));
}

#[test]
fn the_request_carries_the_programs_parameters() {
    let mut rig = Rig::new().with_listener();
    rig.sides[0].connect(rig.now, &req()).expect("good parameters");
    rig.settle();
    let Event::Req { req, .. } = rig.one(1) else { panic!("a REQ") };
    assert_eq!(&req.private_data[36..41], b"hello");
    assert!(req.private_data[41..].iter().all(|byte| *byte == 0));
    assert!(req.flow_control);
    assert_eq!((req.remote_cm_response_timeout, req.max_cm_retries), (20, 15));
}

#[test]
fn a_request_that_nobody_listens_for_is_refused() {
    let mut rig = Rig::new();
    let active = rig.sides[0].connect(rig.now, &req()).expect("good parameters");
    rig.settle();
    let Event::Rej { conn, rej } = rig.one(0) else { panic!("a REJ") };
    assert_eq!((conn, RejReason(rej.reason)), (active, RejReason::INVALID_SERVICE_ID));
    assert_eq!(rig.said(), "0 REQ, 1 REJ");
    assert_eq!(rig.sides[0].state(active), Some(State::Idle));
    rig.sides[0].destroy(rig.now, active);
    assert!(rig.sides[0].is_empty() && rig.sides[1].is_empty());
}

#[test]
fn listeners_are_distinguished_by_address_and_mask() {
    let mut rig = Rig::new();
    let service = PortSpace::Tcp.service_id(PORT);
    let cm = &mut rig.sides[1];
    let all = cm.listen(service, u64::MAX, ListenAddr::AnyV4, 1).expect("free");
    let other = ListenAddr::Ip([10, 0, 0, 9].into());
    cm.listen(service, u64::MAX, other, 1).expect("another address");
    let again = cm.listen(service, u64::MAX, ListenAddr::AnyV4, 1);
    assert_eq!(again, Err(CmError::ServiceInUse(service)));
    let masked = cm.listen(service & !0xff, !0xff, ListenAddr::Any, 1);
    assert_eq!(masked, Err(CmError::ServiceInUse(service & !0xff)), "it covers the port");
    let exact = ListenAddr::Ip([10, 0, 0, 2].into());
    let exact = cm.listen(service, u64::MAX, exact, 1).expect("another address");
    for expected in [exact, all] {
        rig.sides[0].connect(rig.now, &req()).expect("good parameters");
        rig.settle();
        let Event::Req { listener, conn, .. } = rig.one(1) else { panic!("a REQ") };
        assert_eq!(listener, expected);
        rig.sides[1].destroy(rig.now, conn);
        rig.settle();
        rig.take(0);
        rig.sides[1].unlisten(listener);
    }
}

#[test]
fn a_request_is_refused() {
    let mut rig = Rig::new().with_listener();
    let (active, passive) = asked(&mut rig);
    let now = rig.now;
    let reason = RejReason::CONSUMER_DEFINED;
    rig.sides[1].reject(now, passive, reason, b"info", b"no").expect("a REQ waits");
    rig.settle();
    let Event::Rej { conn, rej } = rig.one(0) else { panic!("a REJ") };
    assert_eq!((conn, RejReason(rej.reason)), (active, reason));
    assert_eq!((rej.info_length, &rej.ari[..4]), (4, &b"info"[..]));
    assert_eq!(&rej.private_data[..3], b"no\0");
    let late = rig.sides[1].accept(rig.now, passive, &rep());
    assert_eq!(late, Err(CmError::State { call: "REP", state: State::Idle }));
}

#[test]
fn a_response_is_refused() {
    let mut rig = Rig::new().with_listener();
    let (active, passive) = asked(&mut rig);
    rig.sides[1].accept(rig.now, passive, &rep()).expect("a REQ waits");
    rig.settle();
    assert!(matches!(rig.one(0), Event::Rep { .. }));
    rig.sides[0].destroy(rig.now, active);
    rig.settle();
    let Event::Rej { rej, .. } = rig.one(1) else { panic!("a REJ") };
    assert_eq!(RejReason(rej.reason), RejReason::CONSUMER_DEFINED);
    assert_eq!(rig.said(), "1 REP, 0 REJ");
}

#[test]
fn a_side_that_gives_up_tells_its_peer() {
    let mut rig = Rig::new().with_listener();
    let (active, passive) = asked(&mut rig);
    rig.sides[0].destroy(rig.now, active);
    rig.settle();
    let Event::Rej { conn, rej } = rig.one(1) else { panic!("a REJ") };
    assert_eq!((conn, RejReason(rej.reason)), (passive, RejReason::TIMEOUT));
    assert!(rig.sides[0].is_empty());
}

#[test]
fn a_request_that_nobody_answers_is_sent_sixteen_times() {
    let mut rig = Rig::new();
    rig.faults.loss = 100;
    let active = rig.sides[0].connect(rig.now, &req()).expect("good parameters");
    rig.run(60 * SECOND);
    assert!(rig.take(0).is_empty(), "16 times 4.3 s and twice the packet's life");
    rig.run(20 * SECOND);
    assert_eq!(rig.one(0), Event::NoAnswer { conn: active, to: Unanswered::Req });
    assert_eq!(rig.said(), ["0 REQ"; 16].join(", "));
    assert_eq!(rig.sides[0].poll_timeout(), None);
}

#[test]
fn a_duplicate_of_a_request_is_answered_with_an_mra_if_the_owner_asked_for_it() {
    let mut rig = Rig::new().with_listener();
    let (_, passive) = asked(&mut rig);
    rig.run(5 * SECOND);
    assert_eq!(rig.said(), "0 REQ", "the passive side says nothing");
    rig.sides[1].delay(passive, 24, true).expect("a REQ waits");
    assert_eq!(rig.said(), "");
    rig.run(5 * SECOND);
    assert_eq!(rig.said(), "0 REQ, 1 MRA");
    rig.run(60 * SECOND);
    assert_eq!(rig.said(), "", "the active side waits for 68 s");
    rig.sides[1].accept(rig.now, passive, &rep()).expect("a REQ waits");
    rig.settle();
    assert!(matches!(rig.one(0), Event::Rep { .. }));
}

#[test]
fn a_lost_rtu_is_sent_again() {
    let mut rig = Rig::new().with_listener();
    let (active, passive) = asked(&mut rig);
    rig.sides[1].accept(rig.now, passive, &rep()).expect("a REQ waits");
    rig.settle();
    rig.take(0);
    rig.faults.loss = 100;
    rig.sides[0].ready(active, &[]).expect("a REP came");
    rig.collect();
    rig.faults.loss = 0;
    rig.run(5 * SECOND);
    assert_eq!(rig.said(), "1 REP, 0 RTU, 1 REP, 0 RTU");
    assert!(matches!(rig.one(1), Event::Rtu { .. }));
}

#[test]
fn a_packet_replaces_a_lost_rtu() {
    let mut rig = Rig::new().with_listener();
    let (active, passive) = asked(&mut rig);
    rig.sides[1].accept(rig.now, passive, &rep()).expect("a REQ waits");
    rig.settle();
    rig.faults.loss = 100;
    rig.sides[0].ready(active, &[]).expect("a REP came");
    rig.settle();
    rig.sides[1].established(passive).expect("an RTU is waited for");
    assert_eq!(rig.one(1), Event::Rtu { conn: passive, rtu: None });
    rig.sides[1].established(passive).expect("it stands");
    assert!(rig.take(1).is_empty());
}

#[test]
fn a_response_that_nobody_answers_ends_the_attempt() {
    let mut rig = Rig::new().with_listener();
    let (_, passive) = asked(&mut rig);
    rig.faults.loss = 100;
    rig.sides[1].accept(rig.now, passive, &rep()).expect("a REQ waits");
    rig.run(80 * SECOND);
    assert_eq!(rig.one(1), Event::NoAnswer { conn: passive, to: Unanswered::Rep });
}

#[test]
fn a_connection_ends_on_both_sides() {
    let mut rig = Rig::new().with_listener();
    let (active, passive) = rig.connected();
    rig.sides[0].disconnect(rig.now, active, &[]).expect("it stands");
    rig.settle();
    assert_eq!(rig.one(1), Event::Dreq { conn: passive });
    rig.sides[1].confirm_disconnect(rig.now, passive, &[]).expect("a DREQ came");
    rig.settle();
    assert_eq!(rig.one(0), Event::Drep { conn: active });
    assert_eq!(rig.said(), "0 DREQ, 1 DREP");
    rig.run(SECOND);
    assert_eq!(rig.one(0), Event::TimewaitExit { conn: active });
    assert_eq!(rig.one(1), Event::TimewaitExit { conn: passive });
    assert!(rig.sides.iter().all(cm::Cm::is_empty));
}

#[test]
fn a_lost_drep_is_sent_again_even_after_timewait() {
    let mut rig = Rig::new().with_listener();
    let (active, passive) = rig.connected();
    rig.sides[0].disconnect(rig.now, active, &[]).expect("it stands");
    rig.settle();
    rig.faults.loss = 100;
    rig.sides[1].confirm_disconnect(rig.now, passive, &[]).expect("a DREQ came");
    rig.run(SECOND);
    rig.faults.loss = 0;
    rig.run(5 * SECOND);
    assert_eq!(rig.said(), "0 DREQ, 1 DREP, 0 DREQ, 1 DREP");
    assert!(rig.sides.iter().all(cm::Cm::is_empty));
}

#[test]
fn both_sides_may_end_a_connection_at_once() {
    let mut rig = Rig::new().with_listener();
    let (active, passive) = rig.connected();
    rig.sides[0].disconnect(rig.now, active, &[]).expect("it stands");
    rig.sides[1].disconnect(rig.now, passive, &[]).expect("it stands");
    rig.run(SECOND);
    for (side, conn) in [active, passive].into_iter().enumerate() {
        assert_eq!(rig.take(side), [Event::Drep { conn }, Event::TimewaitExit { conn }]);
    }
}

#[test]
fn a_dead_peer_confirms_nothing() {
    let mut rig = Rig::new().with_listener();
    let (active, _) = rig.connected();
    rig.faults.loss = 100;
    rig.sides[0].disconnect(rig.now, active, &[]).expect("it stands");
    rig.run(80 * SECOND);
    let ends = [
        Event::NoAnswer { conn: active, to: Unanswered::Dreq },
        Event::TimewaitExit { conn: active },
    ];
    assert_eq!(rig.take(0), ends);
}

#[test]
fn a_peer_whose_process_is_gone_has_ended_its_connections() {
    let mut rig = Rig::new().with_listener();
    let (_, passive) = rig.connected();
    let peer = rig.sides[1].qp_info(passive).expect("it stands").peer;
    rig.sides[1].peer_gone(rig.now, peer.remote, 5);
    assert!(rig.take(1).is_empty(), "another process");
    rig.sides[1].set_via(passive, 5);
    rig.sides[1].peer_gone(rig.now, peer.remote, 5);
    assert_eq!(rig.one(1), Event::Dreq { conn: passive });
}

#[test]
fn a_peer_whose_process_is_gone_has_refused_its_requests() {
    let mut rig = Rig::new().with_listener();
    let refused = |event: Event| {
        let Event::Rej { conn, rej } = event else { panic!("{event:?}") };
        assert_eq!(RejReason(rej.reason), RejReason::CONSUMER_DEFINED);
        conn
    };
    let active = rig.sides[0].connect(rig.now, &req()).expect("good parameters");
    rig.settle();
    let event = rig.one(1);
    let Event::Req { conn: passive, .. } = event else { panic!("{event:?}") };
    for (side, conn) in [active, passive].into_iter().enumerate() {
        let peer = rig.sides[side].qp_info(conn).expect("it waits").peer;
        rig.sides[side].set_via(conn, 5);
        rig.sides[side].peer_gone(rig.now, peer.remote, 5);
        assert_eq!(refused(rig.one(side)), conn);
        assert_eq!(rig.sides[side].state(conn), Some(State::Idle));
    }
}

#[test]
fn destroying_a_connection_ends_it() {
    let mut rig = Rig::new().with_listener();
    let (active, passive) = rig.connected();
    rig.sides[0].destroy(rig.now, active);
    rig.settle();
    assert_eq!(rig.one(1), Event::Dreq { conn: passive });
    assert!(rig.sides[0].qp_info(active).is_err());
    rig.sides[1].destroy(rig.now, passive);
    rig.run(SECOND);
    assert_eq!(rig.said(), "0 DREQ, 1 DREP");
    assert!(rig.take(0).is_empty() && rig.take(1).is_empty());
    assert!(rig.sides.iter().all(cm::Cm::is_empty));
}

#[test]
fn a_forgotten_connection_is_stale() {
    let mut rig = Rig::new().with_listener();
    let (_, passive) = rig.connected();
    // The active host restarts, and its program uses the same QP.
    rig.sides[0] = cm::Cm::new(cm::Local { start: 0x5000, ..crate::rig::local(0) });
    let again = rig.sides[0].connect(rig.now, &req()).expect("good parameters");
    rig.settle();
    let Event::Rej { conn, rej } = rig.one(0) else { panic!("a REJ") };
    assert_eq!((conn, RejReason(rej.reason)), (again, RejReason::STALE_CONN));
    assert_eq!(rig.said(), "0 REQ, 1 REJ, 1 DREQ, 0 DREP");
    assert_eq!(rig.one(1), Event::Drep { conn: passive });
    rig.run(SECOND);
    rig.take(0);
    rig.take(1);
    rig.said();
    rig.connected();
}

#[test]
fn a_full_backlog_makes_peers_retry() {
    let mut rig = Rig::new();
    let service = PortSpace::Tcp.service_id(PORT);
    rig.sides[1].listen(service, u64::MAX, ListenAddr::Any, 1).expect("free");
    for qpn in [1, 2] {
        let req = cm::ReqParam { qpn: Qpn::new(qpn), ..req() };
        rig.sides[0].connect(rig.now, &req).expect("good parameters");
    }
    rig.settle();
    let Event::Req { conn, .. } = rig.one(1) else { panic!("a REQ") };
    rig.sides[1].taken(conn);
    rig.run(5 * SECOND);
    assert!(matches!(rig.one(1), Event::Req { .. }), "the second one, asked again");
}

#[test]
fn other_services_are_matched_exactly_and_private_data_has_limits() {
    let mut rig = Rig::new().with_listener();
    let now = rig.now;
    let ud = cm::ReqParam { qp_type: QpType::Ud, ..req() };
    assert_eq!(rig.sides[0].connect(now, &ud), Err(CmError::QpType(QpType::Ud)));
    let long = cm::ReqParam { private_data: vec![0; 93], ..req() };
    let too_long = CmError::TooLong { what: "private data of a REQ", length: 93, room: 92 };
    assert_eq!(rig.sides[0].connect(now, &long), Err(too_long));
    for (qpn, active, passive) in
        [(7, QpType::Uc, QpType::Uc), (8, QpType::XrcSend, QpType::XrcRecv)]
    {
        let req = cm::ReqParam { qp_type: active, qpn: Qpn::new(qpn), ..req() };
        let a = rig.sides[0].connect(now, &req).expect("good parameters");
        rig.settle();
        let Event::Req { conn, .. } = rig.one(1) else { panic!("a REQ") };
        assert_eq!(rig.sides[1].qp_info(conn).expect("it waits").qp_type, passive);
        let rep = cm::RepParam { qpn: Qpn::new(0x300 + qpn), ..rep() };
        rig.sides[1].accept(rig.now, conn, &rep).expect("a REQ waits");
        rig.settle();
        assert!(matches!(rig.one(0), Event::Rep { .. }));
        let info = rig.sides[0].qp_info(a).expect("a REP came");
        assert_eq!(info.remote_qpn, Qpn::new(0x300 + qpn), "{active}");
    }
}

#[test]
fn a_vendors_options_travel_with_the_request_and_its_answer() {
    let mut rig = Rig::new().with_listener();
    // A vendor's id has 24 bits, its options 32.
    let asked = cm::Ece { vendor_id: 0xff0c_42a1, attr_mod: 0x8765_4321 };
    let granted = cm::Ece { vendor_id: 0x0c_42a1, attr_mod: 0x4321 };
    let active =
        rig.sides[0].connect(rig.now, &cm::ReqParam { ece: asked, ..req() }).expect("a REQ");
    rig.settle();
    let Event::Req { conn, ece, .. } = rig.one(1) else { panic!("a REQ") };
    assert_eq!(ece, cm::Ece { vendor_id: 0x0c_42a1, ..asked });
    rig.sides[1].accept(rig.now, conn, &cm::RepParam { ece: granted, ..rep() }).expect("a REP");
    rig.settle();
    let Event::Rep { ece, .. } = rig.one(0) else { panic!("a REP") };
    assert_eq!(ece, granted);
    rig.sides[0].ready(active, &[]).expect("an RTU");
    rig.settle();
    assert!(matches!(rig.one(1), Event::Rtu { .. }));
}
