//! The IP and UDP headers around a RoCEv2 packet (RoCEv2 Annex A17.3).
//!
//! The kernel writes and reads them for a UDP socket; here they are needed for the ICRC, which
//! covers most of them, for the GRH of a datagram, and to print or write captured packets. IPv4
//! options, fragments and IPv6 extension headers do not occur in RoCEv2.

use core::net::{Ipv4Addr, Ipv6Addr};

use zerocopy::byteorder::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::bits::with_bit;

/// The UDP destination port of RoCEv2.
pub const ROCE_V2_PORT: u16 = 4791;

/// The IP protocol number of UDP.
pub const PROTOCOL_UDP: u8 = 17;

/// Bytes of an IPv4 header without options.
pub const IPV4_LEN: usize = 20;

/// Bytes of an IPv6 header.
pub const IPV6_LEN: usize = 40;

/// Bytes of a UDP header.
pub const UDP_LEN: usize = 8;

const DONT_FRAGMENT: u32 = 1 << 14;
const FLOW_LABEL_MASK: u32 = 0xf_ffff;

/// An IPv4 header as it is in a packet.
#[derive(
    Clone,
    Copy,
    Default,
    Debug,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    KnownLayout,
    Immutable,
    Unaligned,
)]
#[repr(C)]
pub struct RawIpv4 {
    version_ihl: u8,
    tos: u8,
    total_len: U16,
    id: U16,
    fragment: U16,
    ttl: u8,
    protocol: u8,
    checksum: U16,
    src: [u8; 4],
    dst: [u8; 4],
}

impl RawIpv4 {
    /// Sets the type of service.
    pub fn set_tos(&mut self, tos: u8) {
        self.tos = tos;
    }

    /// Sets the length of header and payload.
    pub fn set_total_len(&mut self, total_len: u16) {
        self.total_len.set(total_len);
    }

    /// Sets the identification.
    pub fn set_id(&mut self, id: u16) {
        self.id.set(id);
    }

    /// Sets the "don't fragment" bit.
    pub fn set_df(&mut self, df: bool) {
        self.fragment.set(with_bit(self.fragment.get().into(), DONT_FRAGMENT, df) as u16);
    }

    /// Sets the time to live.
    pub fn set_ttl(&mut self, ttl: u8) {
        self.ttl = ttl;
    }

    /// Sets the protocol of the payload.
    pub fn set_protocol(&mut self, protocol: u8) {
        self.protocol = protocol;
    }

    /// Sets the header checksum.
    pub fn set_checksum(&mut self, checksum: u16) {
        self.checksum.set(checksum);
    }

    /// Sets the source address.
    pub fn set_src(&mut self, src: Ipv4Addr) {
        self.src = src.octets();
    }

    /// Sets the destination address.
    pub fn set_dst(&mut self, dst: Ipv4Addr) {
        self.dst = dst.octets();
    }

    /// The IP version.
    pub fn version(&self) -> u8 {
        self.version_ihl >> 4
    }

    /// Bytes of the header.
    pub fn header_len(&self) -> usize {
        usize::from(self.version_ihl & 0xf) * 4
    }

    /// The type of service.
    pub fn tos(&self) -> u8 {
        self.tos
    }

    /// The length of header and payload.
    pub fn total_len(&self) -> u16 {
        self.total_len.get()
    }

    /// The identification.
    pub fn id(&self) -> u16 {
        self.id.get()
    }

    /// The "don't fragment" bit.
    pub fn df(&self) -> bool {
        u32::from(self.fragment.get()) & DONT_FRAGMENT != 0
    }

    /// The time to live.
    pub fn ttl(&self) -> u8 {
        self.ttl
    }

    /// The protocol of the payload.
    pub fn protocol(&self) -> u8 {
        self.protocol
    }

    /// The header checksum.
    pub fn checksum(&self) -> u16 {
        self.checksum.get()
    }

    /// The source address.
    pub fn src(&self) -> Ipv4Addr {
        self.src.into()
    }

    /// The destination address.
    pub fn dst(&self) -> Ipv4Addr {
        self.dst.into()
    }

    /// The checksum that the header should have (RFC 791).
    pub fn computed_checksum(&self) -> u16 {
        let mut header = *self;
        header.set_checksum(0);
        let words = header.as_bytes().chunks_exact(2);
        let sum: u32 = words.map(|word| u32::from(u16::from_be_bytes([word[0], word[1]]))).sum();
        let sum = (sum >> 16) + (sum & 0xffff);
        !((sum >> 16) + sum) as u16
    }
}

/// The contents of an IPv4 header without options, which is not of a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "the fields of the header")]
pub struct Ipv4 {
    /// Type of service: DSCP and ECN.
    pub tos: u8,
    /// Bytes of header and payload.
    pub total_len: u16,
    /// Identification.
    pub id: u16,
    /// Whether routers must not fragment the packet.
    pub df: bool,
    /// Time to live.
    pub ttl: u8,
    /// Protocol of the payload.
    pub protocol: u8,
    /// Sender.
    pub src: Ipv4Addr,
    /// Receiver.
    pub dst: Ipv4Addr,
}

impl Ipv4 {
    /// Reads a header.
    pub fn parse(raw: &RawIpv4) -> Self {
        Self {
            tos: raw.tos(),
            total_len: raw.total_len(),
            id: raw.id(),
            df: raw.df(),
            ttl: raw.ttl(),
            protocol: raw.protocol(),
            src: raw.src(),
            dst: raw.dst(),
        }
    }

    /// The header's bytes, with their checksum.
    pub fn to_raw(&self) -> RawIpv4 {
        let mut raw = RawIpv4 {
            version_ihl: 0x45,
            tos: self.tos,
            total_len: U16::new(self.total_len),
            id: U16::new(self.id),
            fragment: U16::new(with_bit(0, DONT_FRAGMENT, self.df) as u16),
            ttl: self.ttl,
            protocol: self.protocol,
            checksum: U16::new(0),
            src: self.src.octets(),
            dst: self.dst.octets(),
        };
        raw.set_checksum(raw.computed_checksum());
        raw
    }
}

/// An IPv6 header as it is in a packet.
#[derive(
    Clone,
    Copy,
    Default,
    Debug,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    KnownLayout,
    Immutable,
    Unaligned,
)]
#[repr(C)]
pub struct RawIpv6 {
    version_class_flow: U32,
    payload_len: U16,
    next_header: u8,
    hop_limit: u8,
    src: [u8; 16],
    dst: [u8; 16],
}

impl RawIpv6 {
    /// Sets the traffic class.
    pub fn set_traffic_class(&mut self, traffic_class: u8) {
        let word = self.version_class_flow.get() & !(0xff << 20);
        self.version_class_flow.set(word | u32::from(traffic_class) << 20);
    }

    /// Sets the flow label, from its low 20 bits.
    pub fn set_flow_label(&mut self, flow_label: u32) {
        let word = self.version_class_flow.get() & !FLOW_LABEL_MASK;
        self.version_class_flow.set(word | flow_label & FLOW_LABEL_MASK);
    }

    /// Sets the length of the payload.
    pub fn set_payload_len(&mut self, payload_len: u16) {
        self.payload_len.set(payload_len);
    }

    /// Sets the protocol of the payload.
    pub fn set_next_header(&mut self, next_header: u8) {
        self.next_header = next_header;
    }

    /// Sets the hop limit.
    pub fn set_hop_limit(&mut self, hop_limit: u8) {
        self.hop_limit = hop_limit;
    }

    /// Sets the source address.
    pub fn set_src(&mut self, src: Ipv6Addr) {
        self.src = src.octets();
    }

    /// Sets the destination address.
    pub fn set_dst(&mut self, dst: Ipv6Addr) {
        self.dst = dst.octets();
    }

    /// The IP version.
    pub fn version(&self) -> u8 {
        (self.version_class_flow.get() >> 28) as u8
    }

    /// The traffic class.
    pub fn traffic_class(&self) -> u8 {
        (self.version_class_flow.get() >> 20) as u8
    }

    /// The flow label.
    pub fn flow_label(&self) -> u32 {
        self.version_class_flow.get() & FLOW_LABEL_MASK
    }

    /// The length of the payload.
    pub fn payload_len(&self) -> u16 {
        self.payload_len.get()
    }

    /// The protocol of the payload.
    pub fn next_header(&self) -> u8 {
        self.next_header
    }

    /// The hop limit.
    pub fn hop_limit(&self) -> u8 {
        self.hop_limit
    }

    /// The source address.
    pub fn src(&self) -> Ipv6Addr {
        self.src.into()
    }

    /// The destination address.
    pub fn dst(&self) -> Ipv6Addr {
        self.dst.into()
    }
}

/// The contents of an IPv6 header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "the fields of the header")]
pub struct Ipv6 {
    /// Traffic class: DSCP and ECN.
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// Bytes after this header.
    pub payload_len: u16,
    /// Protocol of the payload.
    pub next_header: u8,
    /// Hop limit.
    pub hop_limit: u8,
    /// Sender.
    pub src: Ipv6Addr,
    /// Receiver.
    pub dst: Ipv6Addr,
}

impl Ipv6 {
    /// Reads a header.
    pub fn parse(raw: &RawIpv6) -> Self {
        Self {
            traffic_class: raw.traffic_class(),
            flow_label: raw.flow_label(),
            payload_len: raw.payload_len(),
            next_header: raw.next_header(),
            hop_limit: raw.hop_limit(),
            src: raw.src(),
            dst: raw.dst(),
        }
    }

    /// The header's bytes.
    pub fn to_raw(&self) -> RawIpv6 {
        let class_flow = u32::from(self.traffic_class) << 20 | self.flow_label & FLOW_LABEL_MASK;
        RawIpv6 {
            version_class_flow: U32::new(6 << 28 | class_flow),
            payload_len: U16::new(self.payload_len),
            next_header: self.next_header,
            hop_limit: self.hop_limit,
            src: self.src.octets(),
            dst: self.dst.octets(),
        }
    }
}

/// A UDP header as it is in a packet.
#[derive(
    Clone,
    Copy,
    Default,
    Debug,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    KnownLayout,
    Immutable,
    Unaligned,
)]
#[repr(C)]
pub struct RawUdp {
    src_port: U16,
    dst_port: U16,
    len: U16,
    checksum: U16,
}

impl RawUdp {
    /// Sets the source port.
    pub fn set_src_port(&mut self, src_port: u16) {
        self.src_port.set(src_port);
    }

    /// Sets the destination port.
    pub fn set_dst_port(&mut self, dst_port: u16) {
        self.dst_port.set(dst_port);
    }

    /// Sets the length of header and payload.
    pub fn set_length(&mut self, length: u16) {
        self.len.set(length);
    }

    /// Sets the checksum.
    pub fn set_checksum(&mut self, checksum: u16) {
        self.checksum.set(checksum);
    }

    /// The source port.
    pub fn src_port(&self) -> u16 {
        self.src_port.get()
    }

    /// The destination port.
    pub fn dst_port(&self) -> u16 {
        self.dst_port.get()
    }

    /// The length of header and payload.
    pub fn length(&self) -> u16 {
        self.len.get()
    }

    /// The checksum; 0 means none.
    pub fn checksum(&self) -> u16 {
        self.checksum.get()
    }
}

/// The contents of a UDP header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "the fields of the header")]
pub struct Udp {
    /// Source port, which carries the flow entropy in RoCEv2.
    pub src_port: u16,
    /// Destination port.
    pub dst_port: u16,
    /// Bytes of header and payload.
    pub length: u16,
    /// Checksum; 0 means none, which RoCEv2 permits as the ICRC covers the payload.
    pub checksum: u16,
}

impl Udp {
    /// Reads a header.
    pub fn parse(raw: &RawUdp) -> Self {
        Self {
            src_port: raw.src_port(),
            dst_port: raw.dst_port(),
            length: raw.length(),
            checksum: raw.checksum(),
        }
    }

    /// The header's bytes.
    pub fn to_raw(&self) -> RawUdp {
        RawUdp {
            src_port: U16::new(self.src_port),
            dst_port: U16::new(self.dst_port),
            len: U16::new(self.length),
            checksum: U16::new(self.checksum),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    mod ipv4 {
        use super::*;
        use crate::bits::setters_keep_their_neighbours;

        setters_keep_their_neighbours! {
            RawIpv4, IPV4_LEN;
            tos / set_tos: u8 => core::convert::identity;
            total_len / set_total_len: u16 => core::convert::identity;
            id / set_id: u16 => core::convert::identity;
            df / set_df: bool => core::convert::identity;
            ttl / set_ttl: u8 => core::convert::identity;
            protocol / set_protocol: u8 => core::convert::identity;
            checksum / set_checksum: u16 => core::convert::identity;
            src / set_src: [u8; 4] => Ipv4Addr::from;
            dst / set_dst: [u8; 4] => Ipv4Addr::from;
        }

        #[test]
        fn the_bytes_are_those_of_the_standard() {
            let header = Ipv4 {
                tos: 0,
                total_len: 0x73,
                id: 0,
                df: true,
                ttl: 64,
                protocol: PROTOCOL_UDP,
                src: Ipv4Addr::new(192, 168, 0, 1),
                dst: Ipv4Addr::new(192, 168, 0, 199),
            };
            // The example of RFC 1071's reference implementations: the checksum is 0xb861.
            let bytes = [
                0x45, 0, 0, 0x73, 0, 0, 0x40, 0, 0x40, 0x11, 0xb8, 0x61, 192, 168, 0, 1, 192, 168,
                0, 199,
            ];
            assert_eq!(header.to_raw().as_bytes(), bytes);
            assert_eq!(Ipv4::parse(&header.to_raw()), header);
        }
    }

    mod ipv6 {
        use super::*;
        use crate::bits::setters_keep_their_neighbours;

        setters_keep_their_neighbours! {
            RawIpv6, IPV6_LEN;
            traffic_class / set_traffic_class: u8 => core::convert::identity;
            flow_label / set_flow_label: u32 => |label| label & FLOW_LABEL_MASK;
            payload_len / set_payload_len: u16 => core::convert::identity;
            next_header / set_next_header: u8 => core::convert::identity;
            hop_limit / set_hop_limit: u8 => core::convert::identity;
            src / set_src: [u8; 16] => Ipv6Addr::from;
            dst / set_dst: [u8; 16] => Ipv6Addr::from;
        }

        #[test]
        fn class_and_label_share_the_first_word() {
            let header = Ipv6 {
                traffic_class: 0xab,
                flow_label: 0xc_def0,
                payload_len: 1,
                next_header: PROTOCOL_UDP,
                hop_limit: 2,
                src: Ipv6Addr::LOCALHOST,
                dst: Ipv6Addr::UNSPECIFIED,
            };
            let raw = header.to_raw();
            assert_eq!(raw.as_bytes()[..8], [0x6a, 0xbc, 0xde, 0xf0, 0, 1, 17, 2]);
            assert_eq!(Ipv6::parse(&raw), header);
        }
    }

    mod udp {
        use super::*;
        use crate::bits::setters_keep_their_neighbours;

        setters_keep_their_neighbours! {
            RawUdp, UDP_LEN;
            src_port / set_src_port: u16 => core::convert::identity;
            dst_port / set_dst_port: u16 => core::convert::identity;
            length / set_length: u16 => core::convert::identity;
            checksum / set_checksum: u16 => core::convert::identity;
        }
    }
}
