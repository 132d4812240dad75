use std::net::IpAddr;
use std::time::Duration;

use iba::{AttrMask, Psn, QpAttr, QpState, QpType, RKey, WrOpcode};

use super::*;
use crate::engine::Turn;
use crate::engine::{TagOp, TagOpKind};
use crate::ids::QpId;
use crate::port::Nic;
use crate::rig::{self, Objects, post, send, to_rts};

/// The peer: nobody.
const PEER: Qpn = Qpn::new(0xa0b3);
/// Its address: not an address of our port, and so reached over UDP.
const THERE: [u8; 4] = [127, 0, 0, 2];

/// A process with a QP that is connected over UDP to a peer that never answers.
struct Lonely {
    engine: Engine,
    objects: Objects,
    qp: QpId,
    qpn: Qpn,
}

impl Lonely {
    fn new(test: &str) -> Self {
        let nic = rig::nic(test);
        let mut engine = rig::engine(&nic);
        let objects = Objects::new(&mut engine);
        let (qp, qpn) = objects.qp(&mut engine, QpType::Rc);
        let mut elsewhere = nic;
        elsewhere.gids[0].gid = IpAddr::from(THERE).into();
        to_rts(&mut engine, qp, QpType::Rc, &elsewhere, PEER);
        Self { engine, objects, qp, qpn }
    }

    /// The part of every sentence that says where the request went (`to`) or the message came from
    /// (`from`).
    fn line(&self, way: &str) -> String {
        let Nic { port, config, .. } = &self.engine.common.nic;
        let (qpn, own, udp) = (self.qpn, port.gids[0].to_ip(), config.udp_port);
        format!("QP {qpn} {way} QP 0x00a0b3 at 127.0.0.2 (UDP port {udp} from {own}, sgid_index 0)")
    }

    fn words(&self, account: &Account) -> String {
        let entry = self.engine.qps.get(self.qp).expect("it lives");
        words(&self.engine.common, &entry.context, account)
    }
}

/// The account of a SEND that failed after it was sent.
fn sent(status: WcStatus, reason: Reason) -> Account {
    Account {
        side: Side::Send,
        wr_id: 2,
        status,
        reason,
        opcode: Some(WrOpcode::Send),
        length: 4096,
        remote: None,
        psns: Some((Psn::new(0x3d_8a01), Psn::new(0x3d_8a04))),
        acknowledged: Psn::new(0x3d_8a00),
        retries: (7, 7),
        rnr_retries: (3, 3),
        timeout: Some(Duration::from_micros(67_108)),
    }
}

/// The same for a WRITE.
fn written(status: WcStatus, reason: Reason) -> Account {
    let remote = Some((RKey(0x1207), 0x7000));
    Account { opcode: Some(WrOpcode::RdmaWrite), remote, ..sent(status, reason) }
}

/// For a request that never began.
fn never_sent(account: Account) -> Account {
    Account { psns: None, ..account }
}

/// For a receive.
fn received(status: WcStatus, reason: Reason) -> Account {
    let expected = Psn::new(0x77);
    let (side, opcode, psns) = (Side::Recv, None, Some((expected, expected)));
    Account { side, opcode, length: 64, psns, ..sent(status, reason) }
}

const SENT: &str = "; sent as PSN 0x3d8a01 to 0x3d8a04, last acknowledged PSN 0x3d8a00";
const NEVER_SENT: &str = "; never sent, last acknowledged PSN 0x3d8a00";

/// An account for each reason, and the whole sentence: the part before the path, and the part after
/// it.
fn told(reason: Reason, udp_port: u16) -> Option<(Account, &'static str, String)> {
    use WcStatus as S;
    let behind = |said: &str, how: &str| format!(": {said}{how}");
    Some(match reason {
        // Nothing failed, or another request has the account. A failure without a QP is shown
        // below.
        Reason::None | Reason::Flushed | Reason::NoSuchTag => return None,
        Reason::AckTimeout => (
            sent(S::RetryExcErr, reason),
            "RETRY_EXC_ERR (12): SEND of 4096 bytes, wr_id 0x2, ",
            format!(
                ": no acknowledgement came within the timeout, again and again{SENT}; 7 of 7 retries used, ACK timeout 67.1ms; \
                 does that host have the address, the QP number and UDP port {udp_port} open?"
            ),
        ),
        Reason::SequenceNak => (
            written(S::RetryExcErr, reason),
            "RETRY_EXC_ERR (12): RDMA WRITE of 4096 bytes, wr_id 0x2, to key 0x1207 at 0x7000, ",
            format!(
                ": packets were lost again and again: the peer asked for them too often{SENT}; 7 of 7 retries used, \
                 ACK timeout 67.1ms"
            ),
        ),
        Reason::RnrNak => (
            sent(S::RnrRetryExcErr, reason),
            "RNR_RETRY_EXC_ERR (13): SEND of 4096 bytes, wr_id 0x2, ",
            format!(
                ": the peer had no receive posted, or its memory was absent, again and again{SENT}; 3 of 3 RNR retries used"
            ),
        ),
        Reason::InvalidRequestNak => (
            sent(S::RemInvReqErr, reason),
            "REM_INV_REQ_ERR (9): SEND of 4096 bytes, wr_id 0x2, ",
            behind("the peer found the request invalid", SENT),
        ),
        Reason::RemoteAccessNak => (
            written(S::RemAccessErr, reason),
            "REM_ACCESS_ERR (10): RDMA WRITE of 4096 bytes, wr_id 0x2, to key 0x1207 at 0x7000, ",
            behind(
                "the peer refused access: its key, the range, the rights or the protection domain is wrong",
                SENT,
            ),
        ),
        Reason::RemoteOperationalNak => (
            written(S::RemOpErr, reason),
            "REM_OP_ERR (11): RDMA WRITE of 4096 bytes, wr_id 0x2, to key 0x1207 at 0x7000, ",
            behind("the peer could not carry out a valid request", SENT),
        ),
        Reason::LocalProtection => (
            never_sent(sent(S::LocProtErr, reason)),
            "LOC_PROT_ERR (4): SEND of 4096 bytes, wr_id 0x2, ",
            behind(
                "a key, range, right or protection domain of the local scatter/gather list is wrong",
                NEVER_SENT,
            ),
        ),
        Reason::LocalFault => (
            sent(S::LocQpOpErr, reason),
            "LOC_QP_OP_ERR (2): SEND of 4096 bytes, wr_id 0x2, ",
            behind("the local memory is gone, though its region is still there", SENT),
        ),
        Reason::ReceiveTooShort => (
            received(S::LocLenErr, reason),
            "LOC_LEN_ERR (1): receive with room for 64 bytes, wr_id 0x2, ",
            ": the message is longer than the receive that it matched; PSN 0x000077 was expected"
                .into(),
        ),
        Reason::BadResponse => (
            sent(S::BadRespErr, reason),
            "BAD_RESP_ERR (7): SEND of 4096 bytes, wr_id 0x2, ",
            behind("the peer sent an invalid response", SENT),
        ),
        Reason::PeerBrokeProtocol => (
            received(S::RemInvReqErr, reason),
            "REM_INV_REQ_ERR (9): receive with room for 64 bytes, wr_id 0x2, ",
            ": the peer sent an invalid request; PSN 0x000077 was expected".into(),
        ),
        Reason::PeerRefused => (
            received(S::LocAccessErr, reason),
            "LOC_ACCESS_ERR (8): receive with room for 64 bytes, wr_id 0x2, ",
            ": the peer asked for memory that it may not use; PSN 0x000077 was expected".into(),
        ),
        Reason::NoReadDepth => (
            never_sent(Account {
                opcode: Some(WrOpcode::RdmaRead),
                ..written(S::LocQpOpErr, reason)
            }),
            "LOC_QP_OP_ERR (2): RDMA READ of 4096 bytes, wr_id 0x2, to key 0x1207 at 0x7000, ",
            behind("max_rd_atomic is 0: this QP may not send READs and atomics", NEVER_SENT),
        ),
        Reason::BindRefused => (
            never_sent(Account {
                opcode: Some(WrOpcode::BindMw),
                length: 0,
                ..sent(S::MwBindErr, reason)
            }),
            "MW_BIND_ERR (6): bind of 0 bytes, wr_id 0x2, ",
            behind("the memory window could not be bound as asked", NEVER_SENT),
        ),
        Reason::RendezvousTooLong => (
            received(S::TmRndvIncomplete, reason),
            "TM_RNDV_INCOMPLETE (23): receive with room for 64 bytes, wr_id 0x2, ",
            ": a rendezvous is longer than the receive that its tag matched, which has its headers instead; PSN 0x000077 was \
             expected"
                .into(),
        ),
        // A reason that the transport has, but this page does not explain.
        _ => panic!("no sentence is shown for {reason:?}"),
    })
}

#[test]
fn every_reason_has_a_sentence_with_everything_that_is_known() {
    let lonely = Lonely::new("explain-all");
    let udp_port = lonely.engine.common.nic.config.udp_port;
    for reason in Reason::ALL {
        let Some((account, what, how)) = told(reason, udp_port) else { continue };
        let way = if account.side == Side::Send { "to" } else { "from" };
        assert_eq!(account.reason, reason);
        assert_eq!(lonely.words(&account), format!("{what}{}{how}", lonely.line(way)));
    }
}

/// The whole way from a request without an answer to the sentence.
#[test]
fn a_peer_over_udp_that_never_answers_is_named_with_address_and_port() {
    let mut lonely = Lonely::new("explain-udp");
    post(&mut lonely.engine, lonely.qp, send(0x1d, None));
    let wc = (0..64).find_map(|_| {
        lonely.engine.clock.pass(Duration::from_secs(1));
        lonely.engine.progress(Turn::Everything);
        lonely.engine.pop_wc(lonely.objects.cq)
    });
    let status = wc.expect("the retries are used up").status;
    assert_eq!(status, WcStatus::RetryExcErr);
    let why = lonely.engine.explain(lonely.qpn, 0x1d, status).expect("it failed");
    let line = lonely.line("to");
    let head =
        format!("RETRY_EXC_ERR (12): SEND of 8 bytes, wr_id 0x1d, {line}: no acknowledgement");
    assert!(why.starts_with(&head), "{why}");
    let tried = "; sent as PSN 0x000000 to 0x000000, last acknowledged PSN 0xffffff; 7 of 7 retries used, ACK timeout 67.1ms";
    assert!(why.contains(tried), "{why}");
}

#[test]
fn a_flushed_request_has_a_sentence_whether_another_failed_or_not() {
    let mut lonely = Lonely::new("explain-flushed");
    for wr_id in [1, 2] {
        post(&mut lonely.engine, lonely.qp, send(wr_id, None));
    }
    let attr = QpAttr { state: QpState::Err, ..QpAttr::default() };
    let _ = lonely.engine.modify_qp(lonely.qp, &attr, AttrMask::STATE).expect("from any state");
    let wc = lonely.engine.pop_wc(lonely.objects.cq).expect("it is flushed");
    assert_eq!((wc.wr_id, wc.status), (1, WcStatus::WrFlushErr));
    let why = lonely.engine.explain(lonely.qpn, wc.wr_id, wc.status).expect("a sentence");
    let said = format!(
        "WR_FLUSH_ERR (5): wr_id 0x1, QP {}: the QP was in error before this request was processed; no work request of it is known \
         to have failed: the program moved it to the error state, or an asynchronous event has the reason",
        lonely.qpn
    );
    assert_eq!(why, said);

    let mut fail = |account: &Account| {
        let Engine { common, qps, .. } = &mut lonely.engine;
        let context = &mut qps.get_mut(lonely.qp).expect("it lives").context;
        QpEnv::new(common, context).explain(account);
        lonely.engine.explain(lonely.qpn, wc.wr_id, wc.status).expect("a sentence")
    };
    let harmless = received(WcStatus::TmRndvIncomplete, Reason::RendezvousTooLong);
    assert_eq!(fail(&harmless), said, "that did not end the QP");

    let account = sent(WcStatus::RemOpErr, Reason::RemoteOperationalNak);
    let why = fail(&account);
    let first = lonely.words(&account);
    assert_eq!(why, format!("flushed, as another work request had failed: {first}"));
}

/// Whoever moves a QP to the error state in the program's stead says why, and the first is right.
#[test]
fn a_flushed_request_of_a_qp_that_was_ended_has_the_reason() {
    let mut lonely = Lonely::new("explain-ended");
    let why = |lonely: &Lonely| {
        lonely.engine.explain(lonely.qpn, 1, WcStatus::WrFlushErr).expect("a sentence")
    };
    let to = |state| QpAttr { state, ..QpAttr::default() };
    lonely.engine.note_end(lonely.qp, "the peer ended its connection");
    lonely.engine.note_end(lonely.qp, "its identifier was dropped");
    let _ = lonely.engine.modify_qp(lonely.qp, &to(QpState::Err), AttrMask::STATE).expect("any");
    assert!(why(&lonely).ends_with("processed; the peer ended its connection"), "{}", why(&lonely));
    // A QP that is reset begins anew, and one that is in error already is so for another reason.
    for state in [QpState::Reset, QpState::Err] {
        let _ = lonely.engine.modify_qp(lonely.qp, &to(state), AttrMask::STATE).expect("any");
    }
    lonely.engine.note_end(lonely.qp, "the peer ended its connection");
    assert!(why(&lonely).contains("the program moved it to the error state"), "{}", why(&lonely));
}

/// A tag list is asked to remove a receive that it does not have: there is no QP, but it is
/// explained as well.
#[test]
fn a_failed_operation_on_a_tag_list_has_a_sentence() {
    let mut lonely = Lonely::new("explain-tags");
    let Lonely { engine, objects, .. } = &mut lonely;
    let srq = engine.create_srq(objects.pd, 8, 1, 0, 0).expect("below max_srq");
    engine.make_srq_tm(srq, objects.cq, 8, 8).expect("the preset matches tags");
    let kind = TagOpKind::Del(0x5);
    let op = TagOp { wr_id: 0x1d, signaled: false, unexpected_cnt: None, kind };
    engine.post_srq_op(srq, op).expect("it fails in its completion");
    let wc = engine.pop_wc(objects.cq).expect("a failure always completes");
    assert_eq!((wc.wr_id, wc.status), (0x1d, WcStatus::TmErr));
    assert_eq!(Reason::from_vendor_err(wc.vendor_err), Some(Reason::NoSuchTag));
    let why = engine.explain(wc.qpn, wc.wr_id, wc.status).expect("it failed");
    let said = format!(
        "TM_ERR (22): removing the receive with handle 0x5, wr_id 0x1d, SRQ {}: no receive in the tag list has that handle: its \
         message has arrived, or it was removed",
        srq.handle()
    );
    assert_eq!(why, said);
}
