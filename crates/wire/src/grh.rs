//! Global route header: the 40 bytes that precede a datagram's payload in the receive buffer
//! (RoCEv2 Annex A17.4.5).
//!
//! ```text
//!  IPv6   | IPv6 header, 40 bytes                      |
//!  IPv4   | undefined, 20 bytes | IPv4 header, 20 bytes |
//! ```

use core::net::IpAddr;

use iba::Gid;
use zerocopy::IntoBytes;

use crate::ip::{IPV4_LEN, IPV6_LEN, Ipv4, Ipv6, PROTOCOL_UDP, RawIpv4, RawIpv6};

/// Bytes of the header.
pub const LEN: usize = 40;

/// The header in either form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "ibv_grh")]
#[expect(clippy::exhaustive_enums, reason = "RoCEv2 runs over two versions of IP")]
pub enum Grh {
    /// The packet came over IPv4.
    V4(Ipv4),
    /// The packet came over IPv6.
    V6(Ipv6),
}

impl Grh {
    /// The header of a datagram from `src` to `dst` whose IP payload (the UDP header and everything
    /// after it) is `len` bytes.
    ///
    /// The packet is assumed to have "don't fragment" and identification 0, which a UDP socket does
    /// not report. `None` if one address is IPv4 and the other IPv6.
    pub fn new(
        src: IpAddr,
        dst: IpAddr,
        traffic_class: u8,
        hop_limit: u8,
        len: u16,
    ) -> Option<Self> {
        match (src.to_canonical(), dst.to_canonical()) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => Some(Self::V4(Ipv4 {
                tos: traffic_class,
                total_len: len.saturating_add(IPV4_LEN as u16),
                id: 0,
                df: true,
                ttl: hop_limit,
                protocol: PROTOCOL_UDP,
                src,
                dst,
            })),
            (IpAddr::V6(src), IpAddr::V6(dst)) => Some(Self::V6(Ipv6 {
                traffic_class,
                flow_label: 0,
                payload_len: len,
                next_header: PROTOCOL_UDP,
                hop_limit,
                src,
                dst,
            })),
            _ => None,
        }
    }

    /// Reads the 40 bytes of a receive buffer.
    ///
    /// The form is not marked. As in `ib_get_rdma_header_version` of the kernel: it is IPv4 when
    /// the version in the first byte is not 6, or when the last 20 bytes are an IPv4 header without
    /// options and with a right checksum.
    pub fn parse(bytes: &[u8; LEN]) -> Self {
        let v6: RawIpv6 = zerocopy::transmute!(*bytes);
        let [_undefined, v4]: [RawIpv4; 2] = zerocopy::transmute!(*bytes);
        let is_v4 = v4.version() == 4
            && v4.header_len() == IPV4_LEN
            && v4.checksum() == v4.computed_checksum();
        if v6.version() != 6 || is_v4 {
            Self::V4(Ipv4::parse(&v4))
        } else {
            Self::V6(Ipv6::parse(&v6))
        }
    }

    /// The 40 bytes for a receive buffer; undefined ones are zero.
    pub fn to_bytes(&self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        match self {
            Self::V4(v4) => bytes[LEN - IPV4_LEN..].copy_from_slice(v4.to_raw().as_bytes()),
            Self::V6(v6) => bytes[LEN - IPV6_LEN..].copy_from_slice(v6.to_raw().as_bytes()),
        }
        bytes
    }

    /// The sender's GID.
    pub fn sgid(&self) -> Gid {
        match self {
            Self::V4(v4) => v4.src.into(),
            Self::V6(v6) => IpAddr::V6(v6.src).into(),
        }
    }

    /// The receiver's GID.
    pub fn dgid(&self) -> Gid {
        match self {
            Self::V4(v4) => v4.dst.into(),
            Self::V6(v6) => IpAddr::V6(v6.dst).into(),
        }
    }

    /// Traffic class or type of service.
    pub fn traffic_class(&self) -> u8 {
        match self {
            Self::V4(v4) => v4.tos,
            Self::V6(v6) => v6.traffic_class,
        }
    }

    /// Flow label, 20 bits; 0 over IPv4.
    pub fn flow_label(&self) -> u32 {
        match self {
            Self::V4(_) => 0,
            Self::V6(v6) => v6.flow_label,
        }
    }

    /// Hop limit or time to live.
    pub fn hop_limit(&self) -> u8 {
        match self {
            Self::V4(v4) => v4.ttl,
            Self::V6(v6) => v6.hop_limit,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_ipv4_header_is_found_again(
            src: [u8; 4], dst: [u8; 4], tos: u8, ttl: u8, len in 0..65_000_u16, junk: [u8; 20],
        ) {
            let grh = Grh::new(IpAddr::from(src), IpAddr::from(dst), tos, ttl, len).unwrap();
            let mut bytes = grh.to_bytes();
            // The first half is undefined, so it must not matter.
            bytes[..20].copy_from_slice(&junk);
            prop_assert_eq!(Grh::parse(&bytes), grh);
        }

        #[test]
        fn an_ipv6_header_is_found_again(dst: [u8; 8], class: u8, hops: u8, len: u16) {
            let mut dst16 = [0xfd; 16];
            dst16[8..].copy_from_slice(&dst);
            let src = IpAddr::from([0xfe80, 0, 0, 0, 0, 0, 0, 1]);
            let grh = Grh::new(src, IpAddr::from(dst16), class, hops, len).unwrap();
            prop_assert_eq!(Grh::parse(&grh.to_bytes()), grh);
            prop_assert_eq!(grh.sgid().to_ip(), src);
            prop_assert_eq!(grh.hop_limit(), hops);
        }
    }

    #[test]
    fn gids_of_ipv4_are_mapped() {
        let mapped = IpAddr::from([0, 0, 0, 0, 0, 0xffff, 0x0a00, 1]);
        let grh = Grh::new(mapped, IpAddr::from([10, 0, 0, 2]), 0, 64, 100).unwrap();
        assert_eq!(grh.sgid().to_string(), "0000:0000:0000:0000:0000:ffff:0a00:0001");
        assert_eq!(grh.dgid().to_ip(), IpAddr::from([10, 0, 0, 2]));
        let mixed = Grh::new(mapped, IpAddr::from([0xfe80, 0, 0, 0, 0, 0, 0, 1]), 0, 64, 100);
        assert_eq!(mixed, None);
    }
}
