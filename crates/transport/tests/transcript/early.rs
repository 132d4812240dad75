//! Packets that overtook a lost one: what the responder keeps and reports, and what the requester
//! sends again.

use iba::Qpn;
use wire::{Headers, Sack, SackRange};

use crate::prelude::*;

/// A report that `expected` is missing, and that these are kept: how far ahead, and how many.
fn sack(expected: Psn, kept: &[(u16, u16)]) -> Headers {
    let mut sack = Sack::default();
    for (range, (ahead, count)) in sack.ranges.iter_mut().zip(kept) {
        *range = SackRange { ahead: *ahead, count: *count };
    }
    let mut headers = packet(Opcode::Sack, expected);
    headers.set_sack(sack);
    headers
}

/// A responder that keeps what comes early, with this many receives.
fn keeper(receives: u64) -> Station {
    let mut s = Station::new(&Options::rc());
    s.early = Some(Default::default());
    (0..receives).for_each(|wr_id| s.post_recv(build::recv(wr_id, BASE + 16 * wr_id, 16)));
    s
}

fn message(number: u32) -> Headers {
    packet(Opcode::RcSendOnly, rq(number))
}

#[test]
fn what_overtook_a_lost_packet_is_kept_and_reported_and_has_its_turn() {
    let mut s = keeper(4);
    send!(s, 10, message(0), b"zero");
    send!(s, 11, message(2), b"two.");
    recv!(s, 11, sack(rq(1), &[(1, 1)]));
    recv!(s, 11, nak(rq(1), 1, Syndrome::Nak(NakCode::PsnSequence)));
    send!(s, 12, message(3).ackreq(), b"thre");
    recv!(s, 12, sack(rq(1), &[(1, 2)]));
    s.received(0, WcStatus::Success);
    s.completed_nothing();
    send!(s, 13, message(1), b"one.");
    recv!(s, 13, ack(rq(3), 4));
    (1..4).for_each(|wr_id| assert_eq!(s.received(wr_id, WcStatus::Success).wr_id, wr_id));
    assert_eq!(s.peek(BASE + 16, 36)[..4], *b"one.");
    assert_eq!(s.peek(BASE + 32, 4), b"two.");
    assert_eq!(s.peek(BASE + 48, 4), b"thre");
    recv_nothing!(s, 1000);
}

#[test]
fn each_gap_is_reported() {
    let mut s = keeper(8);
    send!(s, 10, message(1), b"1");
    recv!(s, 10, sack(rq(0), &[(1, 1)]));
    recv!(s, 10, nak(rq(0), 0, Syndrome::Nak(NakCode::PsnSequence)));
    send!(s, 11, message(3), b"3");
    recv!(s, 11, sack(rq(0), &[(1, 1), (3, 1)]));
    // Nothing new, and it does not ask.
    send!(s, 12, message(4), b"4");
    send!(s, 12, message(3), b"3");
    recv_nothing!(s, 12);
    // It asks: the peer learns what is missing next.
    send!(s, 13, message(0).ackreq(), b"0");
    recv!(s, 13, sack(rq(2), &[(1, 2)]));
    recv!(s, 13, ack(rq(1), 2));
    send!(s, 14, message(2).ackreq(), b"2");
    recv!(s, 14, ack(rq(4), 5));
    (0..5).for_each(|wr_id| assert_eq!(s.received(wr_id, WcStatus::Success).wr_id, wr_id));
}

#[test]
fn while_the_peer_pauses_nothing_is_kept() {
    let mut s = keeper(0);
    send!(s, 10, message(0), b"0");
    recv!(s, 10, rnr_nak(rq(0), 0, 1));
    send!(s, 11, message(1), b"1");
    recv_nothing!(s, 11);
    s.post_recv(build::recv(0, BASE, 16));
    s.post_recv(build::recv(1, BASE, 16));
    send!(s, 20, message(0).ackreq(), b"0");
    recv!(s, 20, ack(rq(0), 1));
    s.received(0, WcStatus::Success);
    s.completed_nothing();
}

/// What was kept finds no receive when its turn comes: the peer sends it again.
#[test]
fn a_kept_message_that_finds_no_receive_is_refused() {
    let mut s = keeper(1);
    send!(s, 10, message(1), b"1");
    recv!(s, 10, sack(rq(0), &[(1, 1)]));
    recv!(s, 10, nak(rq(0), 0, Syndrome::Nak(NakCode::PsnSequence)));
    send!(s, 11, message(0).ackreq(), b"0");
    s.received(0, WcStatus::Success);
    recv!(s, 11, rnr_nak(rq(1), 1, 1));
    s.post_recv(build::recv(1, BASE, 16));
    send!(s, 20, message(1).ackreq(), b"1");
    recv!(s, 20, ack(rq(1), 2));
    s.received(1, WcStatus::Success);
}

#[test]
fn reads_and_what_is_far_ahead_are_not_kept() {
    let mut s = keeper(2);
    send!(s, 10, packet(Opcode::RcReadRequest, rq(1)).with_reth(BASE, 4));
    recv!(s, 10, nak(rq(0), 0, Syndrome::Nak(NakCode::PsnSequence)));
    send!(s, 11, message(1024), b"far");
    send!(s, 12, message(0).ackreq(), b"0");
    recv!(s, 12, ack(rq(0), 1));
}

/// Nobody sent it, perhaps.
#[test]
fn what_is_behind_many_missing_packets_is_not_kept() {
    let mut s = keeper(2);
    send!(s, 10, message(129), b"far");
    recv!(s, 10, nak(rq(0), 0, Syndrome::Nak(NakCode::PsnSequence)));
    send!(s, 11, message(128), b"near");
    recv!(s, 11, sack(rq(0), &[(128, 1)]));
    // Counted from what is kept.
    send!(s, 12, message(129 + 128), b"next");
    recv!(s, 12, sack(rq(0), &[(128, 1), (257, 1)]));
}

/// A requester that sent this many SENDs, the peer of which has answered nothing.
fn sender(count: u32) -> Station {
    let mut s = Station::new(&Options { timeout: 8, ..Options::rc() });
    for number in 0..count {
        s.post(build::send(number.into(), BASE, 4));
        recv!(s, 0, packet(Opcode::RcSendOnly, sq(number)).ackreq(), &[0; 4]);
    }
    s
}

fn again(s: &mut Station, micros: u64, number: u32) {
    recv!(s, micros, packet(Opcode::RcSendOnly, sq(number)).ackreq(), &[0; 4]);
}

#[test]
fn only_what_is_missing_is_sent_again_and_once() {
    let mut s = sender(8);
    send!(s, 10, sack(sq(1), &[(1, 1)]));
    s.sent(0, WcStatus::Success);
    again(&mut s, 10, 1);
    send!(s, 10, nak(sq(1), 1, Syndrome::Nak(NakCode::PsnSequence)));
    recv_nothing!(s, 11);
    // Further ahead, 3 and 5 are missing.
    send!(s, 12, sack(sq(1), &[(1, 1), (3, 1), (5, 2)]));
    again(&mut s, 12, 3);
    again(&mut s, 12, 5);
    recv_nothing!(s, 13);
    send!(s, 14, ack(sq(2), 3));
    send!(s, 15, ack(sq(7), 8));
    (1..8).for_each(|wr_id| assert_eq!(s.sent(wr_id, WcStatus::Success).wr_id, wr_id));
    recv_nothing!(s, 10_000);
    // All is as before.
    s.post(build::send(8, BASE, 4));
    again(&mut s, 10_000, 8);
}

#[test]
fn what_is_sent_again_and_lost_again_is_sent_once_more() {
    let mut s = sender(4);
    send!(s, 10, sack(sq(0), &[(1, 3)]));
    again(&mut s, 10, 0);
    // New, and it arrives.
    for number in 4..6 {
        s.post(build::send(number.into(), BASE, 4));
        again(&mut s, 11, number);
    }
    send!(s, 20, sack(sq(0), &[(1, 5)]));
    again(&mut s, 20, 0);
    send!(s, 30, ack(sq(5), 6));
    (0..6).for_each(|wr_id| assert_eq!(s.sent(wr_id, WcStatus::Success).wr_id, wr_id));
}

#[test]
fn a_timeout_sends_all_again() {
    let mut s = sender(3);
    send!(s, 10, sack(sq(0), &[(1, 1)]));
    again(&mut s, 10, 0);
    // Nobody says any more that the second one arrived.
    s.at(5000);
    (0..3).for_each(|number| again(&mut s, 5000, number));
}

/// The peer kept the second message, but had no receive for it in the end.
#[test]
fn what_the_peer_refuses_after_all_is_sent_again() {
    let mut s = sender(3);
    send!(s, 10, sack(sq(0), &[(1, 2)]));
    again(&mut s, 10, 0);
    send!(s, 11, rnr_nak(sq(1), 1, 1));
    s.sent(0, WcStatus::Success);
    again(&mut s, 500, 1);
    send!(s, 501, ack(sq(2), 3));
    (1..3).for_each(|wr_id| assert_eq!(s.sent(wr_id, WcStatus::Success).wr_id, wr_id));
}

#[test]
fn a_report_about_nothing_that_was_sent_changes_nothing() {
    let mut s = sender(2);
    for (expected, kept) in [
        (sq(0), (5, 1)),
        (sq(0), (0, 1)),
        (sq(0), (1, 2)),
        (sq(0), (u16::MAX, u16::MAX)),
        (sq(2), (1, 1)),
        (sq(0xff_0000), (1, 1)),
    ] {
        send!(s, 10, sack(expected, &[kept]));
        recv_nothing!(s, 10);
    }
    let mut other = sack(sq(0), &[(1, 1)]);
    other.bth.dest_qp = Qpn::new(0);
    let mut over_memory = met(Options::rc().over_memory(4096));
    over_memory.post(build::send(1, BASE, 4));
    over_memory.poll();
    send!(over_memory, 10, other);
    assert_eq!(over_memory.host.counted(Counter::DroppedPacket), 1);
}

/// What left before the missing packet was sent again has arrived by then, or is lost.
#[test]
fn what_was_lost_at_the_end_is_sent_again_as_soon_as_that_is_known() {
    let mut s = sender(5);
    // 0 and 4 were lost.
    send!(s, 10, sack(sq(0), &[(1, 3)]));
    again(&mut s, 10, 0);
    send!(s, 20, ack(sq(3), 4));
    again(&mut s, 20, 4);
    send!(s, 30, ack(sq(4), 5));
    (0..5).for_each(|wr_id| assert_eq!(s.sent(wr_id, WcStatus::Success).wr_id, wr_id));
    recv_nothing!(s, 10_000);
}

/// READs are not kept.
#[test]
fn a_read_behind_a_loss_is_requested_again() {
    let mut s = sender(2);
    let request = packet(Opcode::RcReadRequest, sq(2)).ackreq().with_reth(BASE, 4);
    s.post(build::read(2, BASE, 4, BASE));
    recv!(s, 0, request);
    send!(s, 10, sack(sq(0), &[(1, 1)]));
    again(&mut s, 10, 0);
    send!(s, 20, ack(sq(1), 2));
    recv!(s, 20, request);
    send!(s, 30, packet(Opcode::RcReadResponseOnly, sq(2)).with_aeth(Syndrome::ACK, 3), b"read");
    (0..3).for_each(|wr_id| assert_eq!(s.sent(wr_id, WcStatus::Success).wr_id, wr_id));
    assert_eq!(s.peek(BASE, 4), b"read");
}

#[test]
fn each_hole_is_sent_again_once_even_if_nothing_follows() {
    let mut s = sender(10);
    send!(s, 10, sack(sq(0), &[(1, 4), (6, 4)]));
    again(&mut s, 10, 0);
    again(&mut s, 10, 5);
    send!(s, 11, sack(sq(5), &[(1, 4)]));
    recv_nothing!(s, 11);
    send!(s, 12, ack(sq(9), 10));
    (0..10).for_each(|wr_id| assert_eq!(s.sent(wr_id, WcStatus::Success).wr_id, wr_id));
}

#[test]
fn the_packet_of_another_manufacturer_acknowledges_nothing() {
    let mut s = sender(2);
    let mut other = packet(Opcode::Sack, sq(2));
    other.set_sack(Sack { signature: *b"what", ..Sack::default() });
    send!(s, 10, other);
    s.completed_nothing();
    assert_eq!(s.host.counted(Counter::DroppedPacket), 1);
}

/// The pause that it asks for is not cut short.
#[test]
fn a_responder_that_asks_for_a_pause_reports_nothing() {
    let mut s = keeper(0);
    send!(s, 10, message(1).ackreq(), b"1");
    recv!(s, 10, sack(rq(0), &[(1, 1)]));
    recv!(s, 10, nak(rq(0), 0, Syndrome::Nak(NakCode::PsnSequence)));
    send!(s, 11, message(0).ackreq(), b"0");
    recv!(s, 11, rnr_nak(rq(0), 0, 1));
    recv_nothing!(s, 12);
}
