//! Requests that arrive again (IBA 9.7.4): answered again, done once.

use crate::prelude::*;

#[test]
fn a_repeated_send_is_acknowledged_and_not_delivered_again() {
    let mut s = Station::new(&Options::rc());
    s.post_recv(build::recv(7, BASE, 10));
    s.post_recv(build::recv(8, BASE, 10));
    send!(s, 0, packet(Opcode::RcSendOnly, rq(0)).ackreq(), b"a");
    recv!(s, 0, ack(rq(0), 1));
    send!(s, 1, packet(Opcode::RcSendOnly, rq(0)).ackreq(), b"a");
    recv!(s, 1, ack(rq(0), 1));
    s.received(7, WcStatus::Success);
    s.completed_nothing();
    assert_eq!(s.host.counted(Counter::DuplicateRequest), 1);
}

#[test]
fn a_repeated_write_is_not_written_again() {
    let mut s = Station::new(&Options::rc());
    send!(s, 0, packet(Opcode::RcWriteOnly, rq(0)).with_reth(BASE, 1).ackreq(), &[1]);
    send!(s, 0, packet(Opcode::RcWriteOnly, rq(1)).with_reth(BASE, 1).ackreq(), &[2]);
    s.at(0);
    s.host.out.clear();
    send!(s, 1, packet(Opcode::RcWriteOnly, rq(0)).with_reth(BASE, 1), &[1]);
    // With the newest number, which confirms that both arrived.
    recv!(s, 1, ack(rq(1), 2));
    assert_eq!(s.peek(BASE, 1), [2]);
}

#[test]
fn a_repeated_read_reads_memory_again() {
    let mut s = Station::new(&Options::rc());
    send!(s, 0, packet(Opcode::RcReadRequest, rq(0)).with_reth(BASE, 600));
    s.at(0);
    s.host.out.clear();
    s.poke(BASE, &[5; 600]);
    // The requester asks for the missing part.
    send!(s, 1, packet(Opcode::RcReadRequest, rq(1)).with_reth(BASE + 256, 344));
    let aeth = |headers: wire::Headers| headers.with_aeth(Syndrome::ACK, 1);
    recv!(s, 1, aeth(packet(Opcode::RcReadResponseFirst, rq(1))), &[5; 256]);
    recv!(s, 1, aeth(packet(Opcode::RcReadResponseLast, rq(2))), &[5; 88]);
    recv_nothing!(s, 1);
    assert_eq!(s.qp.query().rq_psn, rq(3));
}

/// The region was deregistered meanwhile: the NAK names the repeated request, which the requester
/// waits for.
#[test]
fn a_repeated_read_is_refused_by_its_own_number() {
    let mut s = Station::new(&Options::rc());
    send!(s, 0, packet(Opcode::RcReadRequest, rq(0)).with_reth(BASE, 600));
    s.at(0);
    s.host.out.clear();
    send!(s, 1, packet(Opcode::RcReadRequest, rq(1)).with_reth(u64::MAX - 4096, 344));
    recv!(s, 1, nak(rq(1), 1, Syndrome::Nak(NakCode::RemoteAccess)));
    assert_eq!(s.qp.state(), QpState::Err);
}

#[test]
fn a_duplicate_of_a_read_that_was_never_requested_is_dropped() {
    let mut s = Station::new(&Options::rc());
    s.post_recv(build::recv(7, BASE, 10));
    send!(s, 0, packet(Opcode::RcSendOnly, rq(0)));
    // It would reach beyond the known requests.
    send!(s, 1, packet(Opcode::RcReadRequest, rq(0)).with_reth(BASE, 600));
    recv_nothing!(s, 1);
}

#[test]
fn a_repeated_atomic_is_answered_with_the_saved_result() {
    let mut s = Station::new(&Options::rc());
    let request = packet(Opcode::RcFetchAdd, rq(0)).atomic(BASE, 1, 0);
    let answer = packet(Opcode::RcAtomicAck, rq(0)).with_aeth(Syndrome::ACK, 1).orig(0);
    for micros in 0..3 {
        send!(s, micros, request);
        recv!(s, micros, answer);
    }
    assert_eq!(s.peek(BASE, 8), 1u64.to_ne_bytes());
}

#[test]
fn as_many_results_are_kept_as_there_are_resources() {
    let mut s = Station::new(&Options { rd_atomic: 2, ..Options::rc() });
    let request = |psn| packet(Opcode::RcFetchAdd, rq(psn)).atomic(BASE, 1, 0);
    for psn in 0..3 {
        send!(s, 0, request(psn));
        s.at(0);
    }
    s.host.out.clear();
    // No requester with that depth can still lack the answer to the first.
    send!(s, 1, request(0));
    recv_nothing!(s, 1);
    send!(s, 1, request(1));
    recv!(s, 1, packet(Opcode::RcAtomicAck, rq(1)).with_aeth(Syndrome::ACK, 3).orig(1));
}

#[test]
fn repeated_answers_change_nothing() {
    let mut s = Station::new(&Options::rc());
    s.post(build::send(9, BASE, 1));
    s.post(build::send(10, BASE, 1));
    s.at(0);
    send!(s, 1, ack(sq(0), 1));
    send!(s, 1, ack(sq(0), 1));
    s.sent(9, WcStatus::Success);
    s.completed_nothing();
    send!(s, 2, nak(sq(0), 0, Syndrome::Nak(NakCode::RemoteAccess)));
    assert_eq!(s.qp.state(), QpState::Rts);
    // An answer to a request that was never sent is not an answer.
    send!(s, 3, ack(sq(2), 3));
    s.completed_nothing();
    assert_eq!(s.host.counted(Counter::DroppedPacket), 3);
}
