//! The ICRC compared with a second implementation that shares no code with the crate, and with
//! values from other sources.

use iba::{Psn, Qpn};
use proptest::prelude::*;
use wire::icrc::{self, Sealer, Verifier};
use wire::{Flow, Headers, Icrc, IcrcError, IdSpan, Opcode};

/// CRC-32 one bit at a time: a shift register with taps, as in a circuit.
fn crc32_bitwise(bytes: &[u8]) -> u32 {
    let mut register = 0xffff_ffff_u32;
    for byte in bytes {
        for bit in 0..8 {
            let feedback = (register ^ u32::from(byte >> bit)) & 1;
            register >>= 1;
            if feedback == 1 {
                register ^= 0xedb8_8320;
            }
        }
    }
    !register
}

/// The ICRC of a whole IPv4 packet as on the wire, without its ICRC: copies it, and sets ones where
/// the standard says so.
fn icrc_of_ipv4(ip_packet: &[u8]) -> u32 {
    let mut bytes = vec![0xff; 8];
    bytes.extend(ip_packet);
    let ip = &mut bytes[8..];
    ip[1] = 0xff; // type of service
    ip[8] = 0xff; // time to live
    ip[10..12].fill(0xff); // header checksum
    ip[26..28].fill(0xff); // UDP checksum
    ip[32] = 0xff; // FECN, BECN, reserved
    crc32_bitwise(&bytes)
}

/// The same for IPv6.
fn icrc_of_ipv6(ip_packet: &[u8]) -> u32 {
    let mut bytes = vec![0xff; 8];
    bytes.extend(ip_packet);
    let ip = &mut bytes[8..];
    ip[0] |= 0x0f; // traffic class
    ip[1..4].fill(0xff); // traffic class, flow label
    ip[7] = 0xff; // hop limit
    ip[46..48].fill(0xff); // UDP checksum
    ip[52] = 0xff; // FECN, BECN, reserved
    crc32_bitwise(&bytes)
}

/// An IPv4 packet around `packet`, with values in the fields that the ICRC must ignore.
fn in_ipv4(src: [u8; 4], dst: [u8; 4], src_port: u16, id: u16, packet: &[u8]) -> Vec<u8> {
    let udp_len = 8 + packet.len() as u16 + 4;
    let mut bytes = vec![0x45, 0x02];
    bytes.extend((20 + udp_len).to_be_bytes());
    bytes.extend(id.to_be_bytes());
    bytes.extend([0x40, 0, 61, 17, 0xab, 0xcd]);
    bytes.extend(src);
    bytes.extend(dst);
    bytes.extend(src_port.to_be_bytes());
    bytes.extend(4791_u16.to_be_bytes());
    bytes.extend(udp_len.to_be_bytes());
    bytes.extend([0x12, 0x34]);
    bytes.extend(packet);
    bytes
}

fn in_ipv6(src: [u8; 16], dst: [u8; 16], src_port: u16, packet: &[u8]) -> Vec<u8> {
    let udp_len = 8 + packet.len() as u16 + 4;
    let mut bytes = vec![0x60, 0x21, 0x43, 0x65];
    bytes.extend(udp_len.to_be_bytes());
    bytes.extend([17, 61]);
    bytes.extend(src);
    bytes.extend(dst);
    bytes.extend(src_port.to_be_bytes());
    bytes.extend(4791_u16.to_be_bytes());
    bytes.extend(udp_len.to_be_bytes());
    bytes.extend([0x12, 0x34]);
    bytes.extend(packet);
    bytes
}

fn flow_v4(src: [u8; 4], dst: [u8; 4], src_port: u16) -> Flow {
    Flow::new((src, src_port).into(), (dst, 4791).into()).unwrap()
}

fn with_icrc(packet: &[u8], icrc: u32) -> Vec<u8> {
    [packet, &icrc.to_le_bytes()].concat()
}

/// Any packet; only its first twelve bytes matter to the ICRC, and all of them to the CRC.
fn packets() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 12..300)
}

proptest! {
    #[test]
    fn ipv4_agrees(src: [u8; 4], dst: [u8; 4], port: u16, id: u16, packet in packets()) {
        let expected = icrc_of_ipv4(&in_ipv4(src, dst, port, id, &packet));
        let flow = flow_v4(src, dst, port);
        prop_assert_eq!(icrc::compute(&flow, id, &packet), expected);
        let of_id_0 = icrc::compute(&flow, 0, &packet);
        prop_assert_eq!(icrc::compute_for_id(&flow, of_id_0, packet.len(), id), expected);
    }

    #[test]
    fn ipv6_agrees(dst: [u8; 15], port: u16, packet in packets()) {
        let mut dst16 = [0xfd; 16];
        dst16[1..].copy_from_slice(&dst);
        let src = [0xfe; 16];
        let expected = icrc_of_ipv6(&in_ipv6(src, dst16, port, &packet));
        let flow = Flow::new((src, port).into(), (dst16, 4791).into()).unwrap();
        prop_assert_eq!(icrc::compute(&flow, 99, &packet), expected);
        prop_assert_eq!(icrc::compute_for_id(&flow, expected, packet.len(), 99), expected);
    }

    #[test]
    fn a_packet_in_pieces_has_the_same_icrc(packet in packets(), cut in 12..300_usize) {
        let cut = cut.min(packet.len());
        let flow = flow_v4([10, 0, 0, 1], [10, 0, 0, 2], 1);
        let mut icrc = Icrc::new(&flow, 3, packet.len(), &packet[..12]);
        icrc.update(&packet[12..cut]);
        icrc.update(&packet[cut..]);
        prop_assert_eq!(icrc.finish(), icrc::compute(&flow, 3, &packet));
    }

    #[test]
    fn a_receiver_finds_the_identification(id: u16, packet in packets()) {
        let flow = flow_v4([10, 9, 0, 1], [10, 9, 0, 2], 49152);
        let datagram = with_icrc(&packet, icrc::compute(&flow, id, &packet));
        prop_assert_eq!(icrc::verify(&flow, &datagram), Ok((&packet[..], id)));
        let mut verifier = Verifier::new();
        for _ in 0..2 {
            prop_assert_eq!(verifier.verify(&flow, &datagram), Ok((&packet[..], id)));
        }
    }

    /// A CRC finds every burst of up to 32 bits. As the identification is free, a damaged packet
    /// may instead look like one with another identification, but never like the original packet.
    #[test]
    fn a_changed_packet_is_detected(
        packet in packets(), at in any::<prop::sample::Index>(), flips in 1..=u8::MAX,
    ) {
        let flow = flow_v4([10, 9, 0, 1], [10, 9, 0, 2], 49152);
        let mut datagram = with_icrc(&packet, icrc::compute(&flow, 0, &packet));
        let at = at.index(packet.len());
        prop_assume!(at != 4); // FECN, BECN and reserved bits may change on the way
        datagram[at] ^= flips;
        match icrc::verify(&flow, &datagram) {
            Ok((_, id)) => prop_assert_ne!(id, 0),
            Err(error) => {
                let is_mismatch = matches!(error, IcrcError::Mismatch { .. });
                prop_assert!(is_mismatch);
            }
        }
    }
}

/// The strength that is left: about one damaged packet in 65,536 passes.
#[test]
fn sixteen_bits_of_strength_remain() {
    let flow = flow_v4([10, 9, 0, 1], [10, 9, 0, 2], 49152);
    let packet = [0x5a; 64];
    let good = icrc::compute(&flow, 0, &packet);
    let trials = 200_000_u32;
    let passed = (1..=trials)
        .map(|trial| trial.wrapping_mul(0x9e37_79b9)) // distinct and well spread
        .filter(|damage| icrc::verify(&flow, &with_icrc(&packet, good ^ damage)).is_ok())
        .count();
    assert!(passed <= 3 * trials as usize / 65_536, "{passed} of {trials} passed");
}

/// The congestion bits may change in transit, as a switch sets them.
#[test]
fn congestion_marks_do_not_matter() {
    let flow = flow_v4([10, 9, 0, 1], [10, 9, 0, 2], 49152);
    let mut packet = [0_u8; 28];
    let icrc = icrc::compute(&flow, 0, &packet);
    packet[4] = 0xc0;
    assert_eq!(icrc::compute(&flow, 0, &packet), icrc);
}

/// The result of one large send that the kernel splits: equal packets with identifications 0, 1, 2,
/// ...
#[test]
fn segments_of_one_send_differ_by_the_span() {
    let flow = flow_v4([10, 9, 0, 1], [10, 9, 0, 2], 49152);
    let packet = [0x5a; 1040];
    let span = IdSpan::new(packet.len());
    for id in 0..64 {
        let icrc = icrc::compute(&flow, 0, &packet) ^ span.delta(id);
        assert_eq!(icrc, icrc::compute(&flow, id, &packet));
    }
}

/// A sealer never uses what it remembers of one packet for a different one.
#[test]
fn a_sealer_agrees_whatever_it_remembers() {
    let flows = [
        flow_v4([10, 9, 0, 1], [10, 9, 0, 2], 49152),
        flow_v4([10, 9, 0, 1], [10, 9, 0, 3], 49152),
        Flow::new(([0xfe; 16], 7).into(), ([0xfd; 16], 4791).into()).unwrap(),
    ];
    let mut sealer = Sealer::new();
    for (n, len) in [12, 64, 64, 100, 4, 1040, 63, 65].into_iter().enumerate() {
        let packet: Vec<u8> = (0..len).map(|byte| (byte * 7 + n) as u8).collect();
        for flow in &flows {
            for id in [0, 1, 63, 64, 0xffff] {
                let sealed = sealer.compute(flow, id, &packet);
                assert_eq!(sealed, icrc::compute(flow, id, &packet), "{flow:?} {id} {len}");
            }
        }
    }
}

proptest! {
    /// The ICRCs of a train, each derived from that of its predecessor, in pieces.
    #[test]
    fn the_icrcs_of_a_train_follow_from_its_first_packet(
        psn in prop_oneof![0..0x100_0000_u32, Just(0xff_ffff), Just(0x00_ffff), Just(0)],
        first_id in prop_oneof![0..64_u16, any::<u16>()],
        bth: [u8; 9],
        payload in proptest::collection::vec(any::<u8>(), 0..600),
    ) {
        let flows = [
            flow_v4([10, 9, 0, 1], [10, 9, 0, 2], 49152),
            Flow::new(([0xfe; 16], 7).into(), ([0xfd; 16], 4791).into()).unwrap(),
        ];
        for flow in &flows {
            let (mut psn, mut id) = (Psn::new(psn), first_id);
            let mut begun = None;
            for _ in 0..5 {
                let header = [&bth[..], &psn.value().to_be_bytes()[1..]].concat();
                let packet = [&header[..], &payload].concat();
                let crc = match begun {
                    Some(before) => {
                        icrc::next_of_train(before, flow, id.wrapping_sub(1), psn.sub(1))
                    }
                    None => Sealer::new().begin(flow, id, packet.len(), &header),
                };
                let (start, end) = payload.split_at(payload.len() / 3);
                let sealed = icrc::go_on(icrc::go_on(crc, start), end);
                prop_assert_eq!(sealed, icrc::compute(flow, id, &packet));
                begun = Some(crc);
                (psn, id) = (psn.add(1), id.wrapping_add(1));
            }
        }
    }
}

/// Lengths that share a slot of the verifier's memory do not affect each other.
#[test]
fn a_verifier_keeps_lengths_apart() {
    let flow = flow_v4([10, 9, 0, 1], [10, 9, 0, 2], 49152);
    let mut verifier = Verifier::new();
    for (id, len) in [(5, 64), (6, 128), (7, 64), (8, 66), (9, 64)] {
        let packet = vec![1; len];
        let datagram = with_icrc(&packet, icrc::compute(&flow, id, &packet));
        assert_eq!(verifier.verify(&flow, &datagram), Ok((&packet[..], id)));
    }
}

/// However a sender's trains begin, and whatever happened to its last packet, a valid packet is
/// accepted and an invalid one is not.
#[test]
fn a_verifier_accepts_valid_packets_whether_or_not_they_were_expected() {
    let flow = flow_v4([10, 9, 0, 1], [10, 9, 0, 2], 49152);
    let mut verifier = Verifier::new();
    let steady = (0..4).map(|_| 0);
    let counting = (0..6).map(|train| 0xfffd_u16.wrapping_add(train));
    let wild = [9, 9, 10, 12, 0x8000, 0, 1, 1, 2].into_iter();
    for first in steady.clone().chain(counting).chain(wild).chain(steady) {
        verifier.begin_train(&flow);
        for index in 0..3_u16 {
            let (id, packet) = (first.wrapping_add(index), vec![7; 16 + 8 * usize::from(index)]);
            let icrc = icrc::compute(&flow, id, &packet);
            let mut bad = with_icrc(&packet, icrc);
            bad[8] ^= 0x40;
            let expected = Err(IcrcError::Mismatch {
                received: icrc,
                expected: icrc::compute(&flow, 0, &bad[..packet.len()]),
            });
            assert_eq!(verifier.verify(&flow, &bad), expected, "{first} {index}");
            let good = with_icrc(&packet, icrc);
            assert_eq!(verifier.verify(&flow, &good), Ok((&packet[..], id)), "{first} {index}");
        }
    }
}

#[test]
fn over_ipv6_no_identification_explains_a_difference() {
    let end = |last| (core::net::Ipv6Addr::new(0xfd00, 0, 0, 0, 0, 0, 0, last), 4791).into();
    let flow = Flow::new(end(1), end(2)).unwrap();
    let packet = [7; 16];
    let good = icrc::compute(&flow, 0, &packet);
    let id_5 = good ^ IdSpan::new(packet.len()).delta(5);
    assert_eq!(icrc::verify(&flow, &with_icrc(&packet, good)), Ok((&packet[..], 0)));
    assert_eq!(
        icrc::verify(&flow, &with_icrc(&packet, id_5)),
        Err(IcrcError::Mismatch { received: id_5, expected: good })
    );
}

#[test]
fn a_datagram_without_room_for_an_icrc_is_refused() {
    let flow = flow_v4([10, 9, 0, 1], [10, 9, 0, 2], 49152);
    for len in 0..icrc::LEN {
        assert!(matches!(icrc::verify(&flow, &vec![0; len]), Err(IcrcError::Parse(_))));
    }
}

/// Values from a separate implementation in Python, whose packets the kernel's rxe accepts.
#[test]
fn known_values_are_computed() {
    let ack = [0x11, 0x40, 0xff, 0xff, 0, 0x12, 0x34, 0x56, 0, 0xab, 0xcd, 0xef, 0x1f, 0, 0, 7];
    let flow = flow_v4([10, 9, 0, 1], [10, 9, 0, 2], 4791);
    assert_eq!(icrc::compute(&flow, 0, &ack).to_le_bytes(), [0xcc, 0xc6, 0xb0, 0x1a]);

    let mut send = vec![0x04, 0x40, 0xff, 0xff, 0, 0, 0, 0x11, 0x80, 0, 0x10, 0];
    send.extend(0..64);
    let flow = flow_v4([192, 168, 1, 20], [192, 168, 1, 9], 0xc0de);
    let value = |id| icrc::compute(&flow, id, &send).to_le_bytes();
    assert_eq!(value(0), [0x42, 0xdc, 0x8d, 0x41]);
    assert_eq!(value(1), [0x80, 0xdd, 0xe8, 0xb4]);
    assert_eq!(value(0xbeef), [0x9f, 0xc2, 0x43, 0x0e]);

    let Flow::V4 { src, dst, src_port, dst_port, .. } = flow else { unreachable!() };
    let fragmentable = Flow::V4 { src, dst, src_port, dst_port, df: false };
    let value = icrc::compute(&fragmentable, 0x1234, &send).to_le_bytes();
    assert_eq!(value, [0x49, 0x7a, 0xb6, 0x6d]);
}

/// A congestion notification that a ConnectX-4 Lx sent, with identification 0x718c: a value from
/// hardware.
#[test]
fn the_icrc_of_a_packet_from_hardware_is_right() {
    let mut headers = Headers::new(Opcode::Cnp, Qpn::new(0x118), Psn::new(0));
    headers.bth.migreq = false;
    headers.bth.becn = true;
    let mut packet = [0; 28];
    headers.emit(&mut packet);
    let flow = flow_v4([10, 0, 17, 1], [10, 0, 18, 1], 0);
    let datagram = with_icrc(&packet, u32::from_le_bytes([0x82, 0xfd, 0x00, 0x2a]));
    assert_eq!(icrc::verify(&flow, &datagram), Ok((&packet[..], 0x718c)));
}
