//! The fuzz target of the packet parser without a fuzzer: valid packets of every opcode, damaged by
//! a seeded generator.

use std::collections::BTreeSet;

use iba::{Psn, Qpn};
use wire::{Flow, Headers, Opcode, icrc, pretty};

const ROUNDS: u32 = 150_000;

/// Enough randomness to choose damage with (SplitMix64).
struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ z >> 31
    }

    fn below(&mut self, end: usize) -> usize {
        (self.next() % end as u64) as usize
    }
}

/// A valid packet of each opcode as a UDP payload, and some of them with an IP header as well.
fn seeds() -> Vec<Vec<u8>> {
    let flow = Flow::new(([10, 9, 0, 1], 4791).into(), ([10, 9, 0, 1], 4791).into());
    let flow = flow.expect("both addresses are IPv4");
    let mut seeds = Vec::new();
    for opcode in Opcode::ALL.iter().copied() {
        // Headers of zeros are valid, so only the length matters.
        let mut packet = vec![0; opcode.headers_len() + 16];
        packet[..12].copy_from_slice(&bth_of(opcode));
        let icrc = icrc::compute(&flow, 0, &packet);
        packet.extend(icrc.to_le_bytes());
        let udp_len = 8 + packet.len() as u16;
        let mut ip = vec![0x45, 0];
        ip.extend((20 + udp_len).to_be_bytes());
        ip.extend([0, 0, 0x40, 0, 64, 17, 0, 0, 10, 9, 0, 1, 10, 9, 0, 1, 0x12, 0xb7, 0x12, 0xb7]);
        ip.extend(udp_len.to_be_bytes());
        ip.extend([0, 0]);
        ip.extend(&packet);
        seeds.push(packet);
        seeds.push(ip);
    }
    seeds
}

fn bth_of(opcode: Opcode) -> [u8; 12] {
    let mut bytes = [0; 12];
    let bth = wire::Bth::new(opcode, Qpn::new(0x11), Psn::new(0x1000));
    bytes.copy_from_slice(zerocopy::IntoBytes::as_bytes(&bth.to_raw()));
    bytes
}

fn damage(rng: &mut Rng, bytes: &mut Vec<u8>) {
    match rng.below(6) {
        0 => bytes.truncate(rng.below(bytes.len() + 1)),
        1 => bytes.extend((0..rng.below(9)).map(|_| 0xa5)),
        2 => bytes.drain(..rng.below(bytes.len() + 1)).for_each(drop),
        _ if bytes.is_empty() => {}
        3 => {
            let at = rng.below(bytes.len());
            bytes[at] = rng.next() as u8;
        }
        4 => {
            let at = rng.below(bytes.len());
            bytes[at] ^= 1 << rng.below(8);
        }
        _ => bytes[0] = rng.next() as u8,
    }
}

#[test]
fn seeds_are_valid_packets() {
    let seeds = seeds();
    for datagram in seeds.iter().step_by(2) {
        let (packet, _) = icrc::split(datagram).unwrap();
        assert!(Headers::parse(packet).is_ok());
    }
    for ip in seeds.iter().skip(1).step_by(2) {
        let text = pretty::IpPacket(ip).to_string();
        assert!(text.ends_with(" ok"), "{text}");
    }
}

#[test]
fn damaged_packets_never_panic() {
    let seeds = seeds();
    let mut rng = Rng(0x7065_6572_646d_6121);
    let mut outcomes = BTreeSet::new();
    for _ in 0..ROUNDS {
        let mut bytes = seeds[rng.below(seeds.len())].clone();
        for _ in 0..=rng.below(4) {
            damage(&mut rng, &mut bytes);
        }
        pretty::exercise(&bytes);
        outcomes.insert(match Headers::parse(&bytes) {
            Ok(_) => "read",
            Err(wire::ParseError::Truncated { .. }) => "truncated",
            Err(wire::ParseError::Version(_)) => "version",
            Err(wire::ParseError::UnknownOpcode(_)) => "opcode",
            Err(wire::ParseError::Pad { .. }) => "pad",
            Err(_) => "other",
        });
    }
    // Damage that always led to the same refusal would test only one line.
    assert_eq!(outcomes.len(), 5, "{outcomes:?}");
}
