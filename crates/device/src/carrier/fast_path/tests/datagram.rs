//! Datagrams.

use std::net::IpAddr;

use iba::{Av, Gid, Msn, Psn, Qpn};
use transport::FastPacket;
use transport::env::TransmitError;
use wire::icrc;
use zerocopy::IntoBytes;

use crate::carrier::fast_path::{headers, read_datagram};
use crate::carrier::udp::queue::UdpQueue;

const DEST: Qpn = Qpn::new(0x8012);
const PAYLOAD: [u8; 8] = *b"payload!";

fn packets() -> [(FastPacket, u32); 5] {
    let psn = Psn::new(0xab_cdef);
    [
        (FastPacket::Send { psn, se: false, ackreq: true }, 8),
        (FastPacket::Send { psn, se: true, ackreq: true }, 3),
        (FastPacket::Send { psn, se: false, ackreq: false }, 0),
        (FastPacket::Send { psn, se: false, ackreq: true }, 5),
        (FastPacket::Ack { psn, msn: Msn::new(0x12_3456) }, 0),
    ]
}

/// A train of the packet, built by `put`.
fn train(put: impl FnOnce(&mut UdpQueue, Gid, &Av)) -> Vec<u8> {
    let mut queue = UdpQueue::new(4, 4791, 4791);
    let av = Av { dgid: IpAddr::from([10, 0, 0, 2]).into(), ..Av::default() };
    put(&mut queue, IpAddr::from([10, 0, 0, 1]).into(), &av);
    queue.front().expect("a train").bytes().to_vec()
}

fn datagram(packet: FastPacket, length: u32) -> Vec<u8> {
    let (words, size) = headers(packet, DEST, length);
    let fill = |room: &mut [u8]| {
        room.copy_from_slice(&PAYLOAD[..length as usize]);
        Ok(())
    };
    train(|queue, here, av| {
        let headers = &words.as_bytes()[..size];
        queue.push_fast(here, av, DEST, headers, length, fill).expect("there is room");
    })
}

#[test]
fn a_datagram_is_the_same_whichever_path_its_packet_takes() {
    for (packet, length) in packets() {
        let long = train(|queue, here, av| {
            let fill = |room: &mut [u8]| {
                room.copy_from_slice(&PAYLOAD[..length as usize]);
                Ok(())
            };
            let headers = packet.headers(DEST, length);
            queue.push(here, av, &headers, length, fill).expect("there is room");
        });
        assert_eq!(datagram(packet, length), long, "{packet:?}");
    }
}

#[test]
fn a_datagram_with_anything_else_in_it_takes_the_full_path() {
    for (packet, length) in packets() {
        let sealed = datagram(packet, length);
        let bytes = &sealed[..sealed.len() - icrc::LEN];
        let payload = &PAYLOAD[..length as usize];
        assert_eq!(read_datagram(bytes), Some((packet, DEST, payload)));
        for short in 0..bytes.len() {
            let is_whole = read_datagram(&bytes[..short]).is_none_or(|(_, _, payload)| {
                // Four bytes less make a shorter message, if they were all payload.
                payload.len() + 4 * ((bytes.len() - short) / 4) == length as usize
            });
            assert!(is_whole, "{packet:?}, {short} bytes of it");
        }

        // The bytes that may differ: numbers, whether the receiver raises an event, and whether it
        // acknowledges at once.
        let may_differ = |at: usize| matches!(at, 5..=7 | 9..=11 | 13..=15);
        let (_, size) = headers(packet, DEST, length);
        for at in (0..size).filter(|at| !may_differ(*at)) {
            for bit in 0..8 {
                let mut bytes = bytes.to_vec();
                bytes[at] ^= 1 << bit;
                let is_send = matches!(packet, FastPacket::Send { .. });
                // Another padding means another length.
                let is_allowed = match at {
                    1 => bit == 7 || bit == 4 || bit == 5,
                    8 => bit == 7,
                    _ => false,
                } && is_send;
                let read = read_datagram(&bytes);
                assert!(read.is_none() || is_allowed, "{packet:?}, byte {at}, bit {bit}");
            }
        }
    }
}

#[test]
fn a_packet_whose_memory_is_gone_leaves_nothing_in_a_train() {
    let gone = TransmitError::Memory(transport::env::LocalError::Fault);
    let mut queue = UdpQueue::new(4, 4791, 4791);
    let av = Av { dgid: IpAddr::from([10, 0, 0, 2]).into(), ..Av::default() };
    let here = IpAddr::from([10, 0, 0, 1]).into();
    let (words, size) =
        headers(FastPacket::Send { psn: Psn::new(1), se: false, ackreq: true }, DEST, 8);
    let headers = &words.as_bytes()[..size];
    let refused = queue.push_fast(here, &av, DEST, headers, 8, |_| Err(gone));
    assert_eq!(refused, Err(gone));
    assert!(queue.front().is_none());
}
