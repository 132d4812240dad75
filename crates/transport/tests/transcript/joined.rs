//! Packets from the middle of a message, handled together.

use crate::prelude::*;

/// How many packets a QP would handle together, the one with these headers included.
fn joinable(s: &Station, mut headers: wire::Headers) -> u32 {
    headers.bth.dest_qp = QPN;
    s.qp.joinable(&headers)
}

#[test]
fn the_middle_of_a_write_may_be_handled_in_one_piece() {
    let mut s = Station::new(&Options::rc());
    let data = bytes(5 * 256 + 1);
    send!(s, 0, packet(Opcode::RcWriteFirst, rq(0)).with_reth(BASE, 5 * 256 + 1), &data[..256]);
    let middle = packet(Opcode::RcWriteMiddle, rq(1));
    assert_eq!(joinable(&s, middle), 4, "the last byte is another packet's");
    s.send_joined(1, middle, &data[256..4 * 256], 3);
    assert_eq!(joinable(&s, packet(Opcode::RcWriteMiddle, rq(4))), 1);
    send!(s, 1, packet(Opcode::RcWriteMiddle, rq(4)), &data[4 * 256..5 * 256]);
    recv_nothing!(s, 1);
    send!(s, 1, packet(Opcode::RcWriteLast, rq(5)).ackreq(), &data[5 * 256..]);
    recv!(s, 1, ack(rq(5), 1));
    assert_eq!(s.peek(BASE, data.len()), data);
}

#[test]
fn the_middle_of_a_send_has_room_in_its_receive() {
    let mut s = Station::new(&Options::rc());
    let data = bytes(4 * 256);
    s.post_recv(build::recv(7, BASE, 4 * 256));
    send!(s, 0, packet(Opcode::RcSendFirst, rq(0)), &data[..256]);
    let middle = packet(Opcode::RcSendMiddle, rq(1));
    assert_eq!(joinable(&s, middle), 3);
    s.send_joined(1, middle, &data[256..3 * 256], 2);
    send!(s, 1, packet(Opcode::RcSendLast, rq(3)).ackreq(), &data[3 * 256..]);
    recv!(s, 1, ack(rq(3), 1));
    assert_eq!(s.received(7, WcStatus::Success).byte_len, 4 * 256);
    assert_eq!(s.peek(BASE, data.len()), data);
}

#[test]
fn so_may_the_middle_of_an_answer() {
    let mut s = Station::new(&Options::rc());
    let data = bytes(4 * 256);
    s.post(build::read(9, BASE, 4 * 256, 0x9000));
    recv!(s, 0, packet(Opcode::RcReadRequest, sq(0)).with_reth(0x9000, 4 * 256).ackreq(), &[]);
    send!(
        s,
        1,
        packet(Opcode::RcReadResponseFirst, sq(0)).with_aeth(Syndrome::ACK, 1),
        &data[..256]
    );
    let middle = packet(Opcode::RcReadResponseMiddle, sq(1));
    assert_eq!(joinable(&s, middle), 2);
    s.send_joined(1, middle, &data[256..3 * 256], 2);
    send!(
        s,
        1,
        packet(Opcode::RcReadResponseLast, sq(3)).with_aeth(Syndrome::ACK, 1),
        &data[3 * 256..]
    );
    s.sent(9, WcStatus::Success);
    assert_eq!(s.peek(BASE, data.len()), data);
}

#[test]
fn a_packet_out_of_order_or_that_wants_an_answer_is_handled_alone() {
    let mut s = Station::new(&Options::rc());
    let middle = packet(Opcode::RcWriteMiddle, rq(0));
    assert_eq!(joinable(&s, middle), 0, "of no message");
    send!(s, 0, packet(Opcode::RcWriteFirst, rq(0)).with_reth(BASE, 10 * 256), &bytes(256));
    assert_eq!(joinable(&s, middle), 0, "it was here before");
    assert_eq!(joinable(&s, packet(Opcode::RcWriteMiddle, rq(2))), 0, "one is missing before it");
    assert_eq!(joinable(&s, packet(Opcode::RcSendMiddle, rq(1))), 0, "of another message");
    assert_eq!(joinable(&s, packet(Opcode::RcWriteMiddle, rq(1)).ackreq()), 0);
    assert_eq!(joinable(&s, packet(Opcode::RcReadResponseMiddle, sq(0))), 0, "nothing was read");
    assert_eq!(joinable(&s, packet(Opcode::RcWriteMiddle, rq(1))), 8);
}

#[test]
fn packets_of_another_length_are_refused_however_many_arrive() {
    let mut s = Station::new(&Options::rc());
    send!(s, 0, packet(Opcode::RcWriteFirst, rq(0)).with_reth(BASE, 2_000), &bytes(256));
    // Together they are as long as one.
    s.send_joined(1, packet(Opcode::RcWriteMiddle, rq(1)), &bytes(256), 2);
    recv!(s, 1, nak(rq(1), 0, Syndrome::Nak(NakCode::InvalidRequest)));
}
