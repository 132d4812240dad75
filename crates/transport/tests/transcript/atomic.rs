//! CMP_SWAP and FETCH_ADD.

use crate::prelude::*;

fn answer(psn: Psn, msn: u32, orig: u64) -> wire::Headers {
    packet(Opcode::RcAtomicAck, psn).with_aeth(Syndrome::ACK, msn).orig(orig)
}

#[test]
fn the_requester_stores_the_old_value() {
    let mut s = Station::new(&Options::rc());
    s.post(build::fetch_add(9, BASE, 0x9000, 5));
    s.post(build::cmp_swap(10, BASE + 8, 0x9000, 1, 2));
    recv!(s, 0, packet(Opcode::RcFetchAdd, sq(0)).atomic(0x9000, 5, 0).ackreq());
    recv!(s, 0, packet(Opcode::RcCmpSwap, sq(1)).atomic(0x9000, 2, 1).ackreq());
    send!(s, 2, answer(sq(0), 1, 0x0102_0304_0506_0708));
    let done = s.sent(9, WcStatus::Success);
    assert_eq!((done.opcode, done.byte_len), (WcOpcode::FetchAdd, 8));
    send!(s, 2, answer(sq(1), 2, 6));
    assert_eq!(s.sent(10, WcStatus::Success).opcode, WcOpcode::CompSwap);
    assert_eq!(s.peek(BASE, 8), 0x0102_0304_0506_0708u64.to_ne_bytes());
    assert_eq!(s.peek(BASE + 8, 8), 6u64.to_ne_bytes());
}

#[test]
fn the_responder_runs_an_atomic_and_answers_with_the_old_value() {
    let mut s = Station::new(&Options::rc());
    s.poke(BASE, &7u64.to_ne_bytes());
    send!(s, 0, packet(Opcode::RcFetchAdd, rq(0)).atomic(BASE, u64::MAX, 0));
    recv!(s, 0, answer(rq(0), 1, 7));
    send!(s, 1, packet(Opcode::RcCmpSwap, rq(1)).atomic(BASE, 99, 6));
    recv!(s, 1, answer(rq(1), 2, 6));
    send!(s, 2, packet(Opcode::RcCmpSwap, rq(2)).atomic(BASE, 1, 6));
    recv!(s, 2, answer(rq(2), 3, 99));
    assert_eq!(s.peek(BASE, 8), 99u64.to_ne_bytes());
}

#[test]
fn a_misaligned_address_is_an_invalid_request() {
    let mut s = Station::new(&Options::rc());
    send!(s, 0, packet(Opcode::RcFetchAdd, rq(0)).atomic(BASE + 4, 1, 0));
    recv!(s, 0, nak(rq(0), 0, Syndrome::Nak(NakCode::InvalidRequest)));
    assert_eq!(s.qp.last_refusal(), Some(Step::ErrMisalignedAtomic));
}

#[test]
fn a_key_without_the_right_is_an_access_error() {
    let mut s = Station::new(&Options::rc());
    s.host.memory.borrow_mut().region_mut(KEY).unwrap().access = Access::REMOTE_WRITE;
    send!(s, 0, packet(Opcode::RcFetchAdd, rq(0)).atomic(BASE, 1, 0));
    recv!(s, 0, nak(rq(0), 0, Syndrome::Nak(NakCode::RemoteAccess)));
}

#[test]
fn atomics_count_among_the_reads() {
    let mut s = Station::new(&Options { rd_atomic: 1, ..Options::rc() });
    s.post(build::read(9, BASE, 8, 0x9000));
    s.post(build::fetch_add(10, BASE, 0x9000, 1));
    recv!(s, 0, packet(Opcode::RcReadRequest, sq(0)).with_reth(0x9000, 8).ackreq());
    recv_nothing!(s, 0);
}
