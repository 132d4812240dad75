//! The error states: what fails, what is flushed, and in which order.

use crate::prelude::*;

#[test]
fn entering_err_flushes_both_queues_in_order() {
    let mut s = Station::new(&Options { sq_sig_all: false, ..Options::rc() });
    s.post(build::send(1, BASE, 0));
    s.post(build::read(2, BASE, 8, 0x9000));
    s.post_recv(build::recv(3, BASE, 300));
    s.post_recv(build::recv(4, BASE, 300));
    s.at(0);
    // One receive is half filled.
    send!(s, 1, packet(Opcode::RcSendFirst, rq(0)), &[0; 256]);
    s.to_state(QpState::Err);
    for wr_id in [1, 2] {
        let done = s.sent(wr_id, WcStatus::WrFlushErr);
        assert_eq!(done.vendor_err, Reason::Flushed as u32);
    }
    s.received(3, WcStatus::WrFlushErr);
    s.received(4, WcStatus::WrFlushErr);
    s.completed_nothing();
    assert_eq!(s.qp.poll_timeout(), None);
    s.host.out.clear();
    recv_nothing!(s, 1000);
}

#[test]
fn requests_posted_in_err_are_accepted_and_flushed() {
    let mut s = Station::new(&Options::rc());
    s.to_state(QpState::Err);
    s.post(build::send(1, BASE, 0));
    s.post_recv(build::recv(2, BASE, 300));
    s.poll();
    s.sent(1, WcStatus::WrFlushErr);
    s.received(2, WcStatus::WrFlushErr);
}

#[test]
fn answers_that_wait_are_dropped() {
    let mut s = Station::new(&Options::rc());
    s.host.room = Some(0);
    send!(s, 0, packet(Opcode::RcReadRequest, rq(0)).with_reth(BASE, 8));
    s.to_state(QpState::Err);
    s.host.room = None;
    recv_nothing!(s, 1);
}

#[test]
fn packets_are_dropped_in_err() {
    let mut s = Station::new(&Options::rc());
    s.to_state(QpState::Err);
    send!(s, 0, packet(Opcode::RcSendOnly, rq(0)).ackreq());
    send!(s, 0, ack(sq(0), 1));
    recv_nothing!(s, 0);
}

#[test]
fn a_wrong_local_key_fails_after_earlier_requests_are_done() {
    let mut s = Station::new(&Options::rc());
    s.post(build::send(1, BASE, 0));
    let mut bad = build::sge(BASE, 8);
    bad.lkey = iba::LKey(0xbad);
    s.post(SendWr { data: Data::Sges([bad].into_iter().collect()), ..build::send(2, 0, 0) });
    s.post(build::send(3, BASE, 0));
    recv!(s, 0, packet(Opcode::RcSendOnly, sq(0)).ackreq());
    recv_nothing!(s, 0);
    s.completed_nothing();
    send!(s, 1, ack(sq(0), 1));
    s.sent(1, WcStatus::Success);
    assert_eq!(s.sent(2, WcStatus::LocProtErr).vendor_err, Reason::LocalProtection as u32);
    s.sent(3, WcStatus::WrFlushErr);
    assert_eq!(s.qp.state(), QpState::Err);
}

#[test]
fn a_long_list_with_a_wrong_key_sends_nothing() {
    let mut s = Station::new(&Options::rc());
    let mut bad = build::sge(BASE, 8);
    bad.lkey = iba::LKey(0xbad);
    let sges = [build::sge(BASE, 512), bad];
    s.post(SendWr { data: Data::Sges(sges.into_iter().collect()), ..build::send(2, 0, 0) });
    recv_nothing!(s, 0);
    s.sent(2, WcStatus::LocProtErr);
}

#[test]
fn memory_that_went_away_is_an_operation_error() {
    let mut s = Station::new(&Options::rc());
    s.host.memory.borrow_mut().region_mut(KEY).unwrap().present = false;
    s.post(build::send(2, BASE, 8));
    s.at(0);
    assert_eq!(s.sent(2, WcStatus::LocQpOpErr).vendor_err, Reason::LocalFault as u32);
}

#[test]
fn uc_goes_to_sqe_keeps_receiving_and_can_recover() {
    let mut s = Station::new(&Options::uc());
    s.host.memory.borrow_mut().register(0x55, 0, 16, Access::empty());
    let mut bad = build::sge(BASE, 8);
    bad.lkey = iba::LKey(0xbad);
    s.post(SendWr { data: Data::Sges([bad].into_iter().collect()), ..build::send(1, 0, 0) });
    s.post(build::send(2, BASE, 0));
    recv_nothing!(s, 0);
    s.sent(1, WcStatus::LocProtErr);
    s.sent(2, WcStatus::WrFlushErr);
    assert_eq!(s.qp.state(), QpState::Sqe);

    s.post_recv(build::recv(3, BASE, 8));
    send!(s, 1, packet(Opcode::UcSendOnly, rq(0)), b"x");
    s.received(3, WcStatus::Success);
    s.post(build::send(4, BASE, 0));
    s.poll();
    s.sent(4, WcStatus::WrFlushErr);

    s.to_state(QpState::Rts);
    s.post(build::send(5, BASE, 0));
    recv!(s, 2, packet(Opcode::UcSendOnly, sq(0)));
    s.sent(5, WcStatus::Success);
}

#[test]
fn reset_silently_forgets_everything() {
    let mut s = Station::new(&Options::rc());
    s.post(build::send(1, BASE, 0));
    s.post_recv(build::recv(2, BASE, 8));
    s.at(0);
    s.to_state(QpState::Reset);
    s.completed_nothing();
    assert_eq!((s.qp.sends(), s.qp.receives()), (0, 0));
    assert_eq!(s.qp.poll_timeout(), None);
    assert_eq!(s.qp.query(), iba::QpAttr::default());
}
