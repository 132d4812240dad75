//! Refusals other than "receiver not ready", both sides.

use crate::prelude::*;

#[test]
fn a_gap_is_reported_once() {
    let mut s = Station::new(&Options::rc());
    for wr_id in 0..3 {
        s.post_recv(build::recv(wr_id, BASE, 10));
    }
    send!(s, 0, packet(Opcode::RcSendOnly, rq(1)).ackreq(), b"b");
    recv!(s, 0, nak(rq(0), 0, Syndrome::Nak(NakCode::PsnSequence)));
    send!(s, 1, packet(Opcode::RcSendOnly, rq(2)).ackreq(), b"c");
    recv_nothing!(s, 1);
    assert_eq!(s.host.counted(Counter::OutOfSequence), 1);
    s.completed_nothing();
    // Once it is filled, the next gap is another one.
    send!(s, 2, packet(Opcode::RcSendOnly, rq(0)).ackreq(), b"a");
    recv!(s, 2, ack(rq(0), 1));
    send!(s, 3, packet(Opcode::RcSendOnly, rq(2)).ackreq(), b"c");
    recv!(s, 3, nak(rq(1), 1, Syndrome::Nak(NakCode::PsnSequence)));
}

#[test]
fn the_requester_goes_back_to_the_gap() {
    let mut s = Station::new(&Options::rc());
    for wr_id in 0..3 {
        s.post(build::send(wr_id, BASE, 0));
    }
    s.at(0);
    s.host.out.clear();
    send!(s, 2, nak(sq(1), 1, Syndrome::Nak(NakCode::PsnSequence)));
    s.sent(0, WcStatus::Success);
    recv!(s, 2, packet(Opcode::RcSendOnly, sq(1)).ackreq());
    recv!(s, 2, packet(Opcode::RcSendOnly, sq(2)).ackreq());
    recv_nothing!(s, 2);
    assert_eq!(s.host.counted(Counter::PacketSeqErr), 1);
}

#[test]
fn sequence_naks_use_up_retries() {
    let mut s = Station::new(&Options { retry_cnt: 2, ..Options::rc() });
    s.post(build::send(9, BASE, 0));
    for micros in 0..3 {
        s.completed_nothing();
        s.at(micros);
        send!(s, micros, nak(sq(0), 0, Syndrome::Nak(NakCode::PsnSequence)));
    }
    assert_eq!(s.sent(9, WcStatus::RetryExcErr).vendor_err, Reason::SequenceNak as u32);
}

#[test]
fn each_code_has_its_status() {
    for (code, status, reason) in [
        (NakCode::InvalidRequest, WcStatus::RemInvReqErr, Reason::InvalidRequestNak),
        (NakCode::RemoteAccess, WcStatus::RemAccessErr, Reason::RemoteAccessNak),
        (NakCode::RemoteOperational, WcStatus::RemOpErr, Reason::RemoteOperationalNak),
        (NakCode::Reserved(9), WcStatus::RemOpErr, Reason::RemoteOperationalNak),
    ] {
        let mut s = Station::new(&Options { sq_sig_all: false, ..Options::rc() });
        s.post(SendWr { flags: SendFlags::SIGNALED, ..build::send(8, BASE, 0) });
        s.post(build::send(9, BASE, 0));
        s.post(build::send(10, BASE, 0));
        s.at(0);
        send!(s, 1, nak(sq(1), 1, Syndrome::Nak(code)));
        s.sent(8, WcStatus::Success);
        // Errors complete even if no signal was requested (IBA 10.7.3.1).
        let failed = s.sent(9, status);
        assert_eq!((failed.vendor_err, failed.solicited), (reason as u32, true));
        s.sent(10, WcStatus::WrFlushErr);
        assert_eq!(s.qp.state(), QpState::Err);
    }
}

#[test]
fn a_refusal_after_a_lost_answer_waits_for_the_answer() {
    let mut s = Station::new(&Options::rc());
    s.post(build::read(9, BASE, 8, 0x9000));
    s.post(build::write(10, BASE, 8, 0x9000));
    s.at(0);
    s.host.out.clear();
    send!(s, 1, nak(sq(1), 1, Syndrome::Nak(NakCode::RemoteAccess)));
    s.completed_nothing();
    recv!(s, 1, packet(Opcode::RcReadRequest, sq(0)).with_reth(0x9000, 8).ackreq());
}

#[test]
fn a_reserved_syndrome_is_dropped() {
    let mut s = Station::new(&Options::rc());
    s.post(build::send(9, BASE, 0));
    s.at(0);
    send!(s, 1, nak(sq(0), 0, Syndrome::Reserved(0x85)));
    s.completed_nothing();
}

#[test]
fn a_message_longer_than_its_receive_is_refused() {
    let mut s = Station::new(&Options::rc());
    s.post_recv(build::recv(7, BASE, 300));
    s.post_recv(build::recv(8, BASE, 300));
    send!(s, 0, packet(Opcode::RcSendFirst, rq(0)), &[1; 256]);
    send!(s, 0, packet(Opcode::RcSendLast, rq(1)).ackreq(), &[1; 45]);
    assert_eq!(s.received(7, WcStatus::LocLenErr).vendor_err, Reason::ReceiveTooShort as u32);
    s.received(8, WcStatus::WrFlushErr);
    assert_eq!(s.events(), [], "the completion reports it");
    recv!(s, 0, nak(rq(1), 0, Syndrome::Nak(NakCode::InvalidRequest)));
    assert_eq!(s.host.counted(Counter::RespLocalLengthError), 1);
}

#[test]
fn a_receive_that_cannot_be_written_is_the_responders_own_fault() {
    let mut s = Station::new(&Options::rc());
    s.host.memory.borrow_mut().region_mut(KEY).unwrap().access = Access::empty();
    s.post_recv(build::recv(7, BASE, 300));
    send!(s, 0, packet(Opcode::RcSendOnly, rq(0)).ackreq(), b"x");
    s.received(7, WcStatus::LocProtErr);
    recv!(s, 0, nak(rq(0), 0, Syndrome::Nak(NakCode::RemoteOperational)));

    let mut s = Station::new(&Options::rc());
    s.host.memory.borrow_mut().region_mut(KEY).unwrap().present = false;
    s.post_recv(build::recv(7, BASE, 300));
    send!(s, 0, packet(Opcode::RcSendOnly, rq(0)).ackreq(), b"x");
    s.received(7, WcStatus::LocAccessErr);
    recv!(s, 0, nak(rq(0), 0, Syndrome::Nak(NakCode::RemoteOperational)));
}

#[test]
fn a_key_that_cannot_be_invalidated_ends_the_responder_without_a_nak() {
    let mut s = Station::new(&Options::rc());
    s.post_recv(build::recv(7, BASE, 300));
    send!(s, 0, packet(Opcode::RcSendOnlyWithInv, rq(0)).inv(0xbad).ackreq(), b"x");
    s.received(7, WcStatus::RemInvReqErr);
    assert_eq!(s.qp.state(), QpState::Err);
    recv!(s, 0, ack(rq(0), 1));
}

/// A READ that is refused in the middle, after earlier responses were lost or could not be stored:
/// it ends at once, as the peer answers nothing more.
#[test]
fn a_read_refused_in_the_middle_is_not_requested_again() {
    let mut s = Station::new(&Options::rc());
    s.post(build::read(9, BASE, 600, 0x9000));
    recv!(s, 0, packet(Opcode::RcReadRequest, sq(0)).with_reth(0x9000, 600).ackreq());
    send!(s, 1, nak(sq(1), 0, Syndrome::Nak(NakCode::RemoteAccess)));
    s.sent(9, WcStatus::RemAccessErr);
    assert_eq!(s.qp.state(), QpState::Err);
}
