//! The RDMA-CM header: addresses in the private data of a request (IBA annex A11.4;
//! `struct cma_hdr` of the kernel).

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The beginning of the private data of a REQ or SIDR_REQ to a service that is a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "cma_hdr")]
#[expect(clippy::exhaustive_structs, reason = "the fields of IBA A11.4")]
pub struct CmaHeader {
    /// The sender's port.
    pub port: u16,
    /// The sender's address.
    pub src: IpAddr,
    /// The destination address; of the same family.
    pub dst: IpAddr,
}

/// Why bytes are not such a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CmaError {
    /// Another version.
    #[error("version {0:#x} of the RDMA-CM header")]
    Version(u8),
    /// Neither 4 nor 6.
    #[error("IP version {0} in the RDMA-CM header")]
    IpVersion(u8),
}

impl CmaHeader {
    /// Bytes of the header.
    pub const LEN: usize = 36;
    /// The version of the header (`CMA_VERSION`).
    const VERSION: u8 = 0;

    /// Reads a header.
    ///
    /// # Errors
    /// See [`CmaError`].
    pub fn parse(raw: &[u8; Self::LEN]) -> Result<Self, CmaError> {
        if raw[0] != Self::VERSION {
            return Err(CmaError::Version(raw[0]));
        }
        let v6 = |at: usize| -> [u8; 16] { raw[at..at + 16].try_into().expect("sixteen bytes") };
        // An IPv4 address is the last of four words.
        let v4 = |at: usize| -> [u8; 4] { raw[at + 12..at + 16].try_into().expect("four bytes") };
        let (src, dst): (IpAddr, IpAddr) = match raw[1] >> 4 {
            4 => (v4(4).into(), v4(20).into()),
            6 => (v6(4).into(), v6(20).into()),
            other => return Err(CmaError::IpVersion(other)),
        };
        Ok(Self { port: u16::from_be_bytes([raw[2], raw[3]]), src, dst })
    }

    /// The header's bytes. Addresses of different families are both written as IPv6.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut raw = [0; Self::LEN];
        raw[0] = Self::VERSION;
        raw[2..4].copy_from_slice(&self.port.to_be_bytes());
        if let (IpAddr::V4(src), IpAddr::V4(dst)) = (self.src, self.dst) {
            raw[1] = 4 << 4;
            raw[16..20].copy_from_slice(&src.octets());
            raw[32..36].copy_from_slice(&dst.octets());
        } else {
            raw[1] = 6 << 4;
            raw[4..20].copy_from_slice(&v6(self.src).octets());
            raw[20..36].copy_from_slice(&v6(self.dst).octets());
        }
        raw
    }
}

fn v6(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(v4) => Ipv4Addr::to_ipv6_mapped(&v4),
        IpAddr::V6(v6) => v6,
    }
}
