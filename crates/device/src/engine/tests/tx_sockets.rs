//! Transmit sockets to busy destinations, between two processes.

use std::time::Duration;

use iba::QpType;

use crate::engine::Turn;
use crate::rig::{self, Process};

/// More trains than it takes to make a destination busy, and then a source.
const MANY: u64 = 800;

/// Sends messages, and lets the other process receive each.
fn send(count: u64, pair: &mut [Process; 2]) {
    for wr_id in 0..count {
        rig::exchange(pair, wr_id);
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
fn messages_use_a_transmit_socket_and_continue_without_it_when_it_breaks() {
    let mut pair = busy_pair("tx-sockets");
    for process in &mut pair {
        let Process { engine, .. } = process;
        let tx_sockets = engine.common.out.udp.open_tx_sockets().collect::<Vec<_>>();
        assert_eq!(tx_sockets.len(), 1, "one process, one transmit socket");
        assert_eq!(engine.counters().rx_malformed_packets, 0);
        let udp = engine.receivers.udp.link().expect("a socket");
        assert_eq!(udp.rx_sockets(), 1, "one process, one receive socket");
        // From now on, the kernel refuses.
        udp.close_tx_socket(tx_sockets[0]);
    }
    send(MANY, &mut pair);
    for process in &pair {
        assert_eq!(
            process.engine.common.out.udp.open_tx_sockets().count(),
            0,
            "it is not asked for at once"
        );
        assert_eq!(process.engine.counters().dropped_packets, 0);
    }
}

#[test]
fn a_transmit_socket_where_nothing_gets_through_is_given_up_before_the_peer_is() {
    let mut pair = busy_pair("silent-tx-socket");
    let [one, other] = &mut pair;
    assert_eq!(one.engine.common.out.udp.open_tx_sockets().count(), 1);
    other.post_recv(1);
    one.send(1);
    for timeouts in 1..=2 {
        assert_eq!(
            one.engine.common.out.udp.open_tx_sockets().count(),
            1,
            "before timeout {timeouts}"
        );
        one.engine.clock.pass(Duration::from_secs(1));
        one.engine.progress(Turn::Everything);
    }
    assert_eq!(one.engine.common.out.udp.open_tx_sockets().count(), 0);
    rig::run(&mut [&mut one.engine, &mut other.engine]);
    assert_eq!((one.completed(), other.completed()), (vec![1], vec![1]));
}
