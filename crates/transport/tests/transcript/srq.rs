//! Shared receive queues.

use transport::tm::{Met, RNDV_BYTES, Rendezvous, TmInfo};

use crate::prelude::*;

fn options() -> Options {
    Options { has_srq: true, ..Options::rc() }
}

#[test]
fn receives_come_from_the_shared_queue() {
    let mut s = Station::new(&options());
    assert_eq!(s.qp.post_recv(build::recv(1, BASE, 8)), Err(PostError::HasSrq));
    send!(s, 0, packet(Opcode::RcSendOnly, rq(0)).ackreq(), b"x");
    recv!(s, 0, rnr_nak(rq(0), 0, 1));
    s.host.srq.push_back(build::recv(7, BASE, 8));
    send!(s, 20, packet(Opcode::RcSendOnly, rq(0)).ackreq(), b"x");
    s.received(7, WcStatus::Success);
    recv!(s, 20, ack(rq(0), 1));
}

#[test]
fn only_the_receive_in_use_is_flushed_and_an_event_reports_that_it_was_the_last() {
    let mut s = Station::new(&options());
    s.host.srq.push_back(build::recv(7, BASE, 300));
    s.host.srq.push_back(build::recv(8, BASE, 300));
    send!(s, 0, packet(Opcode::RcSendFirst, rq(0)), &[0; 256]);
    s.to_state(QpState::Err);
    s.received(7, WcStatus::WrFlushErr);
    s.completed_nothing();
    assert_eq!(s.host.srq.len(), 1);
    assert_eq!(s.events(), [QpEvent::LastWqeReached]);
}

#[test]
fn on_uc_a_lost_message_uses_its_receive_up() {
    let mut s = Station::new(&Options { has_srq: true, ..Options::uc() });
    s.host.srq.push_back(build::recv(7, BASE, 300));
    s.host.srq.push_back(build::recv(8, BASE, 300));
    send!(s, 0, packet(Opcode::UcSendFirst, rq(0)), &[0; 256]);
    send!(s, 0, packet(Opcode::UcSendOnly, rq(3)), b"x");
    s.received(7, WcStatus::RemInvReqErr);
    s.received(8, WcStatus::Success);
    assert_eq!(s.qp.state(), QpState::Rts);
}

#[test]
fn on_ud_a_message_that_is_too_long_uses_its_receive_up() {
    let mut s = Station::new(&Options { has_srq: true, ..Options::ud() });
    s.host.srq.push_back(build::recv(7, BASE, 44));
    send!(s, 0, packet(Opcode::UdSendOnly, rq(0)).with_deth(QKEY, PEER), b"12345");
    s.received(7, WcStatus::LocLenErr);
    assert_eq!(s.qp.state(), QpState::Rts);
}

#[test]
fn a_rendezvous_without_room_fails_its_receive_reports_why_and_leaves_the_headers_to_the_program() {
    let mut s = Station::new(&options());
    let (info, header) = (TmInfo { tag: 5, private: 6 }, [0x77; RNDV_BYTES]);
    let rendezvous = Rendezvous { header, addr: BASE, rkey: RKey(1), length: 41 };
    s.host.met = Met::Rendezvous(info, rendezvous);
    s.host.srq.push_back(build::recv(7, BASE, 40));
    send!(s, 0, packet(Opcode::RcSendOnly, rq(0)).ackreq(), &header);
    recv!(s, 0, ack(rq(0), 1));
    let done = s.received(7, WcStatus::TmRndvIncomplete);
    assert_eq!(Reason::from_vendor_err(done.vendor_err), Some(Reason::RendezvousTooLong));
    assert!(done.solicited, "an error wakes a program that waits for solicited completions");
    assert_eq!(s.peek(BASE, RNDV_BYTES), header);
    let told: Vec<_> = s.host.accounts.iter().map(|told| (told.wr_id, told.reason)).collect();
    assert_eq!(told, [(7, Reason::RendezvousTooLong)]);
    assert_eq!(s.qp.state(), QpState::Rts);
}
