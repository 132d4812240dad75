//! The checksums of a frame: that of an IPv4 header (RFC 791), and that of TCP or UDP (RFC 9293,
//! RFC 768; over IPv6 RFC 8200).
//!
//! Other contents of a frame, including fragments, have no checksum here: a NIC that offloads
//! checksums leaves such frames alone, too.

use std::ops::Range;

use super::{HEADER, PROTOCOL_TCP, PROTOCOL_UDP, TYPE_IPV4, TYPE_IPV6, TYPE_SERVICE_TAG, TYPE_TAG};
use super::{be16, take};

/// Where the checksums of a frame are, and what they cover.
struct Places {
    /// The IPv4 header.
    ip: Option<Range<usize>>,
    segment: Option<Segment>,
}

/// A TCP segment or a datagram of UDP.
struct Segment {
    range: Range<usize>,
    /// The offset of its checksum in the frame.
    at: usize,
    /// The sum of the pseudo-header.
    pseudo: u32,
    is_udp: bool,
}

/// Writes all checksums, whatever was there before.
#[doc(alias = "IBV_SEND_IP_CSUM")]
pub fn fill(frame: &mut [u8]) {
    let Some(places) = Places::of(frame) else { return };
    if let Some(ip) = places.ip {
        let at = ip.start + 10;
        put(frame, at, 0);
        let sum = !folded(sum(&frame[ip]));
        put(frame, at, sum);
    }
    fill_segment(frame);
}

/// Writes the checksum of TCP or UDP that a sender left to the device.
#[doc(alias = "TP_STATUS_CSUMNOTREADY")]
pub fn fill_segment(frame: &mut [u8]) {
    let Some(segment) = Places::of(frame).and_then(|places| places.segment) else { return };
    put(frame, segment.at, 0);
    let sum = !folded(segment.pseudo + sum(&frame[segment.range]));
    // In UDP, 0 means that there is none.
    put(frame, segment.at, if segment.is_udp && sum == 0 { 0xffff } else { sum });
}

/// Whether a frame is TCP or UDP over IPv4, and both its checksums are right. A UDP datagram
/// without a checksum counts as right.
#[doc(alias = "IBV_WC_IP_CSUM_OK")]
pub fn are_right(frame: &[u8]) -> bool {
    let Some(Places { ip: Some(ip), segment: Some(segment) }) = Places::of(frame) else {
        return false;
    };
    let is_absent = segment.is_udp && be16(frame, segment.at) == Some(0);
    folded(sum(&frame[ip])) == 0xffff
        && (is_absent || folded(segment.pseudo + sum(&frame[segment.range])) == 0xffff)
}

impl Places {
    fn of(frame: &[u8]) -> Option<Self> {
        let (mut ether_type, mut at) = (be16(frame, HEADER - 2)?, HEADER);
        while matches!(ether_type, TYPE_TAG | TYPE_SERVICE_TAG) {
            ether_type = be16(frame, at + 2)?;
            at += 4;
        }
        let packet = frame.get(at..)?;
        match ether_type {
            TYPE_IPV4 => {
                let header = usize::from(packet.first()? & 0xf) * 4;
                let total = usize::from(be16(packet, 2)?);
                if packet[0] >> 4 != 4 || header < 20 || packet.len() < header {
                    return None;
                }
                let is_fragment = be16(packet, 6)? & 0x3fff != 0;
                let addresses = sum(&packet[12..20]);
                let rest = at + header..at + total;
                let segment = (!is_fragment)
                    .then(|| Segment::of(frame, rest, packet[9], addresses))
                    .flatten();
                Some(Self { ip: Some(at..at + header), segment })
            }
            TYPE_IPV6 => {
                let addresses = sum(&take::<32>(packet, 8)?);
                let rest = at + 40..at + 40 + usize::from(be16(packet, 4)?);
                Some(Self { ip: None, segment: Segment::of(frame, rest, packet[6], addresses) })
            }
            _ => None,
        }
    }
}

impl Segment {
    /// The payload of an IP packet: `range` is what follows its header, without the padding of the
    /// frame.
    fn of(frame: &[u8], range: Range<usize>, protocol: u8, addresses: u32) -> Option<Self> {
        let bytes = frame.get(range.clone())?;
        let (length, offset) = match protocol {
            PROTOCOL_TCP if bytes.len() >= 20 => (bytes.len(), 16),
            PROTOCOL_UDP if bytes.len() >= 8 => (usize::from(be16(bytes, 4)?), 6),
            _ => return None,
        };
        if length < 8 || length > bytes.len() {
            return None;
        }
        Some(Self {
            range: range.start..range.start + length,
            at: range.start + offset,
            // At most 64 KiB, so nothing overflows.
            pseudo: addresses + u32::from(protocol) + length as u32,
            is_udp: protocol == PROTOCOL_UDP,
        })
    }
}

/// The sum of 16-bit words; a last odd byte counts as one with a zero after it.
fn sum(bytes: &[u8]) -> u32 {
    let words = bytes.chunks_exact(2);
    let odd = words.remainder().first().map_or(0, |byte| u32::from(*byte) << 8);
    words.map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum::<u32>() + odd
}

/// The ones' complement sum in 16 bits.
fn folded(sum: u32) -> u16 {
    let sum = (sum & 0xffff) + (sum >> 16);
    ((sum & 0xffff) + (sum >> 16)) as u16
}

fn put(frame: &mut [u8], at: usize, value: u16) {
    frame[at..at + 2].copy_from_slice(&value.to_be_bytes());
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// 192.168.1.1:1000 to 192.168.1.2:2000 over UDP, with three bytes and padding.
    fn datagram() -> Vec<u8> {
        let mut bytes = vec![0; 12];
        bytes.extend([8, 0, 0x45, 0, 0, 31, 0x12, 0x34, 0x40, 0, 64, 17, 0, 0]);
        bytes.extend([192, 168, 1, 1, 192, 168, 1, 2]);
        bytes.extend([0x03, 0xe8, 0x07, 0xd0, 0, 11, 0, 0, b'a', b'b', b'c']);
        bytes.resize(60, 0xee);
        bytes
    }

    #[test]
    fn both_checksums_are_written_and_padding_after_the_packet_does_not_count() {
        let mut frame = datagram();
        assert!(!are_right(&frame));
        fill(&mut frame);
        // Added up by hand.
        assert_eq!((be16(&frame, 24), be16(&frame, 40)), (Some(0xa546), Some(0xac69)));
        assert!(are_right(&frame));
        frame[59] ^= 1;
        assert!(are_right(&frame), "padding");
        frame[42] ^= 1;
        assert!(!are_right(&frame), "data");
        frame[42] ^= 1;
        frame[22] ^= 1;
        assert!(!are_right(&frame), "header");
    }

    #[test]
    fn a_datagram_without_a_checksum_is_right() {
        let mut frame = datagram();
        fill(&mut frame);
        put(&mut frame, 40, 0);
        assert!(are_right(&frame));
        frame[40] = 1;
        assert!(!are_right(&frame));
    }

    #[test]
    fn a_sum_of_zero_is_sent_as_all_ones() {
        let mut frame = datagram();
        // 0x6162 + 0xac69, with the carry: then all words add up to 0xffff.
        put(&mut frame, 42, 0x0dcc);
        fill(&mut frame);
        assert_eq!(be16(&frame, 40), Some(0xffff));
        assert!(are_right(&frame));
    }

    #[test]
    fn tags_are_skipped() {
        let mut frame = datagram();
        frame.splice(12..12, [0x88, 0xa8, 0, 5, 0x81, 0, 0, 7]);
        fill(&mut frame);
        assert!(are_right(&frame));
    }

    #[test]
    fn over_ipv6_only_the_segment_has_a_checksum() {
        let mut frame = vec![0; 12];
        frame.extend([0x86, 0xdd, 0x60, 0, 0, 0, 0, 20, 6, 64]);
        frame.extend([0x20; 32]);
        frame.extend([0, 80, 0, 81, 0, 0, 0, 1, 0, 0, 0, 2, 0x50, 0x10, 1, 0, 0, 0, 0, 0]);
        fill(&mut frame);
        let segment = Places::of(&frame).unwrap().segment.unwrap();
        assert_eq!(folded(segment.pseudo + sum(&frame[54..])), 0xffff);
        assert!(!are_right(&frame), "a NIC reports it for IPv4 alone");
    }

    #[test]
    fn a_fragment_keeps_its_contents() {
        let mut frame = datagram();
        frame[20] = 0x20;
        let before = frame[34..].to_vec();
        fill(&mut frame);
        assert_eq!(frame[34..], before);
        assert_eq!(folded(sum(&frame[14..34])), 0xffff);
        assert!(!are_right(&frame));
    }

    proptest! {
        #[test]
        fn no_frame_makes_a_checksum_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80), kind in 0..3usize) {
            let mut bytes = bytes;
            if bytes.len() > HEADER + 4 {
                let types = [TYPE_IPV4, TYPE_IPV6, TYPE_TAG];
                put(&mut bytes, 12, types[kind]);
                if kind == 0 {
                    bytes[HEADER] = 0x45;
                    put(&mut bytes, HEADER + 2, 40);
                }
            }
            let _ = are_right(&bytes);
            fill(&mut bytes);
        }
    }
}
