//! Headers of datagrams.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// The header before the data of a datagram between queue pairs: its sender (`struct ds_header`).
#[doc(alias = "ds_header")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The UDP address of the sender.
    pub source: SocketAddr,
}

const V4_HEADER: usize = 8;
const V6_HEADER: usize = 24;

impl Header {
    /// The size of the longest form, in bytes.
    pub const MAX: usize = V6_HEADER;

    /// Its size in bytes.
    pub const fn size(&self) -> usize {
        if self.source.is_ipv4() { V4_HEADER } else { V6_HEADER }
    }

    /// Encodes it; only the first [`size`](Self::size) bytes are sent.
    pub fn to_bytes(&self) -> [u8; Self::MAX] {
        let mut bytes = [0; Self::MAX];
        bytes[1] = self.size() as u8;
        bytes[2..4].copy_from_slice(&self.source.port().to_be_bytes());
        match self.source {
            SocketAddr::V4(v4) => {
                bytes[0] = 4;
                bytes[4..8].copy_from_slice(&v4.ip().octets());
            }
            SocketAddr::V6(v6) => {
                bytes[0] = 6;
                bytes[4..8].copy_from_slice(&v6.flowinfo().to_be_bytes());
                bytes[8..24].copy_from_slice(&v6.ip().octets());
            }
        }
        bytes
    }

    /// Decodes it from the beginning of a datagram; `None` if the datagram has no such header.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let short = bytes.first_chunk::<V4_HEADER>()?;
        let port = u16::from_be_bytes([short[2], short[3]]);
        let word = [short[4], short[5], short[6], short[7]];
        let source = match (short[0], usize::from(short[1])) {
            (4, V4_HEADER) => SocketAddr::from((Ipv4Addr::from(word), port)),
            (6, V6_HEADER) => {
                let long = bytes.first_chunk::<V6_HEADER>()?;
                let ip: [u8; 16] = long[8..].try_into().ok()?;
                let flow = u32::from_be_bytes(word);
                SocketAddrV6::new(Ipv6Addr::from(ip), port, flow, 0).into()
            }
            _ => return None,
        };
        Some(Self { source })
    }
}

/// The header before the data of a datagram over UDP: the sender's queue pair (`struct
/// ds_udp_header`).
#[doc(alias = "ds_udp_header")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ask {
    /// Whether data follows. The answer is an [`Ask`] without data.
    pub has_data: bool,
    /// The number of the sender's queue pair.
    pub qpn: u32,
    /// The sender's address.
    pub addr: IpAddr,
}

/// `DS_UDP_TAG`.
const TAG: u32 = 0x5555_5555;
/// `RS_OP_DATA` and `RS_OP_CTRL`.
const OP_DATA: u8 = 0;
const OP_CTRL: u8 = 7;
const V4_ASK: usize = 16;
const V6_ASK: usize = 28;

impl Ask {
    /// The size of the longest form, in bytes.
    pub const MAX: usize = V6_ASK;

    /// Its size in bytes.
    pub const fn size(&self) -> usize {
        if self.addr.is_ipv4() { V4_ASK } else { V6_ASK }
    }

    /// Encodes it; only the first [`size`](Self::size) bytes are sent.
    pub fn to_bytes(&self) -> [u8; Self::MAX] {
        let mut bytes = [0; Self::MAX];
        bytes[..4].copy_from_slice(&TAG.to_be_bytes());
        bytes[5] = if self.has_data { OP_DATA } else { OP_CTRL };
        bytes[6] = self.size() as u8;
        bytes[8..12].copy_from_slice(&(self.qpn & 0xff_ffff).to_be_bytes());
        match self.addr {
            IpAddr::V4(v4) => {
                bytes[4] = 4;
                bytes[12..16].copy_from_slice(&v4.octets());
            }
            IpAddr::V6(v6) => {
                bytes[4] = 6;
                bytes[12..28].copy_from_slice(&v6.octets());
            }
        }
        bytes
    }

    /// Decodes it from the beginning of a UDP datagram; `None` if the datagram has no such header.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let short = bytes.first_chunk::<V4_ASK>()?;
        if short[..4] != TAG.to_be_bytes() {
            return None;
        }
        let word = |at: usize| [short[at], short[at + 1], short[at + 2], short[at + 3]];
        let addr = match (short[4], usize::from(short[6])) {
            (4, V4_ASK) => IpAddr::from(word(12)),
            (6, V6_ASK) => {
                let ip: [u8; 16] = bytes.get(12..V6_ASK)?.try_into().ok()?;
                IpAddr::from(ip)
            }
            _ => return None,
        };
        // Anything that is not data counts as an answer, as in rdma-core.
        let has_data = short[5] == OP_DATA;
        Some(Self { has_data, qpn: u32::from_be_bytes(word(8)) & 0xff_ffff, addr })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_have_the_bytes_of_the_protocol() {
        let header = Header { source: "10.1.2.3:258".parse().unwrap() };
        assert_eq!(header.to_bytes()[..8], [4, 8, 1, 2, 10, 1, 2, 3]);
        for source in ["10.1.2.3:258", "[fd00::1]:7174"] {
            let header = Header { source: source.parse().unwrap() };
            let bytes = header.to_bytes();
            assert_eq!(Header::from_bytes(&bytes[..header.size()]), Some(header));
            assert_eq!(Header::from_bytes(&bytes[..header.size() - 1]), None);
        }
        assert_eq!(Header::from_bytes(&[4, 24, 0, 0, 0, 0, 0, 0]), None);
        assert_eq!(Header::from_bytes(&[5, 8, 0, 0, 0, 0, 0, 0]), None);
    }

    #[test]
    fn an_ask_has_the_bytes_of_the_protocol() {
        let ask = Ask { has_data: true, qpn: 0x01_0203, addr: "10.1.2.3".parse().unwrap() };
        let bytes = [0x55, 0x55, 0x55, 0x55, 4, 0, 16, 0, 0, 1, 2, 3, 10, 1, 2, 3];
        assert_eq!(ask.to_bytes()[..16], bytes);
        for (has_data, addr) in [(true, "10.1.2.3"), (false, "fd00::1")] {
            let ask = Ask { has_data, addr: addr.parse().unwrap(), ..ask };
            let bytes = ask.to_bytes();
            assert_eq!(Ask::from_bytes(&bytes[..ask.size()]), Some(ask));
            assert_eq!(Ask::from_bytes(&bytes[..ask.size() - 1]), None);
        }
        let mut stranger = bytes;
        stranger[0] = 0;
        assert_eq!(Ask::from_bytes(&stranger), None);
    }
}
