//! Timeouts and retransmission (IBA 9.7.6.1.3). The ACK timeout of these tests is code 1: 8.192 us.

use crate::prelude::*;

#[test]
fn unacknowledged_packets_are_sent_again() {
    let mut s = Station::new(&Options::rc());
    s.post(build::send(9, BASE, 512));
    recv!(s, 0, packet(Opcode::RcSendFirst, sq(0)), &[0; 256]);
    recv!(s, 0, packet(Opcode::RcSendLast, sq(1)).ackreq(), &[0; 256]);
    recv_nothing!(s, 8);
    recv!(s, 9, packet(Opcode::RcSendFirst, sq(0)), &[0; 256]);
    recv!(s, 9, packet(Opcode::RcSendLast, sq(1)).ackreq(), &[0; 256]);
    assert_eq!(s.host.counted(Counter::LocalAckTimeoutErr), 1);
    send!(s, 10, ack(sq(1), 1));
    s.sent(9, WcStatus::Success);
    assert_eq!(s.qp.poll_timeout(), None);
}

#[test]
fn packets_are_repeated_only_from_the_oldest_missing_one() {
    let mut s = Station::new(&Options::rc());
    s.post(build::write(9, BASE, 512, 0x9000));
    s.post(build::send(10, BASE, 1));
    s.at(0);
    s.host.out.clear();
    send!(s, 4, ack(sq(0), 0));
    // The timer starts again for the rest.
    recv_nothing!(s, 12);
    recv!(s, 13, packet(Opcode::RcWriteLast, sq(1)).ackreq(), &[0; 256]);
    recv!(s, 13, packet(Opcode::RcSendOnly, sq(2)).ackreq(), &[0]);
}

#[test]
fn retries_are_counted_and_then_the_qp_fails() {
    let mut s = Station::new(&Options { retry_cnt: 3, ..Options::rc() });
    s.post(build::send(9, BASE, 1));
    s.post(build::read(10, BASE, 1, 0x9000));
    s.post_recv(build::recv(7, BASE, 1));
    s.at(1000);
    assert_eq!(s.host.out.len(), 2 * 4);
    assert_eq!(s.sent(9, WcStatus::RetryExcErr).vendor_err, Reason::AckTimeout as u32);
    s.sent(10, WcStatus::WrFlushErr);
    s.received(7, WcStatus::WrFlushErr);
    assert_eq!(s.qp.state(), QpState::Err);
    assert_eq!(s.qp.poll_timeout(), None);
}

#[test]
fn progress_starts_the_count_afresh() {
    let mut s = Station::new(&Options { retry_cnt: 1, ..Options::rc() });
    s.post(build::send(9, BASE, 512));
    // One retry used.
    s.at(10);
    send!(s, 11, ack(sq(0), 0));
    // Another one.
    s.at(21);
    assert_eq!(s.host.counted(Counter::LocalAckTimeoutErr), 2);
    send!(s, 22, ack(sq(1), 1));
    s.sent(9, WcStatus::Success);
}

#[test]
fn a_timeout_of_zero_is_infinite() {
    let mut s = Station::new(&Options { timeout: 0, ..Options::rc() });
    s.post(build::send(9, BASE, 1));
    s.at(0);
    assert_eq!(s.qp.poll_timeout(), None);
}

#[test]
fn a_slow_peer_is_not_a_dead_one() {
    let mut s = Station::new(&Options { retry_cnt: 0, ..Options::rc().over_memory(4096) });
    s.post(build::send(9, BASE, 1));
    s.host.peer_is_behind = true;
    s.at(1000);
    assert_eq!(s.host.out.len(), 1, "nothing is sent again");
    s.completed_nothing();
    // Its process ended without taking the packet.
    s.host.peer_is_behind = false;
    s.at(1010);
    s.sent(9, WcStatus::RetryExcErr);
}

#[test]
fn waiting_for_room_is_waiting_for_the_peer() {
    let mut s = Station::new(&Options { retry_cnt: 1, ..Options::rc() });
    s.host.room = Some(0);
    s.post(build::send(9, BASE, 1));
    s.at(100);
    s.sent(9, WcStatus::RetryExcErr);
}

/// The packet is lost, and its memory is absent when it should be sent again.
#[test]
fn waiting_for_memory_of_its_own_is_not_waiting_for_the_peer() {
    let mut s = Station::new(&Options { retry_cnt: 1, ..Options::rc() });
    s.post(build::send(9, BASE, 1));
    recv!(s, 0, packet(Opcode::RcSendOnly, sq(0)).ackreq(), &[0]);
    s.host.memory.borrow_mut().absent = 1;
    recv_nothing!(s, 1000);
    s.completed_nothing();
    assert_eq!(s.host.counted(Counter::LocalAckTimeoutErr), 1);
    s.host.memory.borrow_mut().absent = 0;
    recv!(s, 1001, packet(Opcode::RcSendOnly, sq(0)).ackreq(), &[0]);
    // Now it waits for the peer again, twice as long as at first.
    recv_nothing!(s, 1017);
    s.at(1018);
    s.sent(9, WcStatus::RetryExcErr);
}

#[test]
fn a_late_ack_overtakes_the_retransmission() {
    let mut s = Station::new(&Options::rc());
    s.post(build::send(9, BASE, 512));
    s.post(build::send(10, BASE, 1));
    s.at(0);
    s.host.out.clear();
    s.host.room = Some(0);
    s.at(9);
    // It is about to send the first packet again when an ACK shows that both of its packets have
    // arrived.
    send!(s, 10, ack(sq(1), 1));
    s.sent(9, WcStatus::Success);
    s.host.room = None;
    recv!(s, 11, packet(Opcode::RcSendOnly, sq(2)).ackreq(), &[0]);
    recv_nothing!(s, 11);
}

#[test]
fn a_read_is_requested_again_from_where_it_broke_off() {
    let mut s = Station::new(&Options::rc());
    s.post(build::read(9, BASE, 600, 0x9000));
    recv!(s, 0, packet(Opcode::RcReadRequest, sq(0)).with_reth(0x9000, 600).ackreq());
    let first = packet(Opcode::RcReadResponseFirst, sq(0)).with_aeth(Syndrome::ACK, 1);
    send!(s, 4, first, &[1; 256]);
    recv_nothing!(s, 12);
    recv!(s, 13, packet(Opcode::RcReadRequest, sq(1)).with_reth(0x9100, 344).ackreq());
}

/// Nothing of a window arrives, again and again: perhaps that many packets do not fit on the path.
#[test]
fn with_each_timeout_half_as_many_packets_are_sent() {
    let mut s = Station::new(&Options { memory: 1 << 17, ..Options::rc() });
    s.post(build::write(9, BASE, 200 * 256, BASE));
    s.at(0);
    let mut sent = vec![s.host.out.len()];
    while s.qp.state() == QpState::Rts {
        s.host.out.clear();
        let due = s.qp.poll_timeout().expect("it waits for the peer");
        s.at(due.as_nanos().div_ceil(1_000));
        sent.push(s.host.out.len());
    }
    assert_eq!(sent, [128, 64, 32, 16, 8, 4, 2, 2, 0]);
    s.sent(9, WcStatus::RetryExcErr);
}
