//! Unreliable connections: nothing is acknowledged, and an incomplete message is discarded (IBA
//! 9.8.2).

use crate::prelude::*;

#[test]
fn a_send_is_done_when_it_is_sent() {
    let mut s = Station::new(&Options::uc());
    s.post(build::send(9, BASE, 300));
    recv!(s, 0, packet(Opcode::UcSendFirst, sq(0)), &[0; 256]);
    recv!(s, 0, packet(Opcode::UcSendLast, sq(1)), &[0; 44]);
    s.sent(9, WcStatus::Success);
    assert_eq!(s.qp.poll_timeout(), None);
}

#[test]
fn nothing_is_acknowledged() {
    let mut s = Station::new(&Options::uc());
    s.post_recv(build::recv(7, BASE, 8));
    send!(s, 0, packet(Opcode::UcSendOnly, rq(0)).ackreq(), b"x");
    s.received(7, WcStatus::Success);
    send!(s, 0, packet(Opcode::UcWriteOnly, rq(1)).with_reth(BASE, 1).ackreq(), b"y");
    recv_nothing!(s, 0);
    assert_eq!(s.peek(BASE, 1), b"y");
}

#[test]
fn a_message_with_a_gap_is_dropped_and_its_receive_used_for_the_next() {
    let mut s = Station::new(&Options::uc());
    s.post_recv(build::recv(7, BASE, 1000));
    send!(s, 0, packet(Opcode::UcSendFirst, rq(0)), &[1; 256]);
    send!(s, 0, packet(Opcode::UcSendMiddle, rq(2)), &[1; 256]);
    send!(s, 0, packet(Opcode::UcSendLast, rq(3)), &[1; 256]);
    s.completed_nothing();
    send!(s, 1, packet(Opcode::UcSendOnlyWithImm, rq(4)).imm(1), b"next");
    let done = s.received(7, WcStatus::Success);
    assert_eq!((done.byte_len, done.imm), (4, 1));
    assert_eq!(s.peek(BASE, 5), *b"next\x01");
}

#[test]
fn the_first_packet_of_a_message_is_accepted_with_any_number() {
    let mut s = Station::new(&Options::uc());
    s.post_recv(build::recv(7, BASE, 1000));
    send!(s, 0, packet(Opcode::UcSendOnly, rq(50)), b"x");
    s.received(7, WcStatus::Success);
    assert_eq!(s.qp.query().rq_psn, rq(51));
}

#[test]
fn a_message_that_begins_before_the_last_one_ended_replaces_it() {
    let mut s = Station::new(&Options::uc());
    s.post_recv(build::recv(7, BASE, 1000));
    send!(s, 0, packet(Opcode::UcSendFirst, rq(0)), &[1; 256]);
    send!(s, 0, packet(Opcode::UcSendOnly, rq(1)), b"x");
    assert_eq!(s.received(7, WcStatus::Success).byte_len, 1);
}

#[test]
fn without_a_receive_a_message_is_lost() {
    let mut s = Station::new(&Options::uc());
    send!(s, 0, packet(Opcode::UcSendFirst, rq(0)), &[1; 256]);
    s.post_recv(build::recv(7, BASE, 1000));
    send!(s, 1, packet(Opcode::UcSendLast, rq(1)), b"x");
    s.completed_nothing();
    send!(s, 2, packet(Opcode::UcSendOnly, rq(2)), b"x");
    s.received(7, WcStatus::Success);
    assert_eq!(s.host.counted(Counter::OutOfBuffer), 1);
}

#[test]
fn invalid_packets_are_silently_dropped() {
    let mut s = Station::new(&Options { access: Access::empty(), ..Options::uc() });
    send!(s, 0, packet(Opcode::UcWriteOnly, rq(0)).with_reth(BASE, 1), b"x");
    assert_eq!(s.qp.last_refusal(), Some(Step::ErrUnsupportedOpcode));

    let mut s = Station::new(&Options::uc());
    send!(s, 0, packet(Opcode::UcWriteOnly, rq(0)).with_reth(0, 1), b"x");
    assert_eq!(s.qp.last_refusal(), Some(Step::ErrRkeyViolation));
    s.post_recv(build::recv(7, BASE, 3));
    send!(s, 1, packet(Opcode::UcSendOnly, rq(1)), b"long");
    assert_eq!(s.qp.last_refusal(), Some(Step::ErrReceiveTooShort));
    recv_nothing!(s, 1);
    assert_eq!((s.qp.state(), s.events()), (QpState::Rts, vec![]));
    send!(s, 2, packet(Opcode::UcSendOnly, rq(2)), b"ok");
    s.received(7, WcStatus::Success);
}

#[test]
fn uc_neither_reads_nor_invalidates() {
    let mut s = Station::new(&Options::uc());
    for opcode in [WrOpcode::RdmaRead, WrOpcode::AtomicFetchAndAdd, WrOpcode::SendWithInv] {
        let refused = s.qp.post_send(build::wr(1, opcode, BASE, 8));
        assert_eq!(refused, Err(PostError::Opcode { qp_type: iba::QpType::Uc, opcode }));
    }
}
