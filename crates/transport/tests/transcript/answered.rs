//! FLUSH and ATOMIC WRITE: requests whose response only confirms that they are done (IBA annex
//! A19).

use transport::wr::Flush;
use wire::{Feth, Selectivity};

use crate::prelude::*;

const RANGE: Flush = Flush { length: 4096, whole: false, global: true, persistent: false };

fn flush(wr_id: u64, remote: u64, flush: Flush) -> SendWr {
    let wr = build::wr(wr_id, WrOpcode::Flush, 0, 0);
    SendWr { remote_addr: remote, data: Data::Flush(flush), ..wr }
}

fn flush_packet(psn: Psn, va: u64, length: u32, selectivity: Selectivity) -> wire::Headers {
    let mut headers = packet(Opcode::RcFlush, psn).with_reth(va, length);
    headers.set_feth(Feth { global: true, persistent: false, selectivity });
    headers
}

/// The answer: a READ response of no bytes.
fn done(psn: Psn, msn: u32) -> wire::Headers {
    packet(Opcode::RcReadResponseOnly, psn).with_aeth(Syndrome::ACK, msn)
}

#[test]
fn the_requester_sends_eight_bytes_or_none_and_waits_for_the_answer() {
    let mut s = Station::new(&Options::rc());
    let value = Data::Inline(bytes(8).into());
    let wr = build::wr(9, WrOpcode::AtomicWrite, 0, 0);
    s.post(SendWr { remote_addr: 0x9000, data: value, ..wr });
    s.post(flush(10, 0x9000, RANGE));
    recv!(s, 0, packet(Opcode::RcAtomicWrite, sq(0)).with_reth(0x9000, 8).ackreq(), &bytes(8));
    // However much it flushes, it takes one number.
    recv!(s, 0, flush_packet(sq(1), 0x9000, 4096, Selectivity::Range).ackreq());
    send!(s, 2, done(sq(0), 1));
    assert_eq!(s.sent(9, WcStatus::Success).opcode, WcOpcode::AtomicWrite);
    send!(s, 3, done(sq(1), 2));
    assert_eq!(s.sent(10, WcStatus::Success).opcode, WcOpcode::Flush);
}

#[test]
fn flush_and_atomic_write_count_among_the_reads() {
    let mut s = Station::new(&Options { rd_atomic: 1, ..Options::rc() });
    s.post(build::read(9, BASE, 8, 0x9000));
    s.post(flush(10, 0x9000, RANGE));
    recv!(s, 0, packet(Opcode::RcReadRequest, sq(0)).with_reth(0x9000, 8).ackreq());
    recv_nothing!(s, 0);
}

#[test]
fn an_ack_is_not_an_answer() {
    let mut s = Station::new(&Options::rc());
    s.post(flush(9, 0x9000, Flush { whole: true, ..RANGE }));
    recv!(s, 0, flush_packet(sq(0), 0x9000, 4096, Selectivity::Mr).ackreq());
    send!(s, 2, ack(sq(0), 1));
    s.completed_nothing();
}

#[test]
fn an_atomic_write_is_eight_bytes_at_a_multiple_of_eight() {
    let mut s = Station::new(&Options::rc());
    send!(s, 0, packet(Opcode::RcAtomicWrite, rq(0)).with_reth(BASE + 8, 8), &bytes(8));
    recv!(s, 0, done(rq(0), 1));
    assert_eq!(s.peek(BASE + 8, 8), bytes(8));
    // A repeated request is answered again, but not carried out again.
    s.poke(BASE + 8, &[9; 8]);
    send!(s, 1, packet(Opcode::RcAtomicWrite, rq(0)).with_reth(BASE + 8, 8), &bytes(8));
    recv!(s, 1, done(rq(0), 1));
    assert_eq!(s.peek(BASE + 8, 8), [9; 8]);
    send!(s, 2, packet(Opcode::RcAtomicWrite, rq(1)).with_reth(BASE + 4, 8), &bytes(8));
    recv!(s, 2, nak(rq(1), 1, Syndrome::Nak(NakCode::InvalidRequest)));
    assert_eq!(s.qp.last_refusal(), Some(Step::ErrMisalignedAtomic));
}

#[test]
fn a_flush_needs_the_right_of_the_queue_pair_and_of_the_region() {
    let mut s = Station::new(&Options::rc());
    send!(s, 0, flush_packet(rq(0), BASE, 16, Selectivity::Range));
    recv!(s, 0, nak(rq(0), 0, Syndrome::Nak(NakCode::InvalidRequest)));

    let mut s = Station::new(&Options { access: Access::FLUSH_GLOBAL, ..Options::rc() });
    send!(s, 0, flush_packet(rq(0), BASE, 16, Selectivity::Range));
    recv!(s, 0, nak(rq(0), 0, Syndrome::Nak(NakCode::RemoteAccess)));

    let mut s = Station::new(&Options { access: Access::FLUSH_GLOBAL, ..Options::rc() });
    s.host.memory.borrow_mut().region_mut(KEY).unwrap().access = Access::FLUSH_GLOBAL;
    send!(s, 0, flush_packet(rq(0), BASE, 16, Selectivity::Range));
    recv!(s, 0, done(rq(0), 1));
}
