//! The fence, and local invalidation.

use crate::prelude::*;

#[test]
fn a_fenced_request_waits_for_reads_and_atomics() {
    let mut s = Station::new(&Options::rc());
    s.post(build::read(8, BASE, 8, 0x9000));
    s.post(SendWr { flags: SendFlags::FENCE, ..build::send(9, BASE, 0) });
    recv!(s, 0, packet(Opcode::RcReadRequest, sq(0)).with_reth(0x9000, 8).ackreq());
    recv_nothing!(s, 0);
    let response = packet(Opcode::RcReadResponseOnly, sq(0)).with_aeth(Syndrome::ACK, 1);
    send!(s, 2, response, &[0; 8]);
    recv!(s, 2, packet(Opcode::RcSendOnly, sq(1)).ackreq());
}

#[test]
fn a_fence_does_not_wait_for_writes() {
    let mut s = Station::new(&Options::rc());
    s.post(build::write(8, BASE, 0, 0x9000));
    s.post(SendWr { flags: SendFlags::FENCE, ..build::send(9, BASE, 0) });
    recv!(s, 0, packet(Opcode::RcWriteOnly, sq(0)).with_reth(0x9000, 0).ackreq());
    recv!(s, 0, packet(Opcode::RcSendOnly, sq(1)).ackreq());
}

#[test]
fn local_invalidate_waits_until_nothing_can_need_the_key() {
    let mut s = Station::new(&Options::rc());
    s.host.memory.borrow_mut().register(0x55, 0, 16, Access::REMOTE_WRITE);
    s.post(build::send(8, BASE, 0));
    s.post(SendWr { imm: 0x55, ..build::wr(9, WrOpcode::LocalInv, 0, 0) });
    s.post(build::send(10, BASE, 0));
    recv!(s, 0, packet(Opcode::RcSendOnly, sq(0)).ackreq());
    recv_nothing!(s, 0);
    assert_eq!(s.host.invalidated, []);
    send!(s, 2, ack(sq(0), 1));
    // It uses no sequence number.
    recv!(s, 2, packet(Opcode::RcSendOnly, sq(1)).ackreq());
    assert_eq!(s.host.invalidated, [RKey(0x55)]);
    s.sent(8, WcStatus::Success);
    assert_eq!(s.sent(9, WcStatus::Success).opcode, WcOpcode::LocalInv);
}

#[test]
fn an_unknown_key_cannot_be_invalidated() {
    let mut s = Station::new(&Options::rc());
    s.post(SendWr { imm: 0xbad, ..build::wr(9, WrOpcode::LocalInv, 0, 0) });
    s.at(0);
    s.sent(9, WcStatus::MwBindErr);
}
