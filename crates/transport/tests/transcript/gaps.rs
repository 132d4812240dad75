//! Answers that overtook a lost one: the requester keeps them, and requests only what is missing.

use wire::Headers;

use crate::prelude::*;

/// A requester that keeps what comes early.
fn keeper() -> Station {
    let mut s = Station::new(&Options { timeout: 8, ..Options::rc() });
    s.early = Some(Default::default());
    s
}

/// One that has requested `count` READs of 1,024 bytes, each of which is answered in four packets.
fn reader(count: u32) -> Station {
    let mut s = keeper();
    for number in 0..count {
        let (addr, remote) = (place(4 * number), remote(4 * number));
        s.post(build::read(number.into(), addr, 1024, remote));
        recv!(s, 0, request(4 * number, 4));
    }
    s
}

fn place(number: u32) -> u64 {
    BASE + 256 * u64::from(number)
}

fn remote(number: u32) -> u64 {
    0x9000 + 256 * u64::from(number)
}

/// The request for this many packets of an answer.
fn request(number: u32, packets: u32) -> Headers {
    let reth = (remote(number), 256 * packets);
    packet(Opcode::RcReadRequest, sq(number)).with_reth(reth.0, reth.1).ackreq()
}

/// A packet of the answer to a READ, as a part of four packets or of `packets` is answered.
fn response(number: u32, first: u32, packets: u32) -> Headers {
    let (at, psn) = (number - first, sq(number));
    let with_aeth = |opcode| packet(opcode, psn).with_aeth(Syndrome::ACK, 1);
    match (at, at + 1 == packets) {
        (0, true) => with_aeth(Opcode::RcReadResponseOnly),
        (0, false) => with_aeth(Opcode::RcReadResponseFirst),
        (_, true) => with_aeth(Opcode::RcReadResponseLast),
        _ => packet(Opcode::RcReadResponseMiddle, psn),
    }
}

/// The peer answers a part of the READs; each packet holds its number.
fn answers(s: &mut Station, micros: u64, numbers: impl IntoIterator<Item = u32>) {
    for number in numbers {
        s.send(micros, response(number, number / 4 * 4, 4), &[number as u8; 256]);
    }
}

/// It answers what was requested again.
fn part(s: &mut Station, micros: u64, first: u32, packets: u32) {
    for number in first..first + packets {
        s.send(micros, response(number, first, packets), &[number as u8; 256]);
    }
}

#[track_caller]
fn all_is_right(s: &mut Station, reads: u32) {
    for number in 0..reads {
        s.sent(number.into(), WcStatus::Success);
    }
    for number in 0..4 * reads {
        assert_eq!(s.peek(place(number), 256), [number as u8; 256], "packet {number}");
    }
}

#[test]
fn only_the_missing_part_is_requested_again() {
    let mut s = reader(2);
    answers(&mut s, 10, [0, 3]);
    recv!(s, 10, request(1, 2));
    answers(&mut s, 11, 4..8);
    recv_nothing!(s, 12);
    s.completed_nothing();
    assert_eq!(s.host.counted(Counter::ImpliedNakSeqErr), 1);
    part(&mut s, 20, 1, 2);
    all_is_right(&mut s, 2);
    recv_nothing!(s, 10_000);
}

/// What `rdma_rxe` may repeat of a READ begins where it was last repeated from.
#[test]
fn gaps_of_one_read_are_requested_one_after_the_other_and_those_of_several_at_once() {
    let mut s = reader(2);
    answers(&mut s, 10, [1, 3, 5, 7]);
    recv!(s, 10, request(0, 1));
    recv!(s, 10, request(4, 1));
    recv_nothing!(s, 11);
    part(&mut s, 20, 0, 1);
    recv!(s, 20, request(2, 1));
    part(&mut s, 21, 4, 1);
    recv!(s, 21, request(6, 1));
    part(&mut s, 30, 6, 1);
    s.completed_nothing();
    part(&mut s, 30, 2, 1);
    all_is_right(&mut s, 2);
    recv_nothing!(s, 10_000);
}

#[test]
fn a_part_that_is_lost_again_is_requested_again_when_a_later_request_is_answered() {
    let mut s = reader(1);
    answers(&mut s, 10, [1, 2, 3]);
    recv!(s, 10, request(0, 1));
    s.post(build::read(1, place(4), 1024, remote(4)));
    recv!(s, 11, request(4, 4));
    answers(&mut s, 20, [4]);
    recv!(s, 20, request(0, 1));
    answers(&mut s, 21, 5..8);
    recv_nothing!(s, 22);
    part(&mut s, 30, 0, 1);
    all_is_right(&mut s, 2);
    recv_nothing!(s, 10_000);
}

#[test]
fn after_a_timeout_everything_is_requested_again() {
    let mut s = reader(2);
    answers(&mut s, 10, [0, 2, 3, 5]);
    recv!(s, 10, request(1, 1));
    recv!(s, 10, request(4, 1));
    s.at(1500);
    recv!(s, 1500, request(1, 3));
    recv!(s, 1500, request(4, 4));
    assert_eq!(s.host.counted(Counter::LocalAckTimeoutErr), 1);
    // What was kept is used.
    part(&mut s, 1510, 1, 1);
    answers(&mut s, 1510, [4]);
    s.sent(0, WcStatus::Success);
    answers(&mut s, 1510, [6, 7]);
    s.sent(1, WcStatus::Success);
    recv_nothing!(s, 10_000);
}

/// The peer still has the result, and does not carry out the atomic again.
#[test]
fn an_atomic_whose_result_is_missing_is_repeated() {
    let mut s = keeper();
    let answer = |number, value| {
        packet(Opcode::RcAtomicAck, sq(number)).with_aeth(Syndrome::ACK, number + 1).orig(value)
    };
    s.post(build::fetch_add(0, BASE, 0x9000, 5));
    s.post(build::cmp_swap(1, BASE + 8, 0x9000, 1, 2));
    s.post(build::send(2, BASE, 0));
    let first = packet(Opcode::RcFetchAdd, sq(0)).atomic(0x9000, 5, 0).ackreq();
    recv!(s, 0, first);
    recv!(s, 0, packet(Opcode::RcCmpSwap, sq(1)).atomic(0x9000, 2, 1).ackreq());
    recv!(s, 0, packet(Opcode::RcSendOnly, sq(2)).ackreq());
    send!(s, 10, answer(1, 7));
    recv!(s, 10, first);
    send!(s, 11, ack(sq(2), 3));
    s.completed_nothing();
    send!(s, 20, answer(0, 6));
    (0..3).for_each(|wr_id| assert_eq!(s.sent(wr_id, WcStatus::Success).wr_id, wr_id));
    assert_eq!(s.peek(BASE, 8), 6u64.to_ne_bytes());
    assert_eq!(s.peek(BASE + 8, 8), 7u64.to_ne_bytes());
    recv_nothing!(s, 10_000);
}

/// The peer lacks a request after the READ: it gets that, and nothing that it has.
#[test]
fn a_request_that_was_lost_after_a_missing_answer_is_sent_again_alone() {
    let mut s = reader(1);
    for number in 0..3 {
        s.post(build::send((number + 1).into(), BASE, 4));
        recv!(s, 0, packet(Opcode::RcSendOnly, sq(4 + number)).ackreq(), &[0; 4]);
    }
    answers(&mut s, 10, [0, 1, 3]);
    recv!(s, 10, request(2, 1));
    send!(s, 11, nak(sq(5), 2, Syndrome::Nak(NakCode::PsnSequence)));
    recv!(s, 11, packet(Opcode::RcSendOnly, sq(5)).ackreq(), &[0; 4]);
    recv!(s, 11, packet(Opcode::RcSendOnly, sq(6)).ackreq(), &[0; 4]);
    send!(s, 20, ack(sq(6), 4));
    s.completed_nothing();
    part(&mut s, 21, 2, 1);
    (0..4).for_each(|wr_id| assert_eq!(s.sent(wr_id, WcStatus::Success).wr_id, wr_id));
    recv_nothing!(s, 10_000);
}

#[test]
fn a_pause_that_the_peer_asks_for_holds_back_the_missing_part_too() {
    let mut s = reader(1);
    s.post(build::send(1, BASE, 0));
    let send = packet(Opcode::RcSendOnly, sq(4)).ackreq();
    recv!(s, 0, send);
    answers(&mut s, 10, [0, 1]);
    send!(s, 11, rnr_nak(sq(4), 1, 12));
    recv_nothing!(s, 600);
    recv!(s, 700, request(2, 2));
    recv!(s, 700, send);
    send!(s, 710, ack(sq(4), 2));
    part(&mut s, 711, 2, 2);
    s.sent(0, WcStatus::Success);
    s.sent(1, WcStatus::Success);
    recv_nothing!(s, 10_000);
}

#[test]
fn a_refusal_of_the_missing_part_ends_the_read() {
    let mut s = reader(1);
    answers(&mut s, 10, [0, 2, 3]);
    recv!(s, 10, request(1, 1));
    send!(s, 20, nak(sq(1), 1, Syndrome::Nak(NakCode::RemoteAccess)));
    s.sent(0, WcStatus::RemAccessErr);
    assert_eq!(s.qp.state(), QpState::Err);
}

/// Gaps take one retry, however many there are before the peer is heard in order again.
#[test]
fn gaps_take_one_retry() {
    for (retry_cnt, is_enough) in [(0, false), (1, true)] {
        let mut s = Station::new(&Options { retry_cnt, timeout: 8, ..Options::rc() });
        s.early = Some(Default::default());
        s.post(build::read(0, BASE, 1024, remote(0)));
        recv!(s, 0, request(0, 4));
        answers(&mut s, 1, [1]);
        if is_enough {
            recv!(s, 1, request(0, 1));
            answers(&mut s, 2, [3]);
            part(&mut s, 3, 0, 1);
            recv!(s, 3, request(2, 1));
            part(&mut s, 4, 2, 1);
            all_is_right(&mut s, 1);
        } else {
            assert_eq!(s.sent(0, WcStatus::RetryExcErr).vendor_err, Reason::SequenceNak as u32);
        }
    }
}

#[test]
fn an_answer_may_end_where_a_part_ends_and_nowhere_else() {
    let ends = |number| packet(Opcode::RcReadResponseLast, sq(number)).with_aeth(Syndrome::ACK, 1);
    let mut s = reader(1);
    answers(&mut s, 10, [0, 3]);
    recv!(s, 10, request(1, 2));
    send!(s, 11, packet(Opcode::RcReadResponseMiddle, sq(1)), &[1; 256]);
    send!(s, 11, ends(2), &[2; 256]);
    all_is_right(&mut s, 1);
    let mut s = reader(1);
    answers(&mut s, 10, [0]);
    send!(s, 10, ends(1), &[1; 256]);
    s.sent(0, WcStatus::BadRespErr);
}

#[test]
fn a_rate_limit_holds_for_what_is_requested_again() {
    let mut s = reader(2);
    let rate_limit = transport::RateLimit { kbps: 8_000, max_burst: 100, typical_packet: 100 };
    s.qp.modify_rate_limit(rate_limit).unwrap();
    answers(&mut s, 10, [1, 2, 3, 5, 6, 7]);
    // A byte takes a microsecond.
    recv!(s, 10, request(0, 1));
    recv_nothing!(s, 50);
    recv!(s, 100, request(4, 1));
}

/// A peer over memory loses nothing, so nothing is kept.
#[test]
fn over_memory_nothing_is_kept() {
    let mut s = Station::new(&Options::rc().over_memory(256));
    s.early = Some(Default::default());
    s.post(build::read(0, BASE, 1024, remote(0)));
    s.at(0);
    answers(&mut s, 1, [1]);
    assert!(s.early.as_ref().is_some_and(transport::Early::is_empty));
}

/// A SEND, and what it sends.
fn post_send(s: &mut Station, wr_id: u64, micros: u64, number: u32) -> Headers {
    let send = packet(Opcode::RcSendOnly, sq(number)).ackreq();
    s.post(build::send(wr_id, BASE, 0));
    recv!(s, micros, send);
    send
}

/// The READ was carried out, and the SEND was refused.
#[test]
fn a_refused_request_fails_in_its_turn_and_not_the_one_before_it() {
    let mut s = Station::new(&Options { timeout: 8, rnr_retry: 0, ..Options::rc() });
    s.early = Some(Default::default());
    s.post(build::read(0, BASE, 1024, remote(0)));
    recv!(s, 0, request(0, 4));
    post_send(&mut s, 1, 0, 4);
    answers(&mut s, 10, [0, 1]);
    send!(s, 11, rnr_nak(sq(4), 1, 12));
    recv!(s, 11, request(2, 2));
    recv_nothing!(s, 12);
    part(&mut s, 20, 2, 2);
    s.sent(0, WcStatus::Success);
    s.sent(1, WcStatus::RnrRetryExcErr);
}

#[test]
fn each_request_has_its_own_retries_while_an_answer_is_missing() {
    let options = Options { timeout: 10, rnr_retry: 1, retry_cnt: 1, ..Options::rc() };
    let mut s = Station::new(&options);
    s.early = Some(Default::default());
    s.post(build::read(0, BASE, 1024, remote(0)));
    recv!(s, 0, request(0, 4));
    let sends = [4, 5].map(|number| post_send(&mut s, number.into(), 0, number));
    answers(&mut s, 10, [0, 1, 2]);
    send!(s, 11, nak(sq(4), 1, Syndrome::Nak(NakCode::PsnSequence)));
    recv!(s, 11, request(3, 1));
    sends.iter().for_each(|send| recv!(s, 11, *send));
    send!(s, 12, rnr_nak(sq(4), 1, 1));
    s.at(40);
    recv!(s, 40, request(3, 1));
    sends.iter().for_each(|send| recv!(s, 40, *send));
    send!(s, 41, ack(sq(4), 2));
    send!(s, 42, rnr_nak(sq(5), 2, 1));
    s.at(80);
    recv!(s, 80, request(3, 1));
    recv!(s, 80, sends[1]);
    send!(s, 81, ack(sq(5), 3));
    part(&mut s, 82, 3, 1);
    [0, 4, 5].iter().for_each(|wr_id| _ = s.sent(*wr_id, WcStatus::Success));
}

#[test]
fn an_answer_does_not_end_a_pause_that_a_later_request_waits_for() {
    let mut s = reader(1);
    let send = post_send(&mut s, 1, 0, 4);
    answers(&mut s, 10, [0, 2, 3]);
    recv!(s, 10, request(1, 1));
    send!(s, 11, rnr_nak(sq(4), 1, 12));
    part(&mut s, 20, 1, 1);
    s.sent(0, WcStatus::Success);
    recv_nothing!(s, 600);
    recv!(s, 700, send);
}

#[test]
fn what_is_carried_out_cannot_be_refused_any_more() {
    let mut s = reader(1);
    (4..7).for_each(|number| _ = post_send(&mut s, number.into(), 0, number));
    answers(&mut s, 10, [0, 1, 2]);
    send!(s, 11, ack(sq(5), 3));
    recv!(s, 11, request(3, 1));
    // These were overtaken by that.
    send!(s, 12, nak(sq(4), 1, Syndrome::Nak(NakCode::PsnSequence)));
    send!(s, 12, rnr_nak(sq(4), 1, 12));
    recv_nothing!(s, 13);
    post_send(&mut s, 7, 13, 7);
}

/// They are missing, too.
#[test]
fn answers_that_nobody_keeps_behind_kept_ones_are_requested_again() {
    let mut s = reader(2);
    answers(&mut s, 10, [1]);
    recv!(s, 10, request(0, 1));
    let early = s.early.take();
    answers(&mut s, 11, 2..8);
    s.early = early;
    recv!(s, 11, request(4, 1));
    part(&mut s, 20, 0, 1);
    recv!(s, 20, request(2, 2));
    part(&mut s, 30, 2, 2);
    part(&mut s, 31, 4, 1);
    recv!(s, 31, request(5, 3));
    part(&mut s, 40, 5, 3);
    all_is_right(&mut s, 2);
    recv_nothing!(s, 10_000);
}

#[test]
fn what_is_too_far_ahead_to_be_kept_is_requested_again() {
    let mut s = Station::new(&Options { timeout: 8, memory: 1 << 20, ..Options::rc() });
    s.early = Some(Default::default());
    s.post(build::read(0, BASE, 256 * 3000, remote(0)));
    recv!(s, 0, request(0, 3000));
    let answer = |number| response(number, 0, 3000);
    send!(s, 10, answer(1), &[1; 256]);
    recv!(s, 10, request(0, 1));
    (2..3000).for_each(|number| send!(s, 10, answer(number), &[1; 256]));
    part(&mut s, 20, 0, 1);
    recv!(s, 20, request(2048, 952));
    part(&mut s, 30, 2048, 952);
    s.sent(0, WcStatus::Success);
    assert_eq!(s.host.counted(Counter::LocalAckTimeoutErr), 0);
}

/// `rdma_rxe` would drop a request for the part before it.
#[test]
fn after_a_timeout_a_read_is_requested_from_behind_what_is_kept() {
    let mut s = reader(2);
    answers(&mut s, 10, [1, 2, 3, 4, 6, 7]);
    recv!(s, 10, request(0, 1));
    recv!(s, 10, request(5, 1));
    s.at(1500);
    recv!(s, 1500, request(0, 4));
    recv!(s, 1500, request(5, 3));
    part(&mut s, 1510, 0, 1);
    part(&mut s, 1510, 5, 1);
    all_is_right(&mut s, 2);
}

#[test]
fn a_cursor_that_went_back_does_not_hold_back_what_is_missing_before_it() {
    let mut s = keeper();
    s.post(build::read(0, BASE, 1024, remote(0)));
    recv!(s, 0, request(0, 4));
    let sends: Vec<_> = (4..24).map(|number| post_send(&mut s, number.into(), 0, number)).collect();
    s.qp.set_window(2);
    s.at(1600);
    recv!(s, 1600, request(0, 4));
    recv!(s, 1600, sends[0]);
    recv!(s, 1600, sends[1]);
    send!(s, 1610, ack(sq(20), 3));
    recv!(s, 1610, request(0, 4));
    recv!(s, 1610, sends[17]);
    recv!(s, 1610, sends[18]);
    recv_nothing!(s, 1620);
}

#[test]
fn a_kept_answer_whose_memory_is_absent_is_stored_when_it_is_back() {
    let mut s = reader(1);
    answers(&mut s, 10, [1, 3]);
    recv!(s, 10, request(0, 1));
    let early = s.early.take();
    part(&mut s, 20, 0, 1);
    recv!(s, 20, request(2, 1));
    s.early = early;
    s.host.no_place = Some(LocalError::NotPresent);
    // A repeated answer, and then the turn of what is kept.
    part(&mut s, 30, 0, 1);
    recv_nothing!(s, 1000);
    assert_eq!(s.host.counted(Counter::PageFaultsPending), 1);
    s.host.no_place = None;
    recv!(s, 1200, request(2, 2));
    part(&mut s, 1210, 2, 1);
    all_is_right(&mut s, 1);
}

/// The numbers of both directions are the same here.
#[test]
fn a_kept_request_is_no_answer_that_finds_no_place() {
    let mut s = Station::new(&Options { timeout: 8, sq_psn: rq(0), ..Options::rc() });
    s.early = Some(Default::default());
    for wr_id in 8..10 {
        s.post_recv(build::recv(wr_id, BASE + 4096, 256));
    }
    let read =
        |number| packet(Opcode::RcReadRequest, rq(number)).with_reth(remote(number), 256).ackreq();
    for number in 0..2 {
        s.post(build::read(number.into(), place(number), 256, remote(number)));
        recv!(s, 0, read(number));
    }
    let only = |n| packet(Opcode::RcReadResponseOnly, rq(n)).with_aeth(Syndrome::ACK, 1);
    send!(s, 1, only(0), &[0; 256]);
    s.sent(0, WcStatus::Success);
    send!(s, 2, packet(Opcode::RcSendOnly, rq(1)));
    s.at(3);
    s.host.out.clear();
    s.host.no_place = Some(LocalError::NotPresent);
    send!(s, 4, only(1), &[1; 256]);
    send!(s, 5, packet(Opcode::RcSendOnly, rq(0)));
    s.at(6);
    s.host.out.clear();
    s.host.no_place = None;
    recv!(s, 300, read(1));
}

#[test]
fn an_answer_that_gets_ahead_has_its_retries_again() {
    let mut s = Station::new(&Options { timeout: 12, rnr_retry: 1, ..Options::rc() });
    s.early = Some(Default::default());
    s.post(build::read(0, BASE, 1024, remote(0)));
    recv!(s, 0, request(0, 4));
    answers(&mut s, 1, [1, 3]);
    recv!(s, 1, request(0, 1));
    // Its memory is absent there, page by page.
    send!(s, 2, rnr_nak(sq(0), 1, 1));
    recv!(s, 100, request(0, 1));
    part(&mut s, 101, 0, 1);
    recv!(s, 101, request(2, 1));
    send!(s, 102, rnr_nak(sq(2), 1, 1));
    s.completed_nothing();
    recv!(s, 200, request(2, 1));
    part(&mut s, 201, 2, 1);
    all_is_right(&mut s, 1);
}

#[test]
fn a_smaller_window_does_not_hold_back_what_was_requested_before() {
    let mut s = Station::new(&Options { timeout: 14, ..Options::rc() });
    s.early = Some(Default::default());
    for number in 0..2 {
        s.post(build::read(number.into(), place(4 * number), 1024, remote(4 * number)));
        recv!(s, 0, request(4 * number, 4));
    }
    s.host.no_place = Some(LocalError::NotPresent);
    answers(&mut s, 10, [0]);
    let early = s.early.take();
    answers(&mut s, 11, [4]);
    s.early = early;
    s.qp.set_window(1);
    s.host.no_place = None;
    recv!(s, 1000, request(4, 4));
    recv!(s, 1000, request(0, 4));
}

#[test]
fn a_failed_request_does_not_hold_back_what_is_missing_before_it() {
    let mut s = Station::new(&Options { timeout: 14, rnr_retry: 0, ..Options::rc() });
    s.early = Some(Default::default());
    for number in 0..2 {
        s.post(build::read(number.into(), place(4 * number), 1024, remote(4 * number)));
        recv!(s, 0, request(4 * number, 4));
    }
    answers(&mut s, 10, [1, 3, 5, 6, 7]);
    recv!(s, 10, request(0, 1));
    recv!(s, 10, request(4, 1));
    send!(s, 11, rnr_nak(sq(4), 1, 1));
    part(&mut s, 20, 0, 1);
    recv!(s, 20, request(2, 1));
    part(&mut s, 21, 2, 1);
    s.sent(0, WcStatus::Success);
    s.sent(1, WcStatus::RnrRetryExcErr);
}

/// Everything is acknowledged or kept, and nobody gives what is kept.
#[test]
fn while_anything_is_not_done_the_timer_runs() {
    let mut s = reader(1);
    post_send(&mut s, 1, 0, 4);
    answers(&mut s, 10, [1, 2, 3]);
    recv!(s, 10, request(0, 1));
    let early = s.early.take();
    part(&mut s, 20, 0, 1);
    s.early = early;
    s.host.no_place = Some(LocalError::NotPresent);
    part(&mut s, 30, 0, 1);
    send!(s, 31, ack(sq(4), 2));
    s.early = None;
    s.host.no_place = None;
    s.at(1000);
    assert!(s.qp.poll_timeout().is_some());
}

/// A peer that says the same again and again, and never answers, is given up.
#[test]
fn naks_that_say_nothing_new_do_not_keep_a_connection() {
    let mut s = reader(1);
    (4..7).for_each(|number| _ = post_send(&mut s, number.into(), 0, number));
    answers(&mut s, 10, [1, 2, 3]);
    let mut sack = wire::Sack::default();
    sack.ranges[0] = wire::SackRange { ahead: 1, count: 1 };
    let mut keeps = packet(Opcode::Sack, sq(4));
    keeps.set_sack(sack);
    for round in 1..300 {
        s.at(500 * round);
        s.host.out.clear();
        send!(s, 500 * round, nak(sq(4), 1, Syndrome::Nak(NakCode::PsnSequence)));
        send!(s, 500 * round, keeps);
    }
    s.sent(0, WcStatus::RetryExcErr);
}
