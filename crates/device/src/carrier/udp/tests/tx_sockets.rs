//! Transmit sockets to busy destinations.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use iba::Av;
use link::udp::{Options, TxSocketId, UdpLink};
use transport::Time;
use transport::env::{LocalError, TransmitError};
use wire::icrc::{self, Flow};

use super::headers;
use crate::carrier::udp::queue::UdpQueue;
use crate::carrier::udp::tx_sockets::TxSockets;

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
/// Longer than an idle destination keeps its transmit socket.
const LONG: Duration = Duration::from_secs(30);

fn push(queue: &mut UdpQueue, traffic_class: u8, fill: Result<(), TransmitError>) {
    let av = Av { dgid: HERE.into(), traffic_class, ..Av::default() };
    let pushed = queue.push(HERE.into(), &av, &headers(), 8, |room| {
        room.fill(3);
        fill
    });
    assert_eq!(pushed, fill);
}

/// The transmit socket of the first batch, and the identifications that its ICRCs are for, if the
/// packets travel between these ports.
fn front(queue: &UdpQueue, [from, to]: [u16; 2]) -> (Option<TxSocketId>, Vec<u16>) {
    let flow = Flow::new((HERE, from).into(), (HERE, to).into()).expect("one version");
    let batch = queue.front().expect("a batch");
    let ids = batch.bytes().chunks(batch.segment);
    (batch.tx_socket, ids.map(|packet| icrc::verify(&flow, packet).expect("right").1).collect())
}

/// A queue whose packets go to its own link, the transmit socket of this busy destination, and the
/// ports of packets without it and on it.
struct WithTxSocket {
    queue: UdpQueue,
    udp: UdpLink,
    tx_socket: TxSocketId,
    usual: [u16; 2],
    on_it: [u16; 2],
}

fn with_tx_socket() -> WithTxSocket {
    let mut udp = UdpLink::bind(0, Options::default()).expect("a free port");
    let port = udp.port();
    let usual = [port; 2];
    let mut queue = UdpQueue::new(64, port, port).with(TxSockets::new(true), false);
    while !queue.tx_sockets.are_asked_for() {
        push(&mut queue, 0, Ok(()));
        assert_eq!(front(&queue, usual), (None, vec![0]));
        queue.pop();
    }
    queue.tx_sockets.open_asked(&mut udp);
    push(&mut queue, 0, Ok(()));
    let batch = queue.front().expect("a batch");
    let tx_socket = batch.tx_socket.expect("a transmit socket");
    let on_it = [udp.tx_socket_port(tx_socket).expect("it is open"), port];
    queue.pop();
    WithTxSocket { queue, udp, tx_socket, usual, on_it }
}

#[test]
fn a_train_on_a_transmit_socket_begins_one_identification_after_the_last() {
    let WithTxSocket { mut queue, tx_socket, usual, on_it, .. } = with_tx_socket();
    push(&mut queue, 0, Ok(()));
    push(&mut queue, 0, Ok(()));
    let (on, ids) = front(&queue, on_it);
    let first = ids[0];
    assert_eq!((on, ids), (Some(tx_socket), vec![first, first.wrapping_add(1)]));
    queue.pop();
    // A packet that is not sent takes no identification.
    push(&mut queue, 0, Err(TransmitError::Memory(LocalError::Fault)));
    assert!(queue.front().is_none());
    push(&mut queue, 0, Ok(()));
    assert_eq!(front(&queue, on_it), (Some(tx_socket), vec![first.wrapping_add(1)]));
    queue.pop();
    push(&mut queue, 4, Ok(()));
    assert_eq!(front(&queue, usual), (None, vec![0]), "another class is another destination");
}

#[test]
fn batches_for_a_transmit_socket_that_breaks_are_sent_like_others() {
    let WithTxSocket { mut queue, tx_socket, usual, on_it, .. } = with_tx_socket();
    for _ in 0..3 {
        push(&mut queue, 0, Ok(()));
    }
    assert_eq!(front(&queue, on_it).0, Some(tx_socket));
    queue.tx_socket_broke(tx_socket);
    assert_eq!(front(&queue, usual), (None, vec![0, 1, 2]));
    queue.pop();
    push(&mut queue, 0, Ok(()));
    assert_eq!(front(&queue, usual), (None, vec![0]));
}

#[test]
fn an_unused_transmit_socket_is_closed() {
    let WithTxSocket { mut queue, mut udp, tx_socket, usual, .. } = with_tx_socket();
    let after = |times: u32| Time::ZERO + LONG * times;
    queue.tx_sockets.sweep(after(1), &mut udp);
    assert!(udp.tx_socket_port(tx_socket).is_some(), "it was in use");
    queue.tx_sockets.sweep(after(2), &mut udp);
    assert!(udp.tx_socket_port(tx_socket).is_none());
    push(&mut queue, 0, Ok(()));
    assert_eq!(front(&queue, usual), (None, vec![0]));
}
