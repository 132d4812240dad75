//! Acknowledgements that wait for a request to travel with, and what never waits.

use std::time::Duration;

use transport::{AckPolicy, PathCaps, Poll};

use crate::prelude::*;

/// Acknowledgements wait for any program.
const PATIENT: AckPolicy = AckPolicy {
    max_delay: Duration::from_millis(10),
    answers_to_trust: 0,
    shortest_timeout: Duration::ZERO,
};

/// A station that lets acknowledgements wait, with two receives.
fn station() -> Station {
    with_policy(&PATIENT)
}

fn with_policy(policy: &'static AckPolicy) -> Station {
    let mut s = Station::new(&Options { ecn: true, ..Options::rc() });
    s.qp.set_ack_policy(policy);
    s.acks_stay = true;
    s.post_recv(build::recv(7, BASE, 10));
    s.post_recv(build::recv(8, BASE, 10));
    s
}

fn request(psn: Psn) -> wire::Headers {
    packet(Opcode::RcSendOnly, psn).ackreq()
}

/// The next packet may be refused, which ends the connection at the peer: it must know by then that
/// its own request was done.
#[test]
fn an_ack_that_does_not_wait_goes_before_requests() {
    let mut s = station();
    s.acks_stay = false;
    send!(s, 0, request(rq(0)), b"a");
    s.post(build::read(1, BASE, 1, 0xdead));
    recv!(s, 0, ack(rq(0), 1));
    recv!(s, 0, packet(Opcode::RcReadRequest, sq(0)).with_reth(0xdead, 1).ackreq());
    recv_nothing!(s, 1);
}

#[test]
fn an_ack_that_waited_follows_all_requests_that_are_there() {
    let mut s = station();
    send!(s, 0, request(rq(0)), b"a");
    recv_nothing!(s, 1);
    for wr_id in [1, 2] {
        s.post(build::send(wr_id, BASE, 1));
    }
    assert_eq!(s.qp.poll_transmit(&mut s.host, s.now, 16), Poll::Idle);
    recv!(s, 1, request(sq(0)), b"a");
    recv!(s, 1, request(sq(1)), b"a");
    recv!(s, 1, ack(rq(0), 1));
    recv_nothing!(s, 2);
}

#[test]
fn an_ack_that_waits_goes_with_the_next_request() {
    let mut s = station();
    send!(s, 0, request(rq(0)), b"a");
    recv_nothing!(s, 1);
    assert!(s.qp.owes_answers());
    s.received(7, WcStatus::Success);
    s.post(build::send(1, BASE, 1));
    recv!(s, 2, request(sq(0)), b"a");
    recv!(s, 2, ack(rq(0), 1));
    assert!(!s.qp.owes_answers());
    recv_nothing!(s, 3);
}

#[test]
fn an_ack_that_waits_goes_alone_when_told_to() {
    let mut s = station();
    send!(s, 0, request(rq(0)), b"a");
    recv_nothing!(s, 50);
    s.acks_stay = false;
    recv!(s, 50, ack(rq(0), 1));
    recv_nothing!(s, 1000);
}

#[test]
fn only_the_last_of_the_acks_that_wait_is_sent() {
    let mut s = station();
    send!(s, 0, request(rq(0)), b"a");
    recv_nothing!(s, 1);
    send!(s, 1, request(rq(1)), b"b");
    recv_nothing!(s, 2);
    s.acks_stay = false;
    recv!(s, 2, ack(rq(1), 2));
    recv_nothing!(s, 1000);
}

#[test]
fn a_refusal_goes_at_once_and_confirms_what_the_ack_would_have_confirmed() {
    let mut s = station();
    send!(s, 0, request(rq(0)), b"a");
    recv_nothing!(s, 1);
    // One packet is missing. A NAK acknowledges everything before its number (IBA 9.7.5.1.2).
    send!(s, 1, request(rq(2)), b"c");
    recv!(s, 1, nak(rq(1), 1, Syndrome::Nak(NakCode::PsnSequence)));
    recv_nothing!(s, 1000);
}

#[test]
fn an_rnr_nak_goes_at_once() {
    let mut s = station();
    for at in [0, 1] {
        send!(s, u64::from(at), request(rq(at)), b"a");
        recv_nothing!(s, u64::from(at));
    }
    send!(s, 2, request(rq(2)), b"c");
    let timer = s.qp.query().min_rnr_timer;
    recv!(s, 2, nak(rq(2), 2, Syndrome::RnrNak { timer }));
}

#[test]
fn an_answer_with_data_is_sent_at_once_after_the_ack_before_it() {
    let mut s = station();
    send!(s, 0, request(rq(0)), b"a");
    recv_nothing!(s, 1);
    send!(s, 1, packet(Opcode::RcReadRequest, rq(1)).with_reth(BASE, 4));
    recv!(s, 1, ack(rq(0), 2));
    recv!(s, 1, packet(Opcode::RcReadResponseOnly, rq(1)).with_aeth(Syndrome::ACK, 2), b"a\0\0\0");
    recv_nothing!(s, 1000);
}

#[test]
fn a_mark_is_answered_at_once() {
    let mut s = station();
    s.marked = true;
    send!(s, 0, request(rq(0)), b"a");
    let mut cnp = packet(Opcode::Cnp, Psn::new(0));
    (cnp.bth.becn, cnp.bth.migreq) = (true, false);
    recv!(s, 0, cnp, &[0; 16]);
    recv_nothing!(s, 1);
    assert!(s.qp.owes_answers(), "the acknowledgement still waits");
}

#[test]
fn on_a_carrier_in_memory_nothing_waits() {
    let mut s = station();
    s.qp.set_path(PathCaps::memory(iba::Mtu::Mtu256, 4096));
    send!(s, 0, request(rq(0)), b"a");
    recv!(s, 0, ack(rq(0), 1));
}

#[test]
fn an_ack_that_waited_until_its_deadline_goes_alone() {
    let mut s = station();
    send!(s, 0, request(rq(0)), b"a");
    recv_nothing!(s, 9_999);
    assert_eq!(s.qp.poll_timeout(), Some(transport::Time::from_micros(10_000)));
    recv!(s, 10_000, ack(rq(0), 1));
    assert_eq!(s.qp.poll_timeout(), None);
}

#[test]
fn a_second_message_does_not_move_the_deadline() {
    let mut s = station();
    send!(s, 0, request(rq(0)), b"a");
    send!(s, 9_000, request(rq(1)), b"b");
    recv_nothing!(s, 9_999);
    recv!(s, 10_000, ack(rq(1), 2));
}

#[test]
fn acks_wait_only_for_a_program_that_answered_at_once_often_enough() {
    static TRUST: AckPolicy = AckPolicy { answers_to_trust: 2, ..PATIENT };
    let mut s = with_policy(&TRUST);
    for (answers, may_wait) in
        [(&[][..], false), (&[true], false), (&[true], true), (&[false, true], false)]
    {
        answers.iter().for_each(|is_at_once| s.qp.note_answer(*is_at_once));
        assert_eq!(s.qp.delay_ack(s.now), may_wait, "{answers:?}");
        s.qp.release_ack();
    }
}

#[test]
fn a_program_that_let_the_deadline_pass_is_no_longer_trusted() {
    static TRUST: AckPolicy = AckPolicy { answers_to_trust: 1, ..PATIENT };
    let mut s = with_policy(&TRUST);
    s.qp.note_answer(true);
    send!(s, 0, request(rq(0)), b"a");
    recv!(s, 10_000, ack(rq(0), 1));
    send!(s, 10_001, request(rq(1)), b"b");
    recv!(s, 10_001, ack(rq(1), 2));
}

#[test]
fn without_a_policy_nothing_waits() {
    let mut s = with_policy(&AckPolicy::AT_ONCE);
    send!(s, 0, request(rq(0)), b"a");
    recv!(s, 0, ack(rq(0), 1));
}

#[test]
fn a_qp_with_a_short_timeout_lets_nothing_wait() {
    static HURRY: AckPolicy = AckPolicy { shortest_timeout: Duration::from_secs(60), ..PATIENT };
    let mut s = with_policy(&HURRY);
    send!(s, 0, request(rq(0)), b"a");
    recv!(s, 0, ack(rq(0), 1));
}

#[test]
fn a_qp_that_was_reset_waits_for_nothing() {
    let mut s = station();
    send!(s, 0, request(rq(0)), b"a");
    recv_nothing!(s, 1);
    s.to_state(QpState::Reset);
    assert_eq!(s.qp.poll_timeout(), None);
    recv_nothing!(s, 100_000);
}
