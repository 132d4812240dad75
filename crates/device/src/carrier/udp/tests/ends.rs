//! The two halves together. All ends of RoCEv2 have one port, so here an end sends to itself.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use iba::Av;
use link::udp::{Options, UdpLink};
use wire::icrc::{self, Flow};

use super::headers;
use crate::carrier::udp::{Look, Receiver, UdpQueue};
use crate::counters::PortCounters;

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const SOON: Duration = Duration::from_secs(10);

fn bound() -> (Receiver, u16) {
    let link = UdpLink::bind(0, Options::default()).expect("a free port");
    let port = link.port();
    (Receiver::new(Some(link), port), port)
}

fn queue_of(count: u32, port: u16) -> UdpQueue {
    let mut queue = UdpQueue::new(64, port, port);
    let av = Av { dgid: HERE.into(), ..Av::default() };
    for index in 0..count {
        let pushed = queue.push(HERE.into(), &av, &headers(), 8, |room| {
            room.fill(index as u8);
            Ok(())
        });
        assert_eq!(pushed, Ok(()));
    }
    queue
}

#[test]
fn the_receiving_half_takes_what_the_sending_half_queued_in_order_with_its_icrc() {
    let (mut end, port) = bound();
    let mut queue = queue_of(20, port);
    let (mut counters, mut left) = (PortCounters::new(1), Vec::new());
    end.flush(&mut queue, |_| true, &mut counters, |batch, from| left.push((batch.count, from)));
    assert!(queue.front().is_none(), "the socket had room");
    assert_eq!(left.iter().map(|(count, _)| count).sum::<usize>(), 20);
    assert!(left.iter().all(|(_, from)| *from == port));
    assert_eq!((counters.first.tx_udp_packets, counters.first.dropped_packets), (20, 0));

    let flow = Flow::new((HERE, port).into(), (HERE, port).into()).expect("one version");
    let (mut came, began) = (Vec::new(), Instant::now());
    while came.len() < 20 {
        assert!(began.elapsed() < SOON, "{came:?}");
        end.receive(Look::Everywhere, |about, train, _| {
            assert_eq!((about.src, about.dst), ((HERE, port).into(), (HERE, port).into()));
            for datagram in train.payloads() {
                let (packet, _) = icrc::verify(&flow, datagram).expect("nobody touched it");
                came.push(packet[packet.len() - 1]);
            }
        });
    }
    assert_eq!(came, (0..20).collect::<Vec<u8>>());
    assert!(end.is_hot(), "the next poll looks again");
}

#[test]
fn without_a_socket_everything_is_dropped_and_nothing_arrives() {
    let mut nobody = Receiver::new(None, 4791);
    let mut queue = queue_of(3, 4791);
    let mut counters = PortCounters::new(1);
    nobody.flush(&mut queue, |_| true, &mut counters, |_, _| panic!("nothing goes"));
    assert!(queue.front().is_none());
    assert_eq!((counters.first.tx_udp_packets, counters.first.dropped_packets), (0, 1), "batches");
    assert_eq!(nobody.receive(Look::Everywhere, |_, _, _| panic!("nothing comes")), 0);
    assert!(nobody.deadline(&queue).is_none() && !nobody.wants_upkeep());
}
