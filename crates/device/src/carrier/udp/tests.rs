//! The sending half by itself.

mod ends;
mod trains;
mod tx_sockets;

use std::net::IpAddr;

use iba::{Av, Psn, Qpn};
use wire::{Headers, Opcode};

use super::UdpQueue;

fn headers() -> Headers {
    Headers::new(Opcode::RcSendOnly, Qpn::new(0x1234), Psn::new(77))
}

#[test]
fn datagrams_are_batched_by_size_and_destination() {
    let mut queue = UdpQueue::new(64, 4791, 4791);
    let (here, there) = (
        IpAddr::from([10, 0, 0, 1]),
        Av { dgid: IpAddr::from([10, 0, 0, 2]).into(), ..Av::default() },
    );
    let mut push = |length: u32, av: &Av| {
        queue.push(here.into(), av, &headers(), length, |room| {
            room.fill(0x5a);
            Ok(())
        })
    };
    // Three of one size, a shorter one that ends the batch, then another batch.
    for length in [1024, 1024, 1024, 100, 1024] {
        assert!(push(length, &there).is_ok());
    }
    let first = queue.front().unwrap();
    assert_eq!((first.count, first.segment), (4, 12 + 1024 + 4));
    assert_eq!(first.bytes().len(), 3 * 1040 + 12 + 100 + 4);
    queue.pop();
    assert_eq!(queue.front().unwrap().count, 1);
    queue.pop();
    assert!(queue.front().is_none());
}

#[test]
fn every_datagram_of_a_batch_has_the_icrc_of_its_index() {
    let mut queue = UdpQueue::new(64, 4791, 4791);
    let (src, dst) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
    let av = Av { dgid: dst.into(), ..Av::default() };
    for length in [8, 8, 5] {
        assert!(
            queue
                .push(src.into(), &av, &headers(), length, |room| {
                    room.fill(3);
                    Ok(())
                })
                .is_ok()
        );
    }
    let batch = queue.front().unwrap();
    let flow = wire::icrc::Flow::new((src, 4791).into(), (dst, 4791).into()).unwrap();
    for (index, datagram) in batch.bytes().chunks(batch.segment).enumerate() {
        let (packet, id) = wire::icrc::verify(&flow, datagram).unwrap();
        assert_eq!(usize::from(id), index);
        let (parsed, payload) = Headers::parse(packet).unwrap();
        assert_eq!(parsed.bth.dest_qp, headers().bth.dest_qp);
        assert_eq!(payload.len(), [8, 8, 5][index]);
    }
}

/// Pushes messages of eight bytes to one destination.
fn push_eight(queue: &mut UdpQueue, count: usize) {
    let (src, dst) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
    let av = Av { dgid: dst.into(), ..Av::default() };
    for _ in 0..count {
        let pushed = queue.push(src.into(), &av, &headers(), 8, |room| {
            room.fill(3);
            Ok(())
        });
        assert!(pushed.is_ok());
    }
}

/// The IPv4 ids that the ICRCs of the first batch are for.
fn ids_of_front(queue: &UdpQueue) -> Vec<u16> {
    let (src, dst) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
    let flow = wire::icrc::Flow::new((src, 4791).into(), (dst, 4791).into()).unwrap();
    let batch = queue.front().unwrap();
    let datagrams = batch.bytes().chunks(batch.segment);
    datagrams.map(|datagram| wire::icrc::verify(&flow, datagram).unwrap().1).collect()
}

#[test]
fn datagrams_left_by_a_full_socket_count_from_zero_again() {
    let mut queue = UdpQueue::new(64, 4791, 4791);
    push_eight(&mut queue, 5);
    assert_eq!(ids_of_front(&queue), [0, 1, 2, 3, 4]);
    let two = 2 * queue.front().unwrap().segment;
    queue.sent(two);
    assert_eq!(ids_of_front(&queue), [0, 1, 2]);
    assert_eq!(queue.front().unwrap().count, 3);
}

/// The kernel refuses to split: waiting datagrams are now sent one by one, each with the id 0.
#[test]
fn batches_that_will_not_be_sent_as_trains_are_resealed() {
    let mut queue = UdpQueue::new(3, 4791, 4791);
    push_eight(&mut queue, 5);
    assert_eq!(ids_of_front(&queue), [0, 1, 2]);
    queue.set_max_segments(1);
    let one = queue.front().unwrap().segment;
    queue.sent(one);
    assert_eq!(ids_of_front(&queue), [0, 0]);
    queue.pop();
    assert_eq!(ids_of_front(&queue), [0, 0], "those that waited behind it, too");
    queue.pop();
    push_eight(&mut queue, 2);
    assert_eq!(ids_of_front(&queue), [0]);
}
