//! XRC: reliable connections in which one end only sends requests, each naming a shared queue, and
//! the other only answers (IBA annex A14).

use iba::QpType;
use wire::{Srqn, Xrceth};

use crate::prelude::*;

fn sender() -> Options {
    Options { qp_type: QpType::XrcSend, has_srq: true, ..Options::rc() }
}

fn receiver() -> Options {
    Options { qp_type: QpType::XrcRecv, has_srq: true, ..Options::rc() }
}

fn to_queue(srqn: u32, headers: wire::Headers) -> wire::Headers {
    let mut headers = headers;
    headers.set_xrceth(Xrceth { srqn: Srqn::new(srqn) });
    headers
}

#[test]
fn every_packet_of_a_request_names_the_queue() {
    let mut s = Station::new(&sender());
    let data = bytes(300);
    s.poke(BASE, &data);
    s.post(SendWr { srqn: 5, ..build::send(9, BASE, 300) });
    recv!(s, 0, to_queue(5, packet(Opcode::XrcSendFirst, sq(0))), &data[..256]);
    recv!(s, 0, to_queue(5, packet(Opcode::XrcSendLast, sq(1)).ackreq()), &data[256..]);
    send!(s, 2, packet(Opcode::XrcAck, sq(1)).with_aeth(Syndrome::ACK, 1));
    assert_eq!(s.sent(9, WcStatus::Success).opcode, WcOpcode::Send);
    s.post(SendWr { srqn: 6, ..build::read(10, BASE, 8, 0x9000) });
    recv!(s, 3, to_queue(6, packet(Opcode::XrcReadRequest, sq(2)).with_reth(0x9000, 8).ackreq()));
}

#[test]
fn the_receiver_takes_from_the_queue_and_answers_as_rc_does() {
    let mut s = Station::new(&receiver());
    s.host.srq.push_back(build::recv(7, BASE, 300));
    let data = bytes(300);
    send!(s, 0, to_queue(5, packet(Opcode::XrcSendFirst, rq(0))), &data[..256]);
    send!(s, 1, to_queue(5, packet(Opcode::XrcSendLast, rq(1)).ackreq()), &data[256..]);
    recv!(s, 1, packet(Opcode::XrcAck, rq(1)).with_aeth(Syndrome::ACK, 1));
    assert_eq!(s.received(7, WcStatus::Success).byte_len, 300);
    assert_eq!(s.peek(BASE, 300), data);
    send!(s, 2, to_queue(5, packet(Opcode::XrcReadRequest, rq(2)).with_reth(BASE, 8)));
    recv!(s, 2, packet(Opcode::XrcReadResponseOnly, rq(2)).with_aeth(Syndrome::ACK, 2), &data[..8]);
}

#[test]
fn each_end_ignores_packets_that_only_the_other_handles() {
    let mut s = Station::new(&sender());
    send!(s, 0, to_queue(5, packet(Opcode::XrcSendOnly, rq(0)).ackreq()), &[1]);
    recv_nothing!(s, 0);
    assert!(matches!(s.qp.post_recv(build::recv(7, BASE, 1)), Err(PostError::HasSrq)));
    let mut s = Station::new(&receiver());
    assert!(matches!(s.qp.post_send(build::send(9, BASE, 1)), Err(PostError::Opcode { .. })));
}

#[test]
fn memory_that_is_absent_is_an_rnr_nak_as_on_rc() {
    let mut s = Station::new(&receiver());
    s.host.memory.borrow_mut().absent = 1;
    let write = to_queue(5, packet(Opcode::XrcWriteOnly, rq(0)).with_reth(BASE, 4).ackreq());
    send!(s, 0, write, b"abcd");
    let timer = s.qp.query().min_rnr_timer;
    let refused = Syndrome::RnrNak { timer };
    recv!(s, 0, packet(Opcode::XrcAck, rq(0)).with_aeth(refused, 0));
    s.host.memory.borrow_mut().absent = 0;
    send!(s, 20, write, b"abcd");
    recv!(s, 20, packet(Opcode::XrcAck, rq(0)).with_aeth(Syndrome::ACK, 1));
    send!(s, 21, to_queue(5, packet(Opcode::XrcReadRequest, rq(1)).with_reth(BASE, 4)));
    s.host.memory.borrow_mut().absent = 1;
    recv!(s, 5_000, packet(Opcode::XrcAck, rq(1)).with_aeth(refused, 2));
}
