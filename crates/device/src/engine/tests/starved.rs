//! Datagrams and unreliable messages that find no receive.

use std::time::Duration;

use iba::{QpType, Qpn};

use crate::nic::NicInfo;
use crate::rig::{self, Process, datagram, run, to_rts};

const SHORT: Duration = Duration::from_millis(99);
const REST: Duration = Duration::from_millis(1);

fn out_of_buffer(process: &Process) -> u64 {
    process.engine.counters().out_of_buffer
}

/// A receiver and a sender, connected if the QP type is.
fn pair(test: &str, qp_type: QpType) -> (NicInfo, Process, Process) {
    let nic = rig::nic(test);
    let [mut receiver, mut sender] = Process::pair(&nic, qp_type);
    run(&mut [&mut receiver.engine, &mut sender.engine]);
    (nic, receiver, sender)
}

#[test]
fn a_datagram_waits_for_a_receive_and_is_delivered_when_it_comes() {
    let (nic, mut receiver, mut sender) = pair("starved-ud", QpType::Ud);
    sender.post(datagram(1, &nic, receiver.qpn));
    run(&mut [&mut sender.engine, &mut receiver.engine]);
    assert_eq!(sender.completed(), [1], "sent, as far as its sender knows");
    assert!(receiver.engine.has_blocked(), "the background thread looks again");

    receiver.engine.clock.pass(SHORT);
    run(&mut [&mut receiver.engine]);
    receiver.post_recv(7);
    run(&mut [&mut receiver.engine]);
    assert_eq!(receiver.completed(), [7]);
    assert_eq!(out_of_buffer(&receiver), 0);
    assert!(!receiver.engine.has_blocked());
    // After the space for the GRH.
    let mut bytes = [0; 8];
    receiver.objects.buffer.read(40, &mut bytes).expect("our own memory");
    assert_eq!(u64::from_be_bytes(bytes), 1);
}

#[test]
fn after_its_time_it_is_dropped_and_counted_and_later_messages_continue() {
    let (nic, mut receiver, mut sender) = pair("starved-drop", QpType::Ud);
    for wr_id in [1, 2] {
        sender.post(datagram(wr_id, &nic, receiver.qpn));
    }
    run(&mut [&mut sender.engine, &mut receiver.engine]);
    receiver.engine.clock.pass(SHORT);
    run(&mut [&mut receiver.engine]);
    assert_eq!(out_of_buffer(&receiver), 0);
    receiver.engine.clock.pass(REST);
    run(&mut [&mut receiver.engine]);
    assert_eq!(out_of_buffer(&receiver), 2, "one that waited, and what came behind it");

    // A QP that has had a receive since then waits again.
    receiver.post_recv(7);
    for wr_id in [3, 4] {
        sender.post(datagram(wr_id, &nic, receiver.qpn));
    }
    run(&mut [&mut sender.engine, &mut receiver.engine]);
    assert_eq!(receiver.completed(), [7]);
    receiver.post_recv(8);
    run(&mut [&mut receiver.engine]);
    assert_eq!(receiver.completed(), [8]);
    assert_eq!(out_of_buffer(&receiver), 2);
}

#[test]
fn a_message_of_an_unreliable_connection_also_waits() {
    let (_nic, mut receiver, mut sender) = pair("starved-uc", QpType::Uc);
    sender.send(1);
    run(&mut [&mut sender.engine, &mut receiver.engine]);
    receiver.post_recv(7);
    run(&mut [&mut receiver.engine]);
    assert_eq!(receiver.completed(), [7]);
    assert_eq!(out_of_buffer(&receiver), 0);
}

#[test]
fn messages_of_other_processes_are_not_held_up() {
    let (nic, mut receiver, mut sender) = pair("starved-others", QpType::Ud);
    let (fed, fed_qpn) = receiver.objects.qp(&mut receiver.engine, QpType::Ud);
    to_rts(&mut receiver.engine, fed, QpType::Ud, &nic, Qpn::new(0));
    let wr = receiver.objects.recv(8);
    receiver.engine.post_recv(fed, wr).expect("room for it");
    let mut other = Process::new(&nic, QpType::Ud);
    other.connect(&nic, Qpn::new(0));

    // The first process's datagram to the starved QP also holds up the one sent after it.
    sender.post(datagram(1, &nic, receiver.qpn));
    sender.post(datagram(2, &nic, fed_qpn));
    run(&mut [&mut sender.engine, &mut receiver.engine]);
    assert_eq!(receiver.completed(), [0; 0]);
    other.post(datagram(3, &nic, fed_qpn));
    run(&mut [&mut other.engine, &mut receiver.engine]);
    assert_eq!(receiver.completed(), [8], "another process is not held up");
    let mut bytes = [0; 8];
    receiver.objects.buffer.read(40, &mut bytes).expect("our own memory");
    assert_eq!(u64::from_be_bytes(bytes), 3);
}
