//! SEND over RC: segmentation, acknowledgement, completion, both sides.

use crate::prelude::*;

#[test]
fn a_short_send_is_one_packet_and_completes_when_acknowledged() {
    let mut s = Station::new(&Options::rc());
    s.poke(BASE, b"hello");
    s.post(build::send(9, BASE, 5));
    recv!(s, 0, packet(Opcode::RcSendOnly, sq(0)).ackreq(), b"hello");
    s.completed_nothing();
    send!(s, 2, ack(sq(0), 1));
    let done = s.sent(9, WcStatus::Success);
    assert_eq!((done.opcode, done.byte_len), (WcOpcode::Send, 5));
    recv_nothing!(s, 1000);
}

#[test]
fn a_long_send_is_first_middle_last() {
    let mut s = Station::new(&Options::rc());
    let data = bytes(600);
    s.poke(BASE, &data);
    let wr = build::send(9, BASE, 600);
    s.post(SendWr { flags: SendFlags::SOLICITED, ..wr });
    recv!(s, 0, packet(Opcode::RcSendFirst, sq(0)), &data[..256]);
    recv!(s, 0, packet(Opcode::RcSendMiddle, sq(1)), &data[256..512]);
    recv!(s, 0, packet(Opcode::RcSendLast, sq(2)).ackreq().solicited(), &data[512..]);
    send!(s, 2, ack(sq(1), 0));
    s.completed_nothing();
    send!(s, 3, ack(sq(2), 1));
    s.sent(9, WcStatus::Success);
}

#[test]
fn a_message_of_whole_mtus_has_no_empty_last_packet() {
    let mut s = Station::new(&Options::rc());
    s.post(build::send(9, BASE, 512));
    recv!(s, 0, packet(Opcode::RcSendFirst, sq(0)), &[0; 256]);
    recv!(s, 0, packet(Opcode::RcSendLast, sq(1)).ackreq(), &[0; 256]);
    recv_nothing!(s, 0);
}

#[test]
fn an_empty_message_is_one_packet() {
    let mut s = Station::new(&Options::rc());
    s.post(SendWr { data: Data::Sges([].into_iter().collect()), ..build::send(9, 0, 0) });
    recv!(s, 0, packet(Opcode::RcSendOnly, sq(0)).ackreq());
}

#[test]
fn a_gather_list_is_one_message() {
    let mut s = Station::new(&Options::rc());
    let data = bytes(300);
    s.poke(BASE, &data);
    let sges = [build::sge(BASE + 200, 100), build::sge(BASE, 0), build::sge(BASE, 200)];
    s.post(SendWr { data: Data::Sges(sges.into_iter().collect()), ..build::send(9, 0, 0) });
    let whole = [&data[200..], &data[..200]].concat();
    recv!(s, 0, packet(Opcode::RcSendFirst, sq(0)), &whole[..256]);
    recv!(s, 0, packet(Opcode::RcSendLast, sq(1)).ackreq(), &whole[256..]);
}

#[test]
fn inline_data_is_taken_when_posted() {
    let mut s = Station::new(&Options::rc());
    let data = Data::Inline(b"inline"[..].into());
    s.post(SendWr { data, ..build::send(9, 0, 0) });
    recv!(s, 0, packet(Opcode::RcSendOnly, sq(0)).ackreq(), b"inline");
}

#[test]
fn one_ack_retires_everything_before_it() {
    let mut s = Station::new(&Options { sq_sig_all: false, ..Options::rc() });
    for wr_id in 0..4 {
        let flags = if wr_id == 1 { SendFlags::empty() } else { SendFlags::SIGNALED };
        s.post(SendWr { flags, ..build::send(wr_id, BASE, 1) });
        recv!(s, 0, packet(Opcode::RcSendOnly, sq(wr_id as u32)).ackreq(), &[0]);
    }
    send!(s, 2, ack(sq(2), 3));
    s.sent(0, WcStatus::Success);
    // The unsignaled one does not complete visibly.
    s.sent(2, WcStatus::Success);
    s.completed_nothing();
    assert_eq!(s.qp.sends(), 1);
}

#[test]
fn the_window_closes_and_every_part_of_it_asks_for_an_ack() {
    let mut s = Station::new(&Options::rc());
    s.qp.set_window(8);
    s.post(build::send(9, BASE, 20 * 256));
    recv!(s, 0, packet(Opcode::RcSendFirst, sq(0)), &[0; 256]);
    for psn in 1..8 {
        let middle = packet(Opcode::RcSendMiddle, sq(psn));
        let middle = if psn % 2 == 1 { middle.ackreq() } else { middle };
        recv!(s, 0, middle, &[0; 256]);
    }
    recv_nothing!(s, 0);
    send!(s, 2, ack(sq(1), 0));
    recv!(s, 2, packet(Opcode::RcSendMiddle, sq(8)), &[0; 256]);
    recv!(s, 2, packet(Opcode::RcSendMiddle, sq(9)).ackreq(), &[0; 256]);
    recv_nothing!(s, 2);
}

#[test]
fn sequence_numbers_wrap() {
    let mut s = Station::new(&Options { sq_psn: Psn::new(0xff_ffff), ..Options::rc() });
    s.post(build::send(9, BASE, 512));
    recv!(s, 0, packet(Opcode::RcSendFirst, Psn::new(0xff_ffff)), &[0; 256]);
    recv!(s, 0, packet(Opcode::RcSendLast, Psn::new(0)).ackreq(), &[0; 256]);
    send!(s, 2, ack(Psn::new(0), 1));
    s.sent(9, WcStatus::Success);
    assert_eq!(s.qp.query().sq_psn, Psn::new(1));
}

#[test]
fn a_full_carrier_moves_nothing() {
    let mut s = Station::new(&Options::rc());
    s.host.room = Some(1);
    s.post(build::send(9, BASE, 512));
    recv!(s, 0, packet(Opcode::RcSendFirst, sq(0)), &[0; 256]);
    recv!(s, 0, packet(Opcode::RcSendLast, sq(1)).ackreq(), &[0; 256]);
    recv_nothing!(s, 0);
}

#[test]
fn a_received_send_fills_its_receive_and_is_acknowledged() {
    let mut s = Station::new(&Options::rc());
    s.post_recv(build::recv(7, BASE, 1000));
    let data = bytes(600);
    send!(s, 0, packet(Opcode::RcSendFirst, rq(0)), &data[..256]);
    send!(s, 1, packet(Opcode::RcSendMiddle, rq(1)), &data[256..512]);
    recv_nothing!(s, 1);
    s.completed_nothing();
    send!(s, 2, packet(Opcode::RcSendLast, rq(2)).ackreq().solicited(), &data[512..]);
    let done = s.received(7, WcStatus::Success);
    assert_eq!((done.opcode, done.byte_len, done.solicited), (WcOpcode::Recv, 600, true));
    assert_eq!(done.src_qpn, PEER);
    assert_eq!(s.peek(BASE, 600), data);
    recv!(s, 2, ack(rq(2), 1));
    assert_eq!(s.qp.query().rq_psn, rq(3));
}

#[test]
fn immediate_data_comes_with_the_completion() {
    let mut s = Station::new(&Options::rc());
    s.post_recv(build::recv(7, BASE, 10));
    send!(s, 0, packet(Opcode::RcSendOnlyWithImm, rq(0)).imm(0xdead_beef), b"x");
    let done = s.received(7, WcStatus::Success);
    assert_eq!((done.flags, done.imm), (WcFlags::WITH_IMM, 0xdead_beef));
    // Not requested, so not acknowledged.
    recv_nothing!(s, 0);

    s.post(SendWr { imm: 5, ..build::wr(9, WrOpcode::SendWithImm, BASE, 1) });
    recv!(s, 0, packet(Opcode::RcSendOnlyWithImm, sq(0)).ackreq().imm(5), b"x");
}

#[test]
fn send_with_invalidate_invalidates_a_key() {
    let mut s = Station::new(&Options::rc());
    s.host.memory.borrow_mut().register(0x55, 0, 16, Access::REMOTE_WRITE);
    s.post_recv(build::recv(7, BASE, 10));
    send!(s, 0, packet(Opcode::RcSendOnlyWithInv, rq(0)).inv(0x55).ackreq(), b"x");
    let done = s.received(7, WcStatus::Success);
    assert_eq!((done.flags, done.imm), (WcFlags::WITH_INV, 0x55));
    assert_eq!(s.host.invalidated, [RKey(0x55)]);
    recv!(s, 0, ack(rq(0), 1));

    s.post(SendWr { imm: 0x77, ..build::wr(9, WrOpcode::SendWithInv, BASE, 1) });
    recv!(s, 0, packet(Opcode::RcSendOnlyWithInv, sq(0)).ackreq().inv(0x77), b"x");
}

#[test]
fn acks_are_coalesced_until_there_is_room_for_one() {
    let mut s = Station::new(&Options::rc());
    s.host.room = Some(0);
    for wr_id in 0..3 {
        s.post_recv(build::recv(wr_id, BASE, 10));
        send!(s, 0, packet(Opcode::RcSendOnly, rq(wr_id as u32)).ackreq());
    }
    s.host.room = None;
    recv!(s, 1, ack(rq(2), 3));
    recv_nothing!(s, 1);
}
