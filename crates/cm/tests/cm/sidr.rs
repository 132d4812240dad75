//! Resolution of a service to a QP.

use std::time::Duration;

use cm::{
    CmError, Event, ListenAddr, Patience, PortSpace, SidrRepParam, SidrReqParam, SidrStatus, State,
    Unanswered,
};
use iba::{QKey, Qpn};
use wire::cm::CmaHeader;

use crate::rig::{PORT, Rig, ip, peer};

fn req() -> SidrReqParam {
    let header = CmaHeader { port: 40000, src: ip(0), dst: ip(1) };
    SidrReqParam {
        peer: peer(0),
        service_id: PortSpace::Udp.service_id(PORT),
        patience: Patience { response_timeout: 20, max_retries: 15 },
        private_data: header.to_bytes().to_vec(),
    }
}

fn rig() -> Rig {
    let mut rig = Rig::new();
    let service = PortSpace::Udp.service_id(PORT);
    rig.sides[1].listen(service, u64::MAX, ListenAddr::Any, 8).expect("free");
    rig
}

const ANSWER: SidrRepParam = SidrRepParam {
    status: SidrStatus::SUCCESS,
    qpn: Qpn::new(0x42),
    qkey: QKey(0x0123_4567),
    private_data: Vec::new(),
};

#[test]
fn a_service_is_resolved_to_a_qp() {
    let mut rig = rig();
    let request = rig.sides[0].resolve(rig.now, &req()).expect("good parameters");
    rig.settle();
    let Event::SidrReq { conn, .. } = rig.one(1) else { panic!("a SIDR_REQ") };
    rig.sides[1].answer(conn, &ANSWER).expect("it waits");
    rig.settle();
    let Event::SidrRep { conn: answered, rep } = rig.one(0) else { panic!("a SIDR_REP") };
    assert_eq!((answered, rep.qpn, rep.qkey), (request, Qpn::new(0x42), ANSWER.qkey));
    assert_eq!(rig.said(), "0 SIDR_REQ, 1 SIDR_REP");
    let twice = rig.sides[1].answer(conn, &ANSWER);
    assert_eq!(twice, Err(CmError::State { call: "SIDR_REP", state: State::Idle }));
}

#[test]
fn a_request_is_repeated_if_its_answer_is_lost() {
    let mut rig = rig();
    rig.sides[0].resolve(rig.now, &req()).expect("good parameters");
    rig.settle();
    let Event::SidrReq { conn, .. } = rig.one(1) else { panic!("a SIDR_REQ") };
    rig.faults.loss = 100;
    rig.sides[1].answer(conn, &ANSWER).expect("it waits");
    rig.collect();
    rig.faults.loss = 0;
    rig.run(Duration::from_secs(5));
    let Event::SidrReq { conn, .. } = rig.one(1) else { panic!("a SIDR_REQ") };
    rig.sides[1].destroy(rig.now, conn);
    rig.settle();
    let Event::SidrRep { rep, .. } = rig.one(0) else { panic!("a SIDR_REP") };
    assert_eq!(SidrStatus(rep.status), SidrStatus::REJECT);
}

#[test]
fn a_duplicate_of_a_request_that_waits_is_dropped() {
    let mut rig = rig();
    rig.sides[0].resolve(rig.now, &req()).expect("good parameters");
    rig.run(Duration::from_secs(10));
    assert!(matches!(rig.one(1), Event::SidrReq { .. }));
    assert_eq!(rig.said(), "0 SIDR_REQ, 0 SIDR_REQ, 0 SIDR_REQ");
}

#[test]
fn an_unknown_service_is_refused_and_silence_times_out() {
    let mut rig = Rig::new();
    rig.sides[0].resolve(rig.now, &req()).expect("good parameters");
    rig.settle();
    let Event::SidrRep { rep, .. } = rig.one(0) else { panic!("a SIDR_REP") };
    assert_eq!(SidrStatus(rep.status), SidrStatus::UNSUPPORTED);
    rig.faults.loss = 100;
    let request = rig.sides[0].resolve(rig.now, &req()).expect("good parameters");
    rig.run(Duration::from_secs(80));
    assert_eq!(rig.one(0), Event::NoAnswer { conn: request, to: Unanswered::SidrReq });
}
