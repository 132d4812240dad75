//! GIDs, GUIDs and address vectors.

use core::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A global identifier: 16 bytes in network order. In RoCEv2 it is an IP address, an IPv4 one in
/// its mapped form (RoCEv2 Annex A17.4.5.1).
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[doc(alias = "ibv_gid")]
pub struct Gid(pub [u8; 16]);

impl Gid {
    /// The zero GID, which names no port.
    pub const ZERO: Self = Self([0; 16]);

    /// The IP address that this GID represents.
    pub fn to_ip(self) -> IpAddr {
        let v6 = Ipv6Addr::from(self.0);
        v6.to_ipv4_mapped().map_or(IpAddr::V6(v6), IpAddr::V4)
    }

    /// Whether this GID names a multicast group, by its IB, IPv6 or mapped IPv4 form.
    pub fn is_multicast(self) -> bool {
        self.to_ip().is_multicast()
    }
}

impl From<IpAddr> for Gid {
    fn from(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(v4) => v4.into(),
            IpAddr::V6(v6) => Self(v6.octets()),
        }
    }
}

impl From<Ipv4Addr> for Gid {
    fn from(ip: Ipv4Addr) -> Self {
        Self(ip.to_ipv6_mapped().octets())
    }
}

impl fmt::Display for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, pair) in self.0.chunks_exact(2).enumerate() {
            let colon = if index == 0 { "" } else { ":" };
            write!(f, "{colon}{:02x}{:02x}", pair[0], pair[1])?;
        }
        Ok(())
    }
}

impl fmt::Debug for Gid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.to_ip())
    }
}

/// A 64-bit identifier of a node, a port or a system image, in host order.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Guid(pub u64);

impl Guid {
    /// The EUI-64 that a RoCE device derives from its netdev's MAC address.
    pub const fn from_mac(mac: [u8; 6]) -> Self {
        Self(u64::from_be_bytes([mac[0] ^ 2, mac[1], mac[2], 0xff, 0xfe, mac[3], mac[4], mac[5]]))
    }
}

impl fmt::Display for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let v = self.0;
        write!(
            f,
            "{:04x}:{:04x}:{:04x}:{:04x}",
            v >> 48,
            v >> 32 & 0xffff,
            v >> 16 & 0xffff,
            v & 0xffff
        )
    }
}

impl fmt::Debug for Guid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// An address vector: how to reach a port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[doc(alias = "ibv_ah_attr")]
pub struct Av {
    /// The destination.
    pub dgid: Gid,
    /// Which of the sender's GIDs is the source.
    pub sgid_index: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// IP time to live; 0 means the default of 64.
    pub hop_limit: u8,
    /// IP type of service.
    pub traffic_class: u8,
    /// Service level, 4 bits.
    pub sl: u8,
    /// The sender's port, from 1.
    pub port_num: u8,
    /// Destination LID; without meaning in RoCE, but returned as it was set.
    pub dlid: u16,
    /// Source path bits; likewise.
    pub src_path_bits: u8,
    /// Static rate; likewise.
    pub static_rate: u8,
    /// Whether a global route was given. RoCE requires it.
    pub is_global: bool,
}

impl Av {
    /// The hop limit of packets: the one that was set, or the default.
    #[inline]
    pub fn hop_limit_on_wire(&self) -> u8 {
        if self.hop_limit == 0 { 64 } else { self.hop_limit }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ipv4_is_mapped() {
        let gid = Gid::from(IpAddr::from([10, 0, 0, 1]));
        assert_eq!(gid.to_string(), "0000:0000:0000:0000:0000:ffff:0a00:0001");
        assert_eq!(gid.to_ip(), IpAddr::from([10, 0, 0, 1]));
    }

    #[test]
    fn guid_flips_the_local_bit() {
        assert_eq!(Guid::from_mac([2, 0, 0, 1, 2, 3]).to_string(), "0000:00ff:fe01:0203");
    }
}
