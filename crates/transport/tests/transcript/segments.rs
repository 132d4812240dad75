//! A reliable carrier: packets of many path MTUs, and operations that need no packet.

use crate::prelude::*;

fn options() -> Options {
    Options::rc().over_memory(1024)
}

#[test]
fn a_packet_of_many_mtus_uses_as_many_numbers() {
    let mut s = Station::new(&options());
    let data = bytes(2600);
    s.poke(BASE, &data);
    s.post(build::write(9, BASE, 2600, 0x9000));
    recv!(s, 0, packet(Opcode::RcWriteFirst, sq(0)).with_reth(0x9000, 2600), &data[..1024]);
    recv!(s, 0, packet(Opcode::RcWriteMiddle, sq(4)), &data[1024..2048]);
    recv!(s, 0, packet(Opcode::RcWriteLast, sq(8)).ackreq(), &data[2048..]);
    send!(s, 1, ack(sq(10), 1));
    s.sent(9, WcStatus::Success);
    assert_eq!(s.qp.query().sq_psn, sq(11));
}

#[test]
fn the_responder_counts_the_same_way() {
    let mut s = Station::new(&options());
    s.post_recv(build::recv(7, BASE, 4000));
    send!(s, 0, packet(Opcode::RcSendFirst, rq(0)), &[0; 1024]);
    send!(s, 0, packet(Opcode::RcSendLast, rq(4)).ackreq(), &[0; 700]);
    s.received(7, WcStatus::Success);
    recv!(s, 0, ack(rq(6), 1));

    send!(s, 1, packet(Opcode::RcReadRequest, rq(7)).with_reth(BASE, 2000));
    let aeth = |headers: wire::Headers| headers.with_aeth(Syndrome::ACK, 2);
    recv!(s, 1, aeth(packet(Opcode::RcReadResponseFirst, rq(7))), &[0; 1024]);
    recv!(s, 1, aeth(packet(Opcode::RcReadResponseLast, rq(11))), &[0; 976]);
    assert_eq!(s.qp.query().rq_psn, rq(15));
}

#[test]
fn a_read_is_answered_in_packets_of_many_mtus() {
    let mut s = Station::new(&options());
    s.post(build::read(9, BASE, 1500, 0x9000));
    recv!(s, 0, packet(Opcode::RcReadRequest, sq(0)).with_reth(0x9000, 1500).ackreq());
    let aeth = |headers: wire::Headers| headers.with_aeth(Syndrome::ACK, 1);
    send!(s, 1, aeth(packet(Opcode::RcReadResponseFirst, sq(0))), &[1; 1024]);
    send!(s, 1, aeth(packet(Opcode::RcReadResponseLast, sq(4))), &[1; 476]);
    s.sent(9, WcStatus::Success);
}

#[test]
fn only_the_last_packet_may_end_within_an_mtu() {
    let mut s = Station::new(&options());
    s.post_recv(build::recv(7, BASE, 4000));
    send!(s, 0, packet(Opcode::RcSendFirst, rq(0)), &[0; 1000]);
    recv!(s, 0, nak(rq(0), 0, Syndrome::Nak(NakCode::InvalidRequest)));
}

/// A station whose peer's memory can be reached, and which has acknowledged a message.
fn direct() -> Station {
    let mut s = met(options());
    let peer = options().host();
    s.host.direct = Some(peer.memory);
    s
}

#[test]
fn one_sided_operations_need_no_packet() {
    let mut s = direct();
    s.poke(BASE, &bytes(600));
    s.post(build::write(1, BASE, 600, BASE));
    s.post(build::read(2, BASE + 0x1000, 600, BASE));
    s.post(build::fetch_add(3, BASE + 0x2000, BASE + 0x100, 1));
    recv_nothing!(s, 0);
    for wr_id in 1..=3 {
        s.sent(wr_id, WcStatus::Success);
    }
    assert_eq!(s.peek(BASE + 0x1000, 600), bytes(600));
    assert_eq!(s.host.direct_done, 3);
    assert_eq!(s.qp.query().sq_psn, sq(3 + 3 + 1));
}

#[test]
fn operations_that_are_alike_are_carried_out_together() {
    let mut s = direct();
    s.poke(BASE, &bytes(2000));
    for wr_id in 1..=3 {
        s.post(build::write(wr_id, BASE, 600, BASE + 0x1000 * wr_id));
    }
    s.post(build::read(4, BASE + 0x5000, 600, BASE + 0x1000));
    s.post(build::read(5, BASE + 0x6000, 600, BASE + 0x2000));
    // Longer than those that go together, and the last one is alone.
    s.post(build::write(6, BASE, 5000, BASE));
    s.post(build::write(7, BASE, 8, BASE));
    recv_nothing!(s, 0);
    for wr_id in 1..=7 {
        s.sent(wr_id, WcStatus::Success);
    }
    assert_eq!((s.host.direct_done, s.host.direct_runs), (7, 2));
    assert_eq!(s.peek(BASE + 0x6000, 600), bytes(600));
    assert_eq!(s.qp.query().sq_psn, sq(5 * 3 + 20 + 1));
}

#[test]
fn one_that_is_refused_ends_those_before_it_well() {
    let mut s = direct();
    s.post(build::write(1, BASE, 8, BASE));
    s.post(build::write(2, BASE, 8, BASE));
    s.post(build::write(3, BASE, 8, 8));
    s.post(build::write(4, BASE, 8, BASE));
    s.at(0);
    s.sent(1, WcStatus::Success);
    s.sent(2, WcStatus::Success);
    s.completed_nothing();
    let sent = s.host.out.pop_front().expect("the third goes to the peer, which refuses it");
    assert_eq!(sent.skipped, Skipped { psns: 2, messages: 2 });
}

#[test]
fn what_may_wait_is_alike_and_alone_in_its_queue() {
    let mut s = direct();
    assert!(s.qp.last_that_may_wait().is_none());
    s.post(build::write(1, BASE, 8, BASE));
    assert!(s.qp.last_that_may_wait().is_some());
    s.post(build::write(2, BASE, 4097, BASE));
    assert!(s.qp.last_that_may_wait().is_none(), "too long");
    s.at(0);
    s.post(build::write(3, BASE, 8, BASE));
    assert!(s.qp.last_that_may_wait().is_some());
    s.post(build::read(4, BASE, 8, BASE));
    assert!(s.qp.last_that_may_wait().is_none(), "a READ after a WRITE");
    s.at(0);
    s.post(build::send(5, BASE, 0));
    s.at(0);
    s.post(build::write(6, BASE, 8, BASE));
    assert!(s.qp.last_that_may_wait().is_none(), "the send is under way");
}

/// It tells whether the peer is there and awaits these sequence numbers.
#[test]
fn the_first_operation_of_a_connection_is_a_packet() {
    let mut s = Station::new(&options());
    s.host.direct = Some(options().host().memory);
    s.post(build::write(1, BASE, 8, BASE));
    recv!(s, 0, packet(Opcode::RcWriteOnly, sq(0)).with_reth(BASE, 8).ackreq(), &[0; 8]);
    send!(s, 1, ack(sq(0), 1));
    s.sent(1, WcStatus::Success);
    s.post(build::write(2, BASE, 8, BASE));
    recv_nothing!(s, 1);
    s.sent(2, WcStatus::Success);
    assert_eq!(s.host.direct_done, 1);
}

#[test]
fn the_next_packet_tells_the_peer() {
    let mut s = direct();
    s.post(build::write(1, BASE, 600, BASE));
    s.post(build::write(2, BASE, 0, BASE));
    s.post(build::send(3, BASE, 0));
    s.post(build::send(4, BASE, 0));
    s.at(0);
    let skips = |s: &mut Station| s.host.out.pop_front().map(|sent| sent.skipped);
    assert_eq!(skips(&mut s), Some(Skipped { psns: 4, messages: 2 }));
    assert_eq!(skips(&mut s), Some(Skipped::default()));
    // A repeated packet reports it again.
    s.at(10);
    assert_eq!(skips(&mut s), Some(Skipped { psns: 4, messages: 2 }));
    send!(s, 11, ack(sq(5), 4));
    s.post(build::send(5, BASE, 0));
    s.at(11);
    s.host.out.pop_front();
    assert_eq!(skips(&mut s), Some(Skipped::default()));
}

#[test]
fn the_peer_steps_over_what_was_skipped_once() {
    let mut s = Station::new(&options());
    s.post_recv(build::recv(7, BASE, 8));
    for micros in 0..2 {
        s.skipped = Skipped { psns: 4, messages: 2 };
        send!(s, micros, packet(Opcode::RcSendOnly, rq(4)).ackreq());
        recv!(s, micros, ack(rq(4), 3));
    }
    s.received(7, WcStatus::Success);
    s.completed_nothing();
}

#[test]
fn on_a_wire_nothing_can_be_skipped() {
    let mut s = Station::new(&Options::rc());
    s.skipped = Skipped { psns: 4, messages: 2 };
    send!(s, 0, packet(Opcode::RcSendOnly, rq(4)).ackreq());
    recv!(s, 0, nak(rq(0), 0, Syndrome::Nak(NakCode::PsnSequence)));
}

#[test]
fn nothing_is_overtaken() {
    let mut s = direct();
    s.post(build::send(1, BASE, 0));
    s.post(build::write(2, BASE, 8, BASE));
    recv!(s, 0, packet(Opcode::RcSendOnly, sq(0)).ackreq());
    recv!(s, 0, packet(Opcode::RcWriteOnly, sq(1)).with_reth(BASE, 8).ackreq(), &[0; 8]);
    assert_eq!(s.host.direct_done, 0);
    send!(s, 1, rnr_nak(sq(0), 0, 1));
    s.post(build::write(3, BASE, 8, BASE));
    recv_nothing!(s, 2);
    assert_eq!(s.host.direct_done, 0);
}

#[test]
fn a_long_operation_waits_for_requests_in_flight_and_needs_no_packet() {
    let mut s = direct();
    let length = 32 << 10;
    s.poke(BASE, &bytes(length));
    s.post(build::send(1, BASE, 0));
    s.post(build::write(2, BASE, length as u32, BASE));
    recv!(s, 0, packet(Opcode::RcSendOnly, sq(0)).ackreq());
    recv_nothing!(s, 0);
    assert_eq!(s.host.direct_done, 0);
    send!(s, 1, ack(sq(0), 1));
    recv_nothing!(s, 1);
    s.sent(1, WcStatus::Success);
    s.sent(2, WcStatus::Success);
    assert_eq!(s.host.direct_done, 1);
    let peer = s.host.direct.clone().expect("it is there");
    assert_eq!(peer.borrow_mut().bytes_mut(BASE, length), bytes(length));
    // A key that is not in the peer's table is no reason to wait.
    s.host.direct = None;
    s.post(build::send(3, BASE, 0));
    s.post(build::write(4, BASE, length as u32, BASE));
    s.at(2);
    assert!(s.host.out.len() > 1, "packets of both");
}

#[test]
fn immediate_data_goes_by_packet() {
    let mut s = direct();
    let wr = build::write(2, BASE, 1, BASE);
    s.post(SendWr { opcode: WrOpcode::RdmaWriteWithImm, ..wr });
    let headers = packet(Opcode::RcWriteOnlyWithImm, sq(0)).with_reth(BASE, 1).imm(0).ackreq();
    recv!(s, 0, headers, &[0]);
}

#[test]
fn an_operation_that_the_peers_memory_refuses_is_sent_so_that_the_peer_refuses_it() {
    let mut s = direct();
    s.post(build::write(2, BASE, 1, 0));
    recv!(s, 0, packet(Opcode::RcWriteOnly, sq(0)).with_reth(0, 1).ackreq(), &[0]);
    send!(s, 1, nak(sq(0), 0, Syndrome::Nak(NakCode::RemoteAccess)));
    s.sent(2, WcStatus::RemAccessErr);
}

#[test]
fn a_wrong_local_key_fails_at_once() {
    let mut s = direct();
    let mut bad = build::sge(BASE, 8);
    bad.lkey = iba::LKey(0xbad);
    let data = Data::Sges([bad].into_iter().collect());
    s.post(SendWr { data, ..build::write(2, 0, 0, BASE) });
    recv_nothing!(s, 0);
    s.sent(2, WcStatus::LocProtErr);
}
