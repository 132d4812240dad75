//! RDMA READ over RC.

use crate::prelude::*;

fn response(position: char, psn: Psn, msn: u32) -> wire::Headers {
    match position {
        'f' => packet(Opcode::RcReadResponseFirst, psn).with_aeth(Syndrome::ACK, msn),
        'm' => packet(Opcode::RcReadResponseMiddle, psn),
        'l' => packet(Opcode::RcReadResponseLast, psn).with_aeth(Syndrome::ACK, msn),
        _ => packet(Opcode::RcReadResponseOnly, psn).with_aeth(Syndrome::ACK, msn),
    }
}

#[test]
fn a_read_uses_a_number_for_each_packet_of_its_answer() {
    let mut s = Station::new(&Options::rc());
    let data = bytes(600);
    s.post(build::read(9, BASE, 600, 0x9000));
    s.post(build::send(10, BASE, 0));
    recv!(s, 0, packet(Opcode::RcReadRequest, sq(0)).with_reth(0x9000, 600).ackreq());
    recv!(s, 0, packet(Opcode::RcSendOnly, sq(3)).ackreq());
    send!(s, 2, response('f', sq(0), 1), &data[..256]);
    send!(s, 2, response('m', sq(1), 1), &data[256..512]);
    s.completed_nothing();
    send!(s, 2, response('l', sq(2), 1), &data[512..]);
    let done = s.sent(9, WcStatus::Success);
    assert_eq!((done.opcode, done.byte_len), (WcOpcode::RdmaRead, 600));
    assert_eq!(s.peek(BASE, 600), data);
    send!(s, 3, ack(sq(3), 2));
    s.sent(10, WcStatus::Success);
}

#[test]
fn a_response_acknowledges_what_came_before_the_read() {
    let mut s = Station::new(&Options::rc());
    s.post(build::send(9, BASE, 1));
    s.post(build::read(10, BASE, 1, 0x9000));
    recv!(s, 0, packet(Opcode::RcSendOnly, sq(0)).ackreq(), &[0]);
    recv!(s, 0, packet(Opcode::RcReadRequest, sq(1)).with_reth(0x9000, 1).ackreq());
    send!(s, 2, response('o', sq(1), 2), b"x");
    s.sent(9, WcStatus::Success);
    s.sent(10, WcStatus::Success);
}

#[test]
fn an_ack_after_an_unanswered_read_shows_that_the_answer_was_lost() {
    let mut s = Station::new(&Options::rc());
    s.post(build::read(9, BASE, 600, 0x9000));
    s.post(build::send(10, BASE, 1));
    recv!(s, 0, packet(Opcode::RcReadRequest, sq(0)).with_reth(0x9000, 600).ackreq());
    recv!(s, 0, packet(Opcode::RcSendOnly, sq(3)).ackreq(), &[0]);
    send!(s, 2, response('f', sq(0), 1), &[1; 256]);
    send!(s, 2, ack(sq(3), 2));
    assert_eq!(s.host.counted(Counter::ImpliedNakSeqErr), 1);
    // Only the rest is requested again, under the number where the answer broke off.
    recv!(s, 2, packet(Opcode::RcReadRequest, sq(1)).with_reth(0x9100, 344).ackreq());
    recv_nothing!(s, 3);
    s.completed_nothing();
    // Its answer begins with First again.
    send!(s, 4, response('f', sq(1), 2), &[2; 256]);
    send!(s, 4, response('l', sq(2), 2), &[3; 88]);
    s.sent(9, WcStatus::Success);
    // The peer has acknowledged it already.
    s.sent(10, WcStatus::Success);
    assert_eq!(s.peek(BASE + 511, 2), [2, 3]);
}

#[test]
fn a_gap_within_the_answer_is_handled_once() {
    let mut s = Station::new(&Options::rc());
    s.post(build::read(9, BASE, 4 * 256, 0x9000));
    recv!(s, 0, packet(Opcode::RcReadRequest, sq(0)).with_reth(0x9000, 1024).ackreq());
    send!(s, 2, response('f', sq(0), 1), &[1; 256]);
    send!(s, 2, response('m', sq(2), 1), &[1; 256]);
    send!(s, 2, response('l', sq(3), 1), &[1; 256]);
    // Nobody keeps what comes early.
    recv!(s, 2, packet(Opcode::RcReadRequest, sq(1)).with_reth(0x9100, 512).ackreq());
    recv_nothing!(s, 2);
    assert_eq!(s.host.counted(Counter::ImpliedNakSeqErr), 1);
    send!(s, 4, response('f', sq(1), 1), &[1; 256]);
    send!(s, 4, response('l', sq(2), 1), &[1; 256]);
    recv!(s, 4, packet(Opcode::RcReadRequest, sq(3)).with_reth(0x9300, 256).ackreq());
    send!(s, 6, response('o', sq(3), 1), &[1; 256]);
    s.sent(9, WcStatus::Success);
    assert_eq!(s.host.counted(Counter::ImpliedNakSeqErr), 1);
}

/// A slow peer sends everything that was requested first, before it gets to the repeated request.
#[test]
fn a_read_is_not_requested_a_third_time_while_the_peer_still_answers() {
    let mut s = Station::new(&Options { retry_cnt: 1, ..Options::rc() });
    s.post(build::read(9, BASE, 4 * 256, 0x9000));
    recv!(s, 0, packet(Opcode::RcReadRequest, sq(0)).with_reth(0x9000, 1024).ackreq());
    send!(s, 2, response('f', sq(0), 1), &[1; 256]);
    send!(s, 4, response('m', sq(2), 1), &[1; 256]);
    recv!(s, 4, packet(Opcode::RcReadRequest, sq(1)).with_reth(0x9100, 512).ackreq());
    // The rest of the first answer, and an even older one: each less than a timeout of 8.2 us after
    // the previous one.
    send!(s, 11, response('l', sq(3), 1), &[1; 256]);
    send!(s, 18, response('f', sq(0), 1), &[1; 256]);
    send!(s, 25, response('m', sq(0), 1), &[1; 256]);
    assert_eq!(s.host.counted(Counter::LocalAckTimeoutErr), 0);
    send!(s, 32, response('f', sq(1), 1), &[1; 256]);
    send!(s, 32, response('l', sq(2), 1), &[1; 256]);
    recv!(s, 32, packet(Opcode::RcReadRequest, sq(3)).with_reth(0x9300, 256).ackreq());
    // Silence is different: the READ is requested once more, and then given up.
    recv!(s, 41, packet(Opcode::RcReadRequest, sq(3)).with_reth(0x9300, 256).ackreq());
    s.at(100);
    s.sent(9, WcStatus::RetryExcErr);
}

#[test]
fn an_answer_of_the_wrong_length_fails_the_read() {
    for (headers, length) in [
        (response('o', sq(0), 1), 99),
        (response('f', sq(0), 1), 256),
        (response('m', sq(0), 1), 100),
        (packet(Opcode::RcAtomicAck, sq(0)).with_aeth(Syndrome::ACK, 1).orig(0), 0),
    ] {
        let mut s = Station::new(&Options::rc());
        s.post(build::read(9, BASE, 100, 0x9000));
        s.at(0);
        send!(s, 1, headers, &vec![0; length]);
        assert_eq!(s.sent(9, WcStatus::BadRespErr).vendor_err, Reason::BadResponse as u32);
        assert_eq!(s.qp.state(), QpState::Err);
    }
}

#[test]
fn an_answer_that_cannot_be_stored_fails_the_read() {
    let mut s = Station::new(&Options::rc());
    s.post(build::read(9, BASE, 100, 0x9000));
    s.at(0);
    s.host.memory.borrow_mut().invalidate(KEY).unwrap();
    send!(s, 1, response('o', sq(0), 1), &[0; 100]);
    s.sent(9, WcStatus::LocProtErr);
}

#[test]
fn an_answer_whose_memory_was_absent_is_requested_again_when_it_is_back() {
    let mut s = Station::new(&Options::rc());
    s.post(build::read(9, BASE, 512, 0x9000));
    s.post(build::fetch_add(10, BASE, 0x9000, 5));
    recv!(s, 0, packet(Opcode::RcReadRequest, sq(0)).with_reth(0x9000, 512).ackreq());
    recv!(s, 0, packet(Opcode::RcFetchAdd, sq(2)).atomic(0x9000, 5, 0).ackreq());
    send!(s, 1, response('f', sq(0), 1), &[1; 256]);
    s.host.no_place = Some(LocalError::NotPresent);
    send!(s, 2, response('l', sq(1), 1), &[2; 256]);
    assert_eq!(s.host.counted(Counter::PageFaultsPending), 1);
    // For however long: the peer is not at fault.
    recv_nothing!(s, 1_000_000);
    assert_eq!(s.host.counted(Counter::LocalAckTimeoutErr), 0);
    s.host.no_place = None;
    recv!(s, 1_000_200, packet(Opcode::RcReadRequest, sq(1)).with_reth(0x9100, 256).ackreq());
    recv!(s, 1_000_200, packet(Opcode::RcFetchAdd, sq(2)).atomic(0x9000, 5, 0).ackreq());
    send!(s, 1_000_201, response('o', sq(1), 1), &[2; 256]);
    s.sent(9, WcStatus::Success);
    assert_eq!(s.peek(BASE, 512)[255..257], [1, 2]);
}

#[test]
fn an_answer_whose_memory_will_not_be_back_fails_the_request_without_the_peer() {
    let mut s = Station::new(&Options::rc());
    s.post(build::fetch_add(9, BASE, 0x9000, 5));
    s.at(0);
    s.host.no_place = Some(LocalError::NotPresent);
    let answer = packet(Opcode::RcAtomicAck, sq(0)).with_aeth(Syndrome::ACK, 1).orig(0);
    send!(s, 1, answer);
    s.host.out.clear();
    s.host.no_place = Some(LocalError::Fault);
    recv_nothing!(s, 200);
    assert_eq!(s.sent(9, WcStatus::LocQpOpErr).vendor_err, Reason::LocalFault as u32);
    assert_eq!(s.qp.state(), QpState::Err);
}

#[test]
fn an_answer_whose_memory_is_back_by_itself_is_not_waited_for() {
    let mut s = Station::new(&Options::rc());
    s.post(build::read(9, BASE, 8, 0x9000));
    s.post(build::read(10, BASE, 8, 0x9000));
    s.at(0);
    s.host.no_place = Some(LocalError::NotPresent);
    send!(s, 1, response('o', sq(0), 1), &[1; 8]);
    s.host.no_place = None;
    // The network delivered it twice.
    send!(s, 2, response('o', sq(0), 1), &[1; 8]);
    s.sent(9, WcStatus::Success);
    s.host.out.clear();
    s.host.no_place = Some(LocalError::Fault);
    recv!(s, 3, packet(Opcode::RcReadRequest, sq(1)).with_reth(0x9000, 8).ackreq());
}

#[test]
fn a_list_that_must_not_be_written_is_found_before_the_request() {
    let mut s = Station::new(&Options::rc());
    s.host.memory.borrow_mut().region_mut(KEY).unwrap().access = Access::REMOTE_READ;
    s.post(build::read(9, BASE, 100, 0x9000));
    recv_nothing!(s, 0);
    s.sent(9, WcStatus::LocProtErr);
}

#[test]
fn no_more_reads_are_outstanding_than_the_depth_allows() {
    let mut s = Station::new(&Options { rd_atomic: 2, ..Options::rc() });
    for wr_id in 0..3 {
        s.post(build::read(wr_id, BASE, 8, 0x9000));
    }
    recv!(s, 0, packet(Opcode::RcReadRequest, sq(0)).with_reth(0x9000, 8).ackreq());
    recv!(s, 0, packet(Opcode::RcReadRequest, sq(1)).with_reth(0x9000, 8).ackreq());
    recv_nothing!(s, 0);
    send!(s, 2, response('o', sq(0), 1), &[0; 8]);
    recv!(s, 2, packet(Opcode::RcReadRequest, sq(2)).with_reth(0x9000, 8).ackreq());
}

#[test]
fn without_depth_a_read_fails() {
    let mut s = Station::new(&Options { rd_atomic: 0, ..Options::rc() });
    s.post(build::read(9, BASE, 8, 0x9000));
    recv_nothing!(s, 0);
    assert_eq!(s.sent(9, WcStatus::LocQpOpErr).vendor_err, Reason::NoReadDepth as u32);
}

#[test]
fn an_empty_read_needs_no_key() {
    let mut s = Station::new(&Options::rc());
    let mut headers = packet(Opcode::RcReadRequest, rq(0)).with_reth(0, 0);
    headers.set_reth(wire::Reth { rkey: RKey(0xbad), ..headers.reth().unwrap() });
    send!(s, 0, headers);
    recv!(s, 0, response('o', rq(0), 1));

    s.post(build::read(9, BASE, 0, 0x9000));
    recv!(s, 0, packet(Opcode::RcReadRequest, sq(0)).with_reth(0x9000, 0).ackreq());
    send!(s, 1, response('o', sq(0), 1));
    s.sent(9, WcStatus::Success);
}

#[test]
fn a_read_is_answered_piece_by_piece_and_in_order() {
    let mut s = Station::new(&Options::rc());
    let data = bytes(600);
    s.poke(BASE, &data);
    s.post_recv(build::recv(7, BASE + 0x1000, 10));
    s.host.room = Some(1);
    send!(s, 0, packet(Opcode::RcReadRequest, rq(0)).with_reth(BASE, 600));
    send!(s, 0, packet(Opcode::RcSendOnly, rq(3)).ackreq());
    recv!(s, 0, response('f', rq(0), 1), &data[..256]);
    recv!(s, 0, response('m', rq(1), 2), &data[256..512]);
    recv!(s, 0, response('l', rq(2), 2), &data[512..]);
    recv!(s, 0, ack(rq(3), 2));
}

#[test]
fn requests_and_answers_take_turns() {
    let mut s = Station::new(&Options::rc());
    s.host.room = Some(0);
    send!(s, 0, packet(Opcode::RcReadRequest, rq(0)).with_reth(BASE, 512));
    s.post(build::send(9, BASE, 512));
    s.host.room = None;
    recv!(s, 1, response('f', rq(0), 1), &[0; 256]);
    recv!(s, 1, response('l', rq(1), 1), &[0; 256]);
    recv!(s, 1, packet(Opcode::RcSendFirst, sq(0)), &[0; 256]);
    recv!(s, 1, packet(Opcode::RcSendLast, sq(1)).ackreq(), &[0; 256]);
}

#[test]
fn more_reads_than_resources_are_an_invalid_request() {
    let mut s = Station::new(&Options { rd_atomic: 1, ..Options::rc() });
    s.host.room = Some(0);
    send!(s, 0, packet(Opcode::RcReadRequest, rq(0)).with_reth(BASE, 8));
    send!(s, 0, packet(Opcode::RcReadRequest, rq(1)).with_reth(BASE, 8));
    s.host.room = None;
    recv!(s, 1, response('o', rq(0), 1), &[0; 8]);
    recv!(s, 1, nak(rq(1), 1, Syndrome::Nak(NakCode::InvalidRequest)));
    assert_eq!(s.qp.last_refusal(), Some(Step::ErrTooManyRdmaAtmReq));
}

#[test]
fn memory_that_goes_away_during_a_read_is_a_nak_in_place_of_the_packet() {
    let mut s = Station::new(&Options::rc());
    s.host.room = Some(1);
    send!(s, 0, packet(Opcode::RcReadRequest, rq(0)).with_reth(BASE, 600));
    s.at(0);
    s.host.memory.borrow_mut().region_mut(KEY).unwrap().present = false;
    recv!(s, 0, response('f', rq(0), 1), &[0; 256]);
    recv!(s, 0, nak(rq(1), 1, Syndrome::Nak(NakCode::RemoteAccess)));
    assert_eq!(s.events(), [QpEvent::AccessErr]);
    assert_eq!(s.qp.state(), QpState::Err);
}

/// A station that gives up waiting for memory after 4 ms, with a READ of three packets, the first
/// of which is sent, an atomic after it, and no memory.
fn interrupted() -> Station {
    let mut s = Station::new(&Options { min_rnr_timer: 12, timeout: 14, ..Options::rc() });
    s.poke(BASE, &bytes(600));
    s.host.room = Some(1);
    send!(s, 0, packet(Opcode::RcReadRequest, rq(0)).with_reth(BASE, 600));
    send!(s, 0, packet(Opcode::RcFetchAdd, rq(3)).atomic(BASE + 0x1000, 1, 0));
    s.at(0);
    s.host.memory.borrow_mut().absent = 1;
    recv!(s, 0, response('f', rq(0), 1), &bytes(256));
    s
}

fn bring_back(s: &Station) {
    s.host.memory.borrow_mut().absent = 0;
}

fn atomic_answer(psn: Psn, msn: u32, value: u64) -> wire::Headers {
    packet(Opcode::RcAtomicAck, psn).with_aeth(Syndrome::ACK, msn).orig(value)
}

#[test]
fn memory_that_is_back_soon_only_delays_an_answer() {
    let mut s = interrupted();
    recv_nothing!(s, 3_999);
    assert_eq!(s.host.counted(Counter::PageFaultsPending), 1);
    bring_back(&s);
    recv!(s, 3_999, response('m', rq(1), 2), &bytes(600)[256..512]);
    recv!(s, 3_999, response('l', rq(2), 2), &bytes(600)[512..]);
    recv!(s, 3_999, atomic_answer(rq(3), 2, 0));
    assert_eq!(s.host.counted(Counter::SendRnrNak), 0);
}

#[test]
fn memory_that_stays_away_is_an_rnr_nak_in_the_place_of_the_packet() {
    let mut s = interrupted();
    recv_nothing!(s, 3_999);
    recv!(s, 4_000, rnr_nak(rq(1), 2, 12));
    bring_back(&s);
    // The peer accepts nothing of it before it asks again.
    recv_nothing!(s, 1_000_000);
    assert!(!s.qp.owes_answers());
    send!(s, 1_000_000, packet(Opcode::RcReadRequest, rq(1)).with_reth(BASE + 256, 344));
    recv!(s, 1_000_000, response('f', rq(1), 2), &bytes(600)[256..512]);
    send!(s, 1_000_001, packet(Opcode::RcFetchAdd, rq(3)).atomic(BASE + 0x1000, 1, 0));
    recv!(s, 1_000_001, response('l', rq(2), 2), &bytes(600)[512..]);
    recv!(s, 1_000_001, atomic_answer(rq(3), 2, 0));
    recv_nothing!(s, 1_000_001);
    assert_eq!(s.peek(BASE + 0x1000, 8), 1u64.to_ne_bytes(), "carried out once");
    assert_eq!(s.host.counted(Counter::SendRnrNak), 1);
    assert_eq!(s.host.counted(Counter::PageFaultsPending), 1);
}

/// The NAK was lost, and what had been sent before it.
#[test]
fn an_answer_that_was_put_off_goes_back_to_where_it_is_requested() {
    let mut s = interrupted();
    recv!(s, 4_000, rnr_nak(rq(1), 2, 12));
    send!(s, 5_000, packet(Opcode::RcReadRequest, rq(0)).with_reth(BASE, 600));
    // And is put off again, if necessary.
    recv_nothing!(s, 8_999);
    recv!(s, 9_000, rnr_nak(rq(0), 2, 12));
    send!(s, 10_000, packet(Opcode::RcReadRequest, rq(0)).with_reth(BASE, 600));
    bring_back(&s);
    recv!(s, 10_000, response('f', rq(0), 2), &bytes(256));
}

#[test]
fn requests_after_an_answer_that_is_put_off_are_carried_out_and_answered_in_order() {
    let mut s = interrupted();
    recv!(s, 4_000, rnr_nak(rq(1), 2, 12));
    bring_back(&s);
    s.host.room = None;
    s.post_recv(build::recv(7, BASE + 0x2000, 10));
    send!(s, 4_001, packet(Opcode::RcSendOnly, rq(4)).ackreq(), b"a");
    recv_nothing!(s, 4_001);
    s.received(7, WcStatus::Success);
    // The program's own requests continue in the meantime.
    s.post(build::send(9, BASE, 0));
    recv!(s, 4_002, packet(Opcode::RcSendOnly, sq(0)).ackreq());
    send!(s, 4_003, packet(Opcode::RcReadRequest, rq(1)).with_reth(BASE + 256, 344));
    recv!(s, 4_003, response('f', rq(1), 3), &bytes(600)[256..512]);
    recv!(s, 4_003, response('l', rq(2), 3), &bytes(600)[512..]);
    recv!(s, 4_003, atomic_answer(rq(3), 3, 0));
    recv!(s, 4_003, ack(rq(4), 3));
}

/// The peer would get no answer.
#[test]
fn a_qp_in_error_does_not_ask_its_peer_to_try_again() {
    for is_put_off in [false, true] {
        let mut s = interrupted();
        if is_put_off {
            recv!(s, 4_000, rnr_nak(rq(1), 2, 12));
        }
        // No request after the atomic could continue it.
        let at = if is_put_off { 4_000 } else { 3_000 };
        send!(s, at, packet(Opcode::RcSendLast, rq(4)).ackreq(), b"a");
        assert_eq!(s.qp.state(), QpState::Err);
        recv_nothing!(s, 1_000_000);
        bring_back(&s);
        let middle = if is_put_off { 'f' } else { 'm' };
        recv!(s, 1_000_000, response(middle, rq(1), 2), &bytes(600)[256..512]);
        recv!(s, 1_000_000, response('l', rq(2), 2), &bytes(600)[512..]);
        recv!(s, 1_000_000, atomic_answer(rq(3), 2, 0));
        recv!(s, 1_000_000, nak(rq(4), 2, Syndrome::Nak(NakCode::InvalidRequest)));
    }
}

#[test]
fn a_read_that_is_put_off_in_the_middle_is_requested_from_there() {
    let mut s = Station::new(&Options { rnr_retry: 1, ..Options::rc() });
    s.post(build::read(9, BASE, 600, 0x9000));
    s.post(build::fetch_add(10, BASE + 0x1000, 0x9000, 5));
    recv!(s, 0, packet(Opcode::RcReadRequest, sq(0)).with_reth(0x9000, 600).ackreq());
    recv!(s, 0, packet(Opcode::RcFetchAdd, sq(3)).atomic(0x9000, 5, 0).ackreq());
    send!(s, 1, response('f', sq(0), 2), &[1; 256]);
    send!(s, 1, rnr_nak(sq(1), 2, 12));
    // Code 12: 640 us.
    recv_nothing!(s, 640);
    recv!(s, 641, packet(Opcode::RcReadRequest, sq(1)).with_reth(0x9100, 344).ackreq());
    recv!(s, 641, packet(Opcode::RcFetchAdd, sq(3)).atomic(0x9000, 5, 0).ackreq());
    send!(s, 642, response('f', sq(1), 2), &[2; 256]);
    send!(s, 642, response('l', sq(2), 2), &[3; 88]);
    s.sent(9, WcStatus::Success);
    send!(s, 642, atomic_answer(sq(3), 2, 7));
    s.sent(10, WcStatus::Success);
    assert_eq!(s.peek(BASE + 0x1000, 8), 7u64.to_ne_bytes());
}

/// The peer has more of it than was sent this time. A NAK that names what it has would be no news.
#[test]
fn an_answer_that_was_put_off_goes_on_to_where_it_is_requested() {
    let mut s = interrupted();
    recv!(s, 4_000, rnr_nak(rq(1), 2, 12));
    send!(s, 5_000, packet(Opcode::RcReadRequest, rq(2)).with_reth(BASE + 512, 88));
    recv_nothing!(s, 8_999);
    recv!(s, 9_000, rnr_nak(rq(2), 2, 12));
    bring_back(&s);
    send!(s, 10_000, packet(Opcode::RcReadRequest, rq(2)).with_reth(BASE + 512, 88));
    recv!(s, 10_000, response('o', rq(2), 2), &bytes(600)[512..]);
    recv!(s, 10_000, atomic_answer(rq(3), 2, 0));
    recv_nothing!(s, 20_000);
}

/// The peer has the answer, takes no notice that a second one will be late, and goes on. What it
/// sends now is refused, and then carried out.
#[test]
fn an_answer_that_is_put_off_and_no_longer_needed_does_not_hold_up_what_is_new() {
    for has_receive in [false, true] {
        let mut s = Station::new(&Options { min_rnr_timer: 12, timeout: 14, ..Options::rc() });
        let read = || packet(Opcode::RcReadRequest, rq(0)).with_reth(BASE, 8);
        let send = || packet(Opcode::RcSendOnly, rq(1)).ackreq();
        send!(s, 0, read());
        recv!(s, 0, response('o', rq(0), 1), &[0; 8]);
        s.host.memory.borrow_mut().absent = 1;
        send!(s, 1, read());
        recv!(s, 4_001, rnr_nak(rq(0), 1, 12));
        bring_back(&s);
        if has_receive {
            s.post_recv(build::recv(7, BASE, 1));
        } else {
            send!(s, 5_000, send());
            recv!(s, 5_000, rnr_nak(rq(1), 1, 12));
            s.post_recv(build::recv(7, BASE, 1));
        }
        send!(s, 6_000, send());
        recv!(s, 6_000, ack(rq(1), 2));
        s.received(7, WcStatus::Success);
    }
}

/// A peer asks again for an answer that is on its way, and for what it asked for after it. Then it
/// has the answer, and takes no notice that the second one will be late.
#[test]
fn an_answer_that_is_put_off_and_no_longer_needed_does_not_hold_up_others() {
    let mut s = Station::new(&Options { min_rnr_timer: 12, timeout: 14, ..Options::rc() });
    let read = || packet(Opcode::RcReadRequest, rq(0)).with_reth(BASE, 8);
    let add = || packet(Opcode::RcFetchAdd, rq(1)).atomic(BASE + 0x1000, 1, 0);
    send!(s, 0, read());
    send!(s, 0, add());
    recv!(s, 0, response('o', rq(0), 1), &[0; 8]);
    recv!(s, 0, atomic_answer(rq(1), 2, 0));
    s.host.memory.borrow_mut().absent = 1;
    send!(s, 1, read());
    send!(s, 1, add());
    recv_nothing!(s, 4_000);
    recv!(s, 4_001, rnr_nak(rq(0), 2, 12));
    recv_nothing!(s, 5_000);
    send!(s, 5_001, add());
    recv!(s, 5_001, atomic_answer(rq(1), 2, 0));
    bring_back(&s);
    recv_nothing!(s, 6_000);
    assert!(!s.qp.owes_answers());
}

/// The part has another end than what is asked for next.
#[test]
fn a_part_that_is_put_off_does_not_hold_up_the_rest() {
    let mut s = Station::new(&Options { min_rnr_timer: 12, timeout: 14, ..Options::rc() });
    let part = |first: u32, packets: u32| {
        let va = BASE + 256 * u64::from(first);
        packet(Opcode::RcReadRequest, rq(first)).with_reth(va, 256 * packets)
    };
    send!(s, 0, part(0, 4));
    for (number, position) in ['f', 'm', 'm', 'l'].into_iter().enumerate() {
        recv!(s, 0, response(position, rq(number as u32), 1), &[0; 256]);
    }
    s.host.memory.borrow_mut().absent = 1;
    send!(s, 1, part(1, 1));
    // This is lost, and a timeout passes.
    recv!(s, 4_001, rnr_nak(rq(1), 1, 12));
    bring_back(&s);
    send!(s, 100_000, part(1, 3));
    for (number, position) in [(1, 'f'), (2, 'm'), (3, 'l')] {
        recv!(s, 100_000, response(position, rq(number), 1), &[0; 256]);
    }
    recv_nothing!(s, 200_000);
}
