//! Marks of switches and congestion notifications (RoCEv2 Annex A17.9).

use crate::prelude::*;

fn with_ecn(options: Options) -> Station {
    Station::new(&Options { ecn: true, ..options })
}

fn cnp() -> wire::Headers {
    let mut headers = packet(Opcode::Cnp, Psn::new(0));
    (headers.bth.becn, headers.bth.migreq) = (true, false);
    headers
}

/// A SEND that a switch marked.
fn marked(s: &mut Station, micros: u64, number: u32) {
    s.post_recv(build::recv(7, BASE, 4));
    s.marked = true;
    send!(s, micros, packet(Opcode::RcSendOnly, rq(number)), b"mark");
}

#[test]
fn a_marked_packet_is_answered_with_a_notification() {
    let mut s = with_ecn(Options::rc());
    marked(&mut s, 10, 0);
    recv!(s, 10, cnp(), &[0; 16]);
    recv_nothing!(s, 1000);
    assert_eq!(s.host.counted(Counter::NpEcnMarkedRocePackets), 1);
    assert_eq!(s.host.counted(Counter::NpCnpSent), 1);
    s.received(7, WcStatus::Success);
}

#[test]
fn packets_without_a_mark_are_not_answered_with_a_notification() {
    let mut s = with_ecn(Options::rc());
    s.post_recv(build::recv(7, BASE, 4));
    send!(s, 10, packet(Opcode::RcSendOnly, rq(0)), b"good");
    recv_nothing!(s, 1000);
    assert_eq!(s.host.counted(Counter::NpEcnMarkedRocePackets), 0);
}

#[test]
fn a_qp_notifies_once_in_fifty_microseconds() {
    let mut s = with_ecn(Options::rc());
    for (number, micros) in [(0, 10), (1, 11), (2, 59), (3, 60), (4, 61)] {
        marked(&mut s, micros, number);
        if matches!(number, 0 | 3) {
            recv!(s, micros, cnp(), &[0; 16]);
        }
        recv_nothing!(s, micros);
    }
    assert_eq!(s.host.counted(Counter::NpEcnMarkedRocePackets), 5);
    assert_eq!(s.host.counted(Counter::NpCnpSent), 2);
}

#[test]
fn marked_answers_are_answered_too() {
    let mut s = with_ecn(Options::rc());
    s.post(build::read(1, BASE, 4, BASE));
    recv!(s, 0, packet(Opcode::RcReadRequest, sq(0)).ackreq().with_reth(BASE, 4));
    s.marked = true;
    send!(s, 5, packet(Opcode::RcReadResponseOnly, sq(0)).with_aeth(Syndrome::ACK, 1), b"mark");
    recv!(s, 5, cnp(), &[0; 16]);
    s.sent(1, WcStatus::Success);
}

#[test]
fn unreliable_connections_notify_and_datagrams_only_count() {
    let mut s = with_ecn(Options::uc());
    s.post_recv(build::recv(7, BASE, 4));
    s.marked = true;
    send!(s, 10, packet(Opcode::UcSendOnly, rq(0)), b"mark");
    recv!(s, 10, cnp(), &[0; 16]);

    let mut s = with_ecn(Options::ud());
    s.post_recv(build::recv(7, BASE, 100));
    s.marked = true;
    send!(s, 10, packet(Opcode::UdSendOnly, rq(0)).with_deth(QKEY, PEER), b"mark");
    recv_nothing!(s, 1000);
    assert_eq!(s.host.counted(Counter::NpEcnMarkedRocePackets), 1);
}

#[test]
fn a_qp_that_takes_no_part_only_counts() {
    let mut s = Station::new(&Options::rc());
    marked(&mut s, 10, 0);
    send!(s, 20, cnp(), &[0; 16]);
    recv_nothing!(s, 1000);
    assert_eq!(s.host.counted(Counter::NpEcnMarkedRocePackets), 1);
    assert_eq!(s.host.counted(Counter::NpCnpSent), 0);
    assert_eq!(s.host.counted(Counter::RpCnpIgnored), 1);
}

#[test]
fn a_notified_sender_has_fewer_packets_in_flight() {
    let under_way = |notified: bool| {
        let mut s = with_ecn(Options::rc());
        if notified {
            send!(s, 0, cnp(), &[0; 16]);
        }
        s.post(build::write(1, BASE, 60_000, BASE));
        s.at(1);
        s.host.out.len()
    };
    assert_eq!((under_way(false), under_way(true)), (128, 64));
}

#[test]
fn notifications_are_counted_as_obeyed_or_not() {
    for (options, obeyed) in [
        (Options::rc(), 1),
        (Options::uc(), 0),
        (Options::ud(), 0),
        // A carrier that is not a wire has no window that could change.
        (Options::rc().over_memory(4096), 0),
    ] {
        let mut s = with_ecn(options);
        send!(s, 0, cnp(), &[0; 16]);
        assert_eq!(s.host.counted(Counter::RpCnpHandled), obeyed);
        assert_eq!(s.host.counted(Counter::RpCnpIgnored), 1 - obeyed);
        assert_eq!(s.host.counted(Counter::DroppedPacket), 0);
    }
}
