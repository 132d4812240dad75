//! Ethernet frames, as far as flow steering and receive side scaling read them: the addresses of
//! three layers.
//!
//! ```text
//!  | dst | src | (tag) | type | IPv4 or IPv6 | TCP or UDP ports | ...
//! ```
//!
//! A header that is missing or cut short is `None`: a frame has a receiver whatever its contents.
//! Ports of fragments are not read, as only the first has them.

pub mod checksum;

/// Bytes of an Ethernet header.
pub const HEADER: usize = 14;

/// `ETH_P_IP`, `ETH_P_IPV6`, `ETH_P_8021Q` and `ETH_P_8021AD`.
pub const TYPE_IPV4: u16 = 0x0800;
/// See [`TYPE_IPV4`].
pub const TYPE_IPV6: u16 = 0x86dd;
const TYPE_TAG: u16 = 0x8100;
const TYPE_SERVICE_TAG: u16 = 0x88a8;

/// The number of TCP among the protocols of IP.
pub const PROTOCOL_TCP: u8 = 6;
/// The number of UDP.
pub const PROTOCOL_UDP: u8 = 17;

/// The contents of a frame's headers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "code that matches frames reads every field")]
pub struct Frame {
    /// The destination address.
    pub dst: [u8; 6],
    /// The source address.
    pub src: [u8; 6],
    /// The contents of its outer VLAN tag: priority, drop eligibility, and the VLAN in the low 12
    /// bits.
    pub vlan: Option<u16>,
    /// The type of the payload, after a tag if there is one.
    pub ether_type: u16,
    /// The IP header.
    pub ip: Option<Ip>,
    /// The ports.
    pub ports: Option<Ports>,
}

/// An IP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "there are two")]
pub enum Ip {
    /// IPv4.
    V4 {
        /// The source.
        src: [u8; 4],
        /// The destination.
        dst: [u8; 4],
        /// The protocol of the payload.
        protocol: u8,
        /// Type of service.
        tos: u8,
        /// Time to live.
        ttl: u8,
        /// The flags, of which 2 is "don't fragment" and 1 is "more fragments".
        flags: u8,
    },
    /// IPv6.
    V6 {
        /// The source.
        src: [u8; 16],
        /// The destination.
        dst: [u8; 16],
        /// The flow label, 20 bits.
        flow_label: u32,
        /// The protocol of the payload.
        next_header: u8,
        /// The traffic class.
        traffic_class: u8,
        /// The hop limit.
        hop_limit: u8,
    },
}

/// The ports of TCP or UDP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "code that matches frames reads every field")]
pub struct Ports {
    /// [`PROTOCOL_TCP`] or [`PROTOCOL_UDP`].
    pub protocol: u8,
    /// The source port.
    pub src: u16,
    /// The destination port.
    pub dst: u16,
}

impl Frame {
    /// Reads the headers of a frame; `None` if it is shorter than an Ethernet header.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        let dst = take(bytes, 0)?;
        let src = take(bytes, 6)?;
        let mut ether_type = be16(bytes, 12)?;
        let (mut vlan, mut at) = (None, HEADER);
        if matches!(ether_type, TYPE_TAG | TYPE_SERVICE_TAG)
            && let (Some(tag), Some(behind)) = (be16(bytes, at), be16(bytes, at + 2))
        {
            (vlan, ether_type, at) = (Some(tag), behind, at + 4);
        }
        let rest = bytes.get(at..).unwrap_or_default();
        let (ip, ports) = match ether_type {
            TYPE_IPV4 => ipv4(rest),
            TYPE_IPV6 => ipv6(rest),
            _ => None,
        }
        .unzip();
        Some(Self { dst, src, vlan, ether_type, ip, ports: ports.flatten() })
    }

    /// Whether it goes to a group, which includes broadcasts.
    pub const fn is_to_group(&self) -> bool {
        self.dst[0] & 1 != 0
    }
}

fn ipv4(bytes: &[u8]) -> Option<(Ip, Option<Ports>)> {
    let first = *bytes.first()?;
    let length = usize::from(first & 0xf) * 4;
    if first >> 4 != 4 || length < 20 || bytes.len() < length {
        return None;
    }
    let fragment = be16(bytes, 6)?;
    let protocol = bytes[9];
    let ip = Ip::V4 {
        src: take(bytes, 12)?,
        dst: take(bytes, 16)?,
        protocol,
        tos: bytes[1],
        ttl: bytes[8],
        flags: (fragment >> 13) as u8,
    };
    // More fragments follow, or this is not the first.
    let is_fragment = fragment & 0x3fff != 0;
    Some((ip, if is_fragment { None } else { ports(protocol, &bytes[length..]) }))
}

fn ipv6(bytes: &[u8]) -> Option<(Ip, Option<Ports>)> {
    const LENGTH: usize = 40;
    let word = u32::from_be_bytes(take(bytes, 0)?);
    if word >> 28 != 6 || bytes.len() < LENGTH {
        return None;
    }
    let next_header = bytes[6];
    let ip = Ip::V6 {
        src: take(bytes, 8)?,
        dst: take(bytes, 24)?,
        flow_label: word & 0xf_ffff,
        next_header,
        traffic_class: (word >> 20) as u8,
        hop_limit: bytes[7],
    };
    Some((ip, ports(next_header, &bytes[LENGTH..])))
}

fn ports(protocol: u8, bytes: &[u8]) -> Option<Ports> {
    let has_ports = matches!(protocol, PROTOCOL_TCP | PROTOCOL_UDP);
    has_ports.then(|| Some(Ports { protocol, src: be16(bytes, 0)?, dst: be16(bytes, 2)? }))?
}

fn take<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

fn be16(bytes: &[u8], at: usize) -> Option<u16> {
    take(bytes, at).map(u16::from_be_bytes)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// 10.0.0.1:1000 to 10.0.0.2:2000, over UDP, in VLAN 7 if requested.
    fn datagram(vlan: bool, fragment: u16) -> Vec<u8> {
        let mut bytes = vec![1, 0, 0x5e, 0, 0, 1, 2, 0, 0, 0, 0, 9];
        if vlan {
            bytes.extend([0x81, 0, 0xa0, 7]);
        }
        bytes.extend([8, 0, 0x45, 0xb8, 0, 28, 0, 0]);
        bytes.extend(fragment.to_be_bytes());
        bytes.extend([64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2]);
        bytes.extend([0x03, 0xe8, 0x07, 0xd0, 0, 8, 0, 0]);
        bytes
    }

    #[test]
    fn addresses_of_all_three_layers_are_read() {
        let frame = Frame::parse(&datagram(false, 0x4000)).unwrap();
        assert!(frame.is_to_group());
        assert_eq!((frame.src[5], frame.vlan, frame.ether_type), (9, None, TYPE_IPV4));
        let Some(Ip::V4 { src, dst, protocol, tos, ttl, flags }) = frame.ip else { panic!() };
        assert_eq!((src, dst), ([10, 0, 0, 1], [10, 0, 0, 2]));
        assert_eq!((protocol, tos, ttl, flags), (17, 0xb8, 64, 2));
        assert_eq!(frame.ports, Some(Ports { protocol: 17, src: 1000, dst: 2000 }));
    }

    #[test]
    fn a_tag_is_read_and_skipped() {
        let frame = Frame::parse(&datagram(true, 0)).unwrap();
        assert_eq!((frame.vlan, frame.ether_type), (Some(0xa007), TYPE_IPV4));
        assert_eq!(frame.ports.unwrap().dst, 2000);
    }

    #[test]
    fn a_fragment_has_addresses_and_no_ports() {
        for fragment in [0x2000, 1, 0x2001] {
            let frame = Frame::parse(&datagram(false, fragment)).unwrap();
            assert!(frame.ip.is_some() && frame.ports.is_none(), "{fragment:#x}");
        }
    }

    #[test]
    fn ipv6_is_read() {
        let mut bytes = vec![0; 12];
        bytes.extend([0x86, 0xdd, 0x6a, 0xb1, 0x23, 0x45, 0, 4, 6, 63]);
        bytes.extend([1; 16]);
        bytes.extend([2; 16]);
        bytes.extend([0, 80, 1, 0]);
        let frame = Frame::parse(&bytes).unwrap();
        let Some(Ip::V6 { src, dst, flow_label, next_header, traffic_class, hop_limit }) = frame.ip
        else {
            panic!("{frame:?}");
        };
        assert_eq!((src, dst), ([1; 16], [2; 16]));
        assert_eq!((flow_label, traffic_class), (0x1_2345, 0xab));
        assert_eq!((next_header, hop_limit), (6, 63));
        assert_eq!(frame.ports, Some(Ports { protocol: 6, src: 80, dst: 256 }));
    }

    #[test]
    fn a_header_that_is_cut_off_is_missing() {
        let whole = datagram(true, 0);
        for length in 0..whole.len() {
            let frame = Frame::parse(&whole[..length]);
            assert_eq!(frame.is_some(), length >= HEADER);
            assert_eq!(frame.and_then(|f| f.ip).is_some(), length >= 18 + 20);
            assert_eq!(frame.and_then(|f| f.ports).is_some(), length >= 18 + 20 + 4);
        }
    }

    proptest! {
        #[test]
        fn no_frame_makes_parsing_panic(bytes in proptest::collection::vec(any::<u8>(), 0..80), kind in 0..4usize) {
            let mut bytes = bytes;
            if bytes.len() >= HEADER {
                let types = [TYPE_IPV4, TYPE_IPV6, TYPE_TAG, 0];
                bytes[12..14].copy_from_slice(&types[kind].to_be_bytes());
            }
            let _ = Frame::parse(&bytes);
        }
    }
}
