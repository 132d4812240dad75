//! Acknowledgements that nobody asked for, on a carrier in memory.

use crate::prelude::*;

/// A station on a carrier in memory that sends an acknowledgement nobody asked for only when it
/// must, with three receives.
fn options() -> Options {
    Options { timeout: 14, sq_sig_all: false, ..Options::rc().over_memory(1024) }
}

fn station() -> Station {
    let mut s = Station::new(&options());
    s.acks_stay = true;
    for wr_id in [7, 8, 9] {
        s.post_recv(build::recv(wr_id, BASE, 10));
    }
    s
}

fn unsignaled(wr_id: u64) -> SendWr {
    build::send(wr_id, BASE, 1)
}

fn signaled(wr_id: u64) -> SendWr {
    SendWr { flags: SendFlags::SIGNALED, ..build::send(wr_id, BASE, 1) }
}

fn asking(psn: Psn) -> wire::Headers {
    packet(Opcode::RcSendOnly, psn).ackreq()
}

fn not_asking(psn: Psn) -> wire::Headers {
    packet(Opcode::RcSendOnly, psn)
}

#[test]
fn a_request_that_nobody_waits_for_does_not_ask() {
    let mut s = station();
    s.post(unsignaled(1));
    recv!(s, 0, not_asking(sq(0)), &[0]);
    s.post(signaled(2));
    recv!(s, 0, asking(sq(1)), &[0]);
    send!(s, 1, ack(sq(1), 2));
    s.sent(2, WcStatus::Success);
}

#[test]
fn on_a_wire_each_asks() {
    let mut s = Station::new(&Options::rc());
    s.post(unsignaled(1));
    recv!(s, 0, asking(sq(0)), &[0]);
}

#[test]
fn one_of_several_asks_though_nobody_waits() {
    let mut s = station();
    let most = 16;
    for round in 0..2 {
        for at in 1..most {
            s.post(unsignaled(1));
            recv!(s, 0, not_asking(sq(round * most + at - 1)), &[0]);
        }
        s.post(unsignaled(1));
        recv!(s, 0, asking(sq(round * most + most - 1)), &[0]);
        send!(s, 0, ack(sq(round * most + most - 1), 1));
    }
}

#[test]
fn with_a_short_timeout_or_a_counter_each_asks() {
    let mut s = Station::new(&Options { timeout: 10, ..Options::rc().over_memory(1024) });
    s.post(unsignaled(1));
    recv!(s, 0, asking(sq(0)), &[0]);
    let mut s = station();
    s.qp.set_counted(true);
    s.post(unsignaled(1));
    recv!(s, 0, asking(sq(0)), &[0]);
}

/// The next operation would wait for it, or become a packet.
#[test]
fn where_operations_go_directly_each_asks() {
    let peer = Station::new(&Options::rc());
    let direct = |s: &mut Station| s.host.direct = Some(peer.host.memory.clone());
    let mut s = met(options());
    direct(&mut s);
    s.post(build::write(1, BASE, 1, BASE + 64));
    recv_nothing!(s, 0);
    s.post(unsignaled(2));
    recv!(s, 0, asking(sq(1)), &[0]);

    let mut s = station();
    direct(&mut s);
    s.post(unsignaled(1));
    recv!(s, 0, not_asking(sq(0)), &[0]);
    // Something is in flight, so that it cannot go directly.
    s.post(build::write(2, BASE, 1, BASE + 64));
    s.at(0);
    s.host.out.clear();
    s.post(unsignaled(3));
    recv!(s, 0, asking(sq(2)), &[0]);
}

#[test]
fn what_is_sent_again_asks() {
    let mut s = station();
    s.post(unsignaled(1));
    recv!(s, 0, not_asking(sq(0)), &[0]);
    recv!(s, 67_109, asking(sq(0)), &[0]);
}

#[test]
fn what_was_not_asked_for_waits_for_the_next_that_is() {
    let mut s = station();
    send!(s, 0, not_asking(rq(0)), b"a");
    send!(s, 1, not_asking(rq(1)), b"b");
    recv_nothing!(s, 1_000);
    assert!(s.qp.holds_ack() && !s.qp.owes_answers());
    assert_eq!(s.qp.poll_timeout(), None);
    send!(s, 1_001, asking(rq(2)), b"c");
    assert!(!s.qp.holds_ack());
    recv!(s, 1_001, ack(rq(2), 3));
    recv_nothing!(s, 2_000);
}

#[test]
fn what_was_not_asked_for_goes_when_it_is_released() {
    let mut s = station();
    send!(s, 0, not_asking(rq(0)), b"a");
    recv_nothing!(s, 1);
    s.qp.release_ack();
    recv!(s, 1, ack(rq(0), 1));
}

#[test]
fn what_was_not_asked_for_follows_a_request() {
    let mut s = station();
    send!(s, 0, not_asking(rq(0)), b"a");
    s.post(signaled(1));
    recv!(s, 1, asking(sq(0)), b"a");
    recv!(s, 1, ack(rq(0), 1));
}

#[test]
fn what_was_not_asked_for_goes_before_an_answer_with_data() {
    let mut s = station();
    send!(s, 0, not_asking(rq(0)), b"a");
    send!(s, 1, packet(Opcode::RcReadRequest, rq(1)).with_reth(BASE, 1).ackreq());
    recv!(s, 1, ack(rq(0), 2));
    let response = packet(Opcode::RcReadResponseOnly, rq(1)).with_aeth(Syndrome::ACK, 2);
    recv!(s, 1, response, b"a");
}

/// The program has seen the message, and then fails with a request of its own.
#[test]
fn what_was_not_asked_for_is_not_lost_in_an_error() {
    let mut s = station();
    send!(s, 0, not_asking(rq(0)), b"a");
    s.post(build::read(1, 0xdead_0000, 1, 0x9000));
    recv!(s, 1, ack(rq(0), 1));
    s.received(7, WcStatus::Success);
    s.sent(1, WcStatus::LocProtErr);
    assert_eq!(s.qp.state(), QpState::Err);
}

/// A foreign peer on a wire decides for itself when it asks.
#[test]
fn on_a_wire_what_was_not_asked_for_is_not_sent() {
    let mut s = Station::new(&Options::rc());
    s.post_recv(build::recv(7, BASE, 10));
    send!(s, 0, not_asking(rq(0)), b"a");
    recv_nothing!(s, 1_000);
    assert!(!s.qp.holds_ack());
}
