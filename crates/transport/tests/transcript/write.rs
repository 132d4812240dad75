//! RDMA WRITE over RC.

use crate::prelude::*;

#[test]
fn a_long_write_names_its_memory_once() {
    let mut s = Station::new(&Options::rc());
    let data = bytes(600);
    s.poke(BASE, &data);
    s.post(build::write(9, BASE, 600, 0x9000));
    recv!(s, 0, packet(Opcode::RcWriteFirst, sq(0)).with_reth(0x9000, 600), &data[..256]);
    recv!(s, 0, packet(Opcode::RcWriteMiddle, sq(1)), &data[256..512]);
    recv!(s, 0, packet(Opcode::RcWriteLast, sq(2)).ackreq(), &data[512..]);
    send!(s, 2, ack(sq(2), 1));
    assert_eq!(s.sent(9, WcStatus::Success).opcode, WcOpcode::RdmaWrite);
}

#[test]
fn a_write_raises_no_event_whatever_its_flags() {
    let mut s = Station::new(&Options::rc());
    s.post(SendWr { flags: SendFlags::SOLICITED, ..build::write(9, BASE, 1, 0x9000) });
    recv!(s, 0, packet(Opcode::RcWriteOnly, sq(0)).with_reth(0x9000, 1).ackreq(), &[0]);
}

#[test]
fn a_received_write_goes_to_memory_and_uses_no_receive() {
    let mut s = Station::new(&Options::rc());
    s.post_recv(build::recv(7, BASE, 10));
    let data = bytes(300);
    send!(s, 0, packet(Opcode::RcWriteFirst, rq(0)).with_reth(BASE + 64, 300), &data[..256]);
    send!(s, 1, packet(Opcode::RcWriteLast, rq(1)).ackreq(), &data[256..]);
    recv!(s, 1, ack(rq(1), 1));
    assert_eq!(s.peek(BASE + 64, 300), data);
    s.completed_nothing();
    assert_eq!(s.qp.receives(), 1);
}

#[test]
fn immediate_data_takes_a_receive_at_the_end() {
    let mut s = Station::new(&Options::rc());
    s.post_recv(build::recv(7, BASE, 0));
    let data = bytes(300);
    send!(s, 0, packet(Opcode::RcWriteFirst, rq(0)).with_reth(BASE, 300), &data[..256]);
    s.completed_nothing();
    send!(s, 1, packet(Opcode::RcWriteLastWithImm, rq(1)).imm(3).ackreq(), &data[256..]);
    let done = s.received(7, WcStatus::Success);
    assert_eq!((done.opcode, done.byte_len, done.imm), (WcOpcode::RecvRdmaWithImm, 300, 3));
    recv!(s, 1, ack(rq(1), 1));

    let wr = SendWr { imm: 4, ..build::write(9, BASE, 1, 0x9000) };
    s.post(SendWr { opcode: WrOpcode::RdmaWriteWithImm, flags: SendFlags::SOLICITED, ..wr });
    let headers = packet(Opcode::RcWriteOnlyWithImm, sq(0)).with_reth(0x9000, 1).imm(4);
    recv!(s, 1, headers.ackreq().solicited(), &data[..1]);
}

#[test]
fn an_empty_write_needs_no_key() {
    let mut s = Station::new(&Options::rc());
    let mut headers = packet(Opcode::RcWriteOnly, rq(0)).with_reth(0, 0).ackreq();
    headers.set_reth(wire::Reth { rkey: RKey(0xbad), ..headers.reth().unwrap() });
    send!(s, 0, headers);
    recv!(s, 0, ack(rq(0), 1));
}

#[test]
fn a_bad_key_is_refused_at_the_first_packet_and_ends_the_qp() {
    let mut s = Station::new(&Options::rc());
    s.post_recv(build::recv(7, BASE, 10));
    s.post(build::send(9, BASE, 1));
    recv!(s, 0, packet(Opcode::RcSendOnly, sq(0)).ackreq(), &[0]);

    let mut headers = packet(Opcode::RcWriteFirst, rq(0)).with_reth(BASE, 300);
    headers.set_reth(wire::Reth { rkey: RKey(0xbad), ..headers.reth().unwrap() });
    send!(s, 1, headers, &[1; 256]);
    assert_eq!(s.qp.state(), QpState::Err);
    assert_eq!(s.qp.last_refusal(), Some(Step::ErrRkeyViolation));
    assert_eq!(s.events(), [QpEvent::AccessErr]);
    assert_eq!(s.host.counted(Counter::RespRemoteAccessErrors), 1);
    s.sent(9, WcStatus::WrFlushErr);
    s.received(7, WcStatus::WrFlushErr);
    // The refusal still goes out.
    recv!(s, 1, nak(rq(0), 0, Syndrome::Nak(NakCode::RemoteAccess)));
    assert_eq!(s.peek(BASE, 1), [0]);
}

#[test]
fn a_range_beyond_the_region_is_refused() {
    let mut s = Station::new(&Options { memory: 4096, ..Options::rc() });
    send!(s, 0, packet(Opcode::RcWriteOnly, rq(0)).with_reth(BASE + 4090, 10), &[1; 10]);
    recv!(s, 0, nak(rq(0), 0, Syndrome::Nak(NakCode::RemoteAccess)));
}

#[test]
fn memory_that_goes_away_in_the_middle_is_refused_there() {
    let mut s = Station::new(&Options::rc());
    send!(s, 0, packet(Opcode::RcWriteFirst, rq(0)).with_reth(BASE, 300), &[1; 256]);
    s.host.memory.borrow_mut().region_mut(KEY).unwrap().present = false;
    send!(s, 1, packet(Opcode::RcWriteLast, rq(1)), &[1; 44]);
    recv!(s, 1, nak(rq(1), 0, Syndrome::Nak(NakCode::RemoteAccess)));
    assert_eq!(s.qp.state(), QpState::Err);
}

#[test]
fn without_the_access_flag_a_write_is_an_invalid_request() {
    let mut s = Station::new(&Options { access: Access::REMOTE_READ, ..Options::rc() });
    send!(s, 0, packet(Opcode::RcWriteOnly, rq(0)).with_reth(BASE, 1), &[1]);
    recv!(s, 0, nak(rq(0), 0, Syndrome::Nak(NakCode::InvalidRequest)));
    assert_eq!(s.qp.last_refusal(), Some(Step::ErrUnsupportedOpcode));
    assert_eq!(s.events(), [QpEvent::ReqErr]);
}
