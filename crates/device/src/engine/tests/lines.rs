//! Lines to busy destinations.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use iba::{Av, QpType};
use link::udp::{LineId, Options, UdpLink};
use transport::Time;
use transport::env::{LocalError, TransmitError};
use wire::icrc::{self, Flow};

use super::super::lines::Lines;
use super::super::udp::UdpQueue;
use super::headers;
use crate::rig::{self, Process};

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// More trains than make a destination a busy one, and then a source.
const MANY: u64 = 800;
/// Longer than a destination that nothing goes to keeps its line.
const LONG: Duration = Duration::from_secs(30);

fn push(queue: &mut UdpQueue, traffic_class: u8, fill: Result<(), TransmitError>) {
    let av = Av { dgid: HERE.into(), traffic_class, ..Av::default() };
    let pushed = queue.push(HERE.into(), &av, &headers(), 8, |room| {
        room.fill(3);
        fill
    });
    assert_eq!(pushed, fill);
}

/// The line of the first batch, and the identifications that its ICRCs are for, if the packets go
/// between these ports.
fn front(queue: &UdpQueue, [from, to]: [u16; 2]) -> (Option<LineId>, Vec<u16>) {
    let flow = Flow::new((HERE, from).into(), (HERE, to).into()).expect("one version");
    let batch = queue.front().expect("a batch");
    let ids = batch.bytes().chunks(batch.segment);
    (batch.line, ids.map(|packet| icrc::verify(&flow, packet).expect("right").1).collect())
}

/// A queue whose packets go to its own link, the line that this busy destination was given, and
/// between which ports packets go without it and on it.
struct WithLine {
    queue: UdpQueue,
    udp: UdpLink,
    line: LineId,
    usual: [u16; 2],
    on_it: [u16; 2],
}

fn with_line() -> WithLine {
    let mut udp = UdpLink::bind(0, Options::default()).expect("a free port");
    let port = udp.port();
    let usual = [port; 2];
    let mut queue = UdpQueue::new(64, port, port).with(Lines::new(true));
    while !queue.lines.are_asked_for() {
        push(&mut queue, 0, Ok(()));
        assert_eq!(front(&queue, usual), (None, vec![0]));
        queue.pop();
    }
    queue.lines.open_asked(&mut udp);
    push(&mut queue, 0, Ok(()));
    let batch = queue.front().expect("a batch");
    let line = batch.line.expect("a line");
    let on_it = [udp.line_port(line).expect("it is open"), port];
    queue.pop();
    WithLine { queue, udp, line, usual, on_it }
}

#[test]
fn a_train_on_a_line_begins_one_after_the_one_before() {
    let WithLine { mut queue, line, usual, on_it, .. } = with_line();
    push(&mut queue, 0, Ok(()));
    push(&mut queue, 0, Ok(()));
    let (on, ids) = front(&queue, on_it);
    let first = ids[0];
    assert_eq!((on, ids), (Some(line), vec![first, first.wrapping_add(1)]));
    queue.pop();
    // One that is not sent takes no place.
    push(&mut queue, 0, Err(TransmitError::Memory(LocalError::Fault)));
    assert!(queue.front().is_none());
    push(&mut queue, 0, Ok(()));
    assert_eq!(front(&queue, on_it), (Some(line), vec![first.wrapping_add(1)]));
    queue.pop();
    push(&mut queue, 4, Ok(()));
    assert_eq!(front(&queue, usual), (None, vec![0]), "another class is another destination");
}

#[test]
fn what_waits_for_a_line_that_breaks_goes_the_usual_way() {
    let WithLine { mut queue, line, usual, on_it, .. } = with_line();
    for _ in 0..3 {
        push(&mut queue, 0, Ok(()));
    }
    assert_eq!(front(&queue, on_it).0, Some(line));
    queue.line_broke(line);
    assert_eq!(front(&queue, usual), (None, vec![0, 1, 2]));
    queue.pop();
    push(&mut queue, 0, Ok(()));
    assert_eq!(front(&queue, usual), (None, vec![0]));
}

#[test]
fn a_line_that_is_not_used_is_closed() {
    let WithLine { mut queue, mut udp, line, usual, .. } = with_line();
    let after = |times: u32| Time::ZERO + LONG * times;
    queue.lines.sweep(after(1), &mut udp);
    assert!(udp.line_port(line).is_some(), "it was in use");
    queue.lines.sweep(after(2), &mut udp);
    assert!(udp.line_port(line).is_none());
    push(&mut queue, 0, Ok(()));
    assert_eq!(front(&queue, usual), (None, vec![0]));
}

/// Sends messages, and lets the other process receive each.
fn send(count: u64, [one, other]: &mut [Process; 2]) {
    for wr_id in 0..count {
        other.post_recv(wr_id);
        one.send(wr_id);
        let (mut sent, mut received) = (false, false);
        let began = Instant::now();
        while !(sent && received) {
            assert!(began.elapsed() < LONG, "message {wr_id}: {sent} {received}");
            one.engine.progress_fully();
            other.engine.progress_fully();
            sent |= one.completed().contains(&wr_id);
            received |= other.completed().contains(&wr_id);
        }
    }
}

/// Two processes after much was sent.
fn busy_pair(test: &str) -> [Process; 2] {
    let mut nic = rig::nic(test);
    nic.config.force_udp = true;
    let mut pair = Process::pair(&nic, QpType::Rc);
    send(MANY, &mut pair);
    pair
}

#[test]
fn messages_go_on_a_line_and_without_it_when_it_breaks() {
    let mut pair = busy_pair("lines");
    for process in &mut pair {
        let Process { engine, .. } = process;
        let lines = engine.core.udp.lines.open().collect::<Vec<_>>();
        assert_eq!(lines.len(), 1, "one process, one line");
        assert_eq!(engine.counters().rx_malformed_packets, 0);
        let udp = engine.receivers.udp.as_mut().expect("a socket");
        assert_eq!(udp.inlets(), 1, "one process, one inlet");
        // The kernel says no from now on.
        udp.close_line(lines[0]);
    }
    send(MANY, &mut pair);
    for process in &pair {
        assert_eq!(process.engine.core.udp.lines.open().count(), 0, "it is not asked for at once");
        assert_eq!(process.engine.counters().dropped_packets, 0);
    }
}

#[test]
fn a_line_where_nothing_gets_through_is_given_up_before_the_peer_is() {
    let mut pair = busy_pair("silent-line");
    let [one, other] = &mut pair;
    assert_eq!(one.engine.core.udp.lines.open().count(), 1);
    other.post_recv(1);
    one.send(1);
    for timeouts in 1..=2 {
        assert_eq!(one.engine.core.udp.lines.open().count(), 1, "before timeout {timeouts}");
        one.engine.clock.pass(Duration::from_secs(1));
        one.engine.progress_fully();
    }
    assert_eq!(one.engine.core.udp.lines.open().count(), 0);
    rig::run(&mut [&mut one.engine, &mut other.engine]);
    assert_eq!((one.completed(), other.completed()), (vec![1], vec![1]));
}
