//! Receiver not ready (IBA 9.7.5, RNR NAK).

use crate::prelude::*;

#[test]
fn without_a_receive_the_peer_is_told_once_when_to_try_again() {
    let mut s = Station::new(&Options { min_rnr_timer: 12, ..Options::rc() });
    send!(s, 0, packet(Opcode::RcSendOnly, rq(0)).ackreq(), b"a");
    recv!(s, 0, rnr_nak(rq(0), 0, 12));
    // The rest of the burst is silently dropped.
    send!(s, 0, packet(Opcode::RcSendOnly, rq(1)).ackreq(), b"b");
    recv_nothing!(s, 0);
    assert_eq!(s.host.counted(Counter::OutOfBuffer), 1);

    s.post_recv(build::recv(7, BASE, 10));
    send!(s, 700, packet(Opcode::RcSendOnly, rq(0)).ackreq(), b"a");
    s.received(7, WcStatus::Success);
    recv!(s, 700, ack(rq(0), 1));
}

#[test]
fn the_requester_waits_as_long_as_it_was_told() {
    let mut s = Station::new(&Options::rc());
    s.post(build::send(9, BASE, 1));
    s.post(build::send(10, BASE, 1));
    recv!(s, 0, packet(Opcode::RcSendOnly, sq(0)).ackreq(), &[0]);
    recv!(s, 0, packet(Opcode::RcSendOnly, sq(1)).ackreq(), &[0]);
    // Code 12: 640 us.
    send!(s, 2, rnr_nak(sq(0), 0, 12));
    recv_nothing!(s, 641);
    recv!(s, 642, packet(Opcode::RcSendOnly, sq(0)).ackreq(), &[0]);
    recv!(s, 642, packet(Opcode::RcSendOnly, sq(1)).ackreq(), &[0]);
    send!(s, 643, ack(sq(1), 2));
    s.sent(9, WcStatus::Success);
    s.sent(10, WcStatus::Success);
}

#[test]
fn an_rnr_nak_acknowledges_what_came_before() {
    let mut s = Station::new(&Options::rc());
    s.post(build::write(9, BASE, 1, 0x9000));
    s.post(build::send(10, BASE, 1));
    s.at(0);
    send!(s, 2, rnr_nak(sq(1), 1, 1));
    s.sent(9, WcStatus::Success);
    s.completed_nothing();
}

#[test]
fn retries_are_counted() {
    let mut s = Station::new(&Options { rnr_retry: 2, ..Options::rc() });
    s.post(build::send(9, BASE, 1));
    s.post(build::send(10, BASE, 1));
    for round in 0..3 {
        s.completed_nothing();
        recv!(s, round * 20, packet(Opcode::RcSendOnly, sq(0)).ackreq(), &[0]);
        recv!(s, round * 20, packet(Opcode::RcSendOnly, sq(1)).ackreq(), &[0]);
        send!(s, round * 20 + 1, rnr_nak(sq(0), 0, 1));
    }
    assert_eq!(s.sent(9, WcStatus::RnrRetryExcErr).vendor_err, Reason::RnrNak as u32);
    s.sent(10, WcStatus::WrFlushErr);
    assert_eq!(s.qp.state(), QpState::Err);
    assert_eq!(s.host.counted(Counter::RnrNakRetryErr), 1);
}

#[test]
fn seven_retries_mean_no_limit() {
    let mut s = Station::new(&Options { rnr_retry: 7, ..Options::rc() });
    s.post(build::send(9, BASE, 1));
    for round in 0..100 {
        recv!(s, round * 20, packet(Opcode::RcSendOnly, sq(0)).ackreq(), &[0]);
        send!(s, round * 20 + 1, rnr_nak(sq(0), 0, 1));
    }
    s.completed_nothing();
}

#[test]
fn a_duplicate_of_the_nak_does_not_count() {
    let mut s = Station::new(&Options { rnr_retry: 1, ..Options::rc() });
    s.post(build::send(9, BASE, 1));
    s.at(0);
    send!(s, 1, rnr_nak(sq(0), 0, 12));
    send!(s, 2, rnr_nak(sq(0), 0, 12));
    assert_eq!(s.qp.state(), QpState::Rts);
    assert_eq!(s.qp.poll_timeout(), Some(transport::Time::from_micros(641)));
}

#[test]
fn the_last_packet_of_a_write_with_immediate_waits_alone() {
    let mut s = Station::new(&Options::rc());
    send!(s, 0, packet(Opcode::RcWriteFirst, rq(0)).with_reth(BASE, 300), &[1; 256]);
    let last = packet(Opcode::RcWriteLastWithImm, rq(1)).imm(3).ackreq();
    send!(s, 0, last, &[2; 44]);
    recv!(s, 0, rnr_nak(rq(1), 0, 1));
    s.post_recv(build::recv(7, BASE, 0));
    send!(s, 20, last, &[2; 44]);
    assert_eq!(s.received(7, WcStatus::Success).byte_len, 300);
    recv!(s, 20, ack(rq(1), 1));
}

#[test]
fn the_ack_timer_does_not_run_meanwhile() {
    let mut s = Station::new(&Options { retry_cnt: 0, ..Options::rc() });
    s.post(build::send(9, BASE, 1));
    s.at(0);
    send!(s, 1, rnr_nak(sq(0), 0, 12));
    s.at(600);
    s.completed_nothing();
}
