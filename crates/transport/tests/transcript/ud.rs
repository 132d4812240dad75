//! Unreliable datagrams.

use crate::prelude::*;

fn dest(qkey: QKey) -> Option<UdDest> {
    Some(UdDest { av: iba::Av::default(), remote_qpn: Qpn::new(0x77), remote_qkey: qkey })
}

#[test]
fn a_datagram_names_its_sender_and_is_done_when_sent() {
    let mut s = Station::new(&Options::ud());
    let wr = SendWr { imm: 6, ..build::wr(9, WrOpcode::SendWithImm, BASE, 5) };
    s.post(SendWr { ud: dest(QKey(5)), ..wr });
    let mut headers = packet(Opcode::UdSendOnlyWithImm, sq(0)).with_deth(QKey(5), QPN).imm(6);
    headers.bth.dest_qp = Qpn::new(0x77);
    recv!(s, 0, headers, &[0; 5]);
    s.sent(9, WcStatus::Success);
}

#[test]
fn a_controlled_key_stands_for_the_qps_own() {
    let mut s = Station::new(&Options::ud());
    s.post(SendWr { ud: dest(QKey(0x8000_0000)), ..build::send(9, BASE, 0) });
    let mut headers = packet(Opcode::UdSendOnly, sq(0)).with_deth(QKEY, QPN);
    headers.bth.dest_qp = Qpn::new(0x77);
    recv!(s, 0, headers);
}

#[test]
fn a_datagram_longer_than_the_mtu_is_silently_not_sent() {
    let mut s = Station::new(&Options::ud());
    s.post(SendWr { ud: dest(QKEY), ..build::send(9, BASE, 257) });
    recv_nothing!(s, 0);
    s.sent(9, WcStatus::Success);
}

#[test]
fn a_datagram_needs_a_destination() {
    let mut s = Station::new(&Options::ud());
    assert_eq!(s.qp.post_send(build::send(9, BASE, 1)), Err(PostError::NoDestination));
}

#[test]
fn the_payload_follows_the_grh() {
    let mut s = Station::new(&Options::ud());
    s.grh = Some([0x66; 40]);
    s.post_recv(build::recv(7, BASE, 100));
    // Any sequence number will do.
    let headers = packet(Opcode::UdSendOnly, Psn::new(99)).with_deth(QKEY, PEER).solicited();
    send!(s, 0, headers, b"hello");
    let done = s.received(7, WcStatus::Success);
    assert_eq!((done.byte_len, done.src_qpn), (45, PEER));
    assert_eq!((done.flags, done.solicited), (WcFlags::GRH, true));
    assert_eq!(s.peek(BASE, 40), [0x66; 40]);
    assert_eq!(s.peek(BASE + 40, 5), b"hello");
}

#[test]
fn a_wrong_key_is_dropped_and_counted() {
    let mut s = Station::new(&Options::ud());
    s.post_recv(build::recv(7, BASE, 100));
    send!(s, 0, packet(Opcode::UdSendOnly, rq(0)).with_deth(QKey(1), PEER), b"hello");
    s.completed_nothing();
    assert_eq!(s.host.counted(Counter::QkeyViolation), 1);
}

#[test]
fn a_receive_that_is_too_short_waits_for_a_shorter_datagram() {
    let mut s = Station::new(&Options::ud());
    s.post_recv(build::recv(7, BASE, 44));
    send!(s, 0, packet(Opcode::UdSendOnly, rq(0)).with_deth(QKEY, PEER), b"hello");
    s.completed_nothing();
    assert_eq!(s.host.counted(Counter::RespLocalLengthError), 1);
    send!(s, 1, packet(Opcode::UdSendOnly, rq(0)).with_deth(QKEY, PEER), b"hell");
    s.received(7, WcStatus::Success);
}

#[test]
fn without_a_receive_it_is_dropped() {
    let mut s = Station::new(&Options::ud());
    send!(s, 0, packet(Opcode::UdSendOnly, rq(0)).with_deth(QKEY, PEER), b"hello");
    recv_nothing!(s, 0);
    assert_eq!(s.host.counted(Counter::OutOfBuffer), 1);
}
