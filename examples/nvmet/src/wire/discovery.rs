//! The discovery log page (NVMe over Fabrics 1.1, 5.3).

use std::net::SocketAddr;

use super::{nqn, nqn_of, put, put_text};

/// The log page's number.
pub const LOG_PAGE: u8 = 0x70;
/// Bytes of the header, and of each entry.
pub const ENTRY_LEN: usize = 1024;

const RDMA: u8 = 1;
const IPV4: u8 = 1;
const IPV6: u8 = 2;
const NVME: u8 = 2;
/// Reliable, connected; RoCE version 2; RDMA_CM.
const TSAS: [u8; 3] = [1, 4, 1];
const ANY_CNTLID: u16 = 0xffff;

/// An entry: a subsystem and its address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The subsystem.
    pub subnqn: String,
    /// Where it listens.
    pub addr: SocketAddr,
}

/// The page: a header, and an entry for each subsystem.
pub fn page(generation: u64, entries: &[Entry]) -> Vec<u8> {
    let mut page = vec![0; ENTRY_LEN];
    page[..8].copy_from_slice(&generation.to_le_bytes());
    page[8..16].copy_from_slice(&(entries.len() as u64).to_le_bytes());
    for entry in entries {
        page.extend_from_slice(&entry.to_bytes());
    }
    page
}

/// The entries of a page, and how many there are in all.
pub fn entries(page: &[u8]) -> Option<(u64, Vec<Entry>)> {
    let count = u64::from_le_bytes(page.get(8..16)?.try_into().ok()?);
    let there = page[ENTRY_LEN.min(page.len())..].chunks_exact(ENTRY_LEN);
    let most = usize::try_from(count).unwrap_or(usize::MAX);
    Some((count, there.take(most).filter_map(Entry::from_bytes).collect()))
}

impl Entry {
    /// The entry as it lies in the page.
    pub fn to_bytes(&self) -> [u8; ENTRY_LEN] {
        let mut bytes = [0; ENTRY_LEN];
        bytes[0] = RDMA;
        bytes[1] = if self.addr.is_ipv4() { IPV4 } else { IPV6 };
        bytes[2] = NVME;
        bytes[4..6].copy_from_slice(&1u16.to_le_bytes());
        bytes[6..8].copy_from_slice(&ANY_CNTLID.to_le_bytes());
        bytes[8..10].copy_from_slice(&super::cm::ADMIN_DEPTH.to_le_bytes());
        put_text(&mut bytes[32..64], &self.addr.port().to_string());
        bytes[256..512].copy_from_slice(&nqn(&self.subnqn));
        put_text(&mut bytes[512..768], &self.addr.ip().to_string());
        put(&mut bytes[768..], &TSAS);
        bytes
    }

    /// Parses an entry. `None` if it is of another transport, or malformed.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let text = |range| {
            let text = std::str::from_utf8(bytes.get(range)?).ok()?;
            Some(text.trim_end_matches([' ', '\0']))
        };
        if *bytes.first()? != RDMA {
            return None;
        }
        let (ip, port) = (text(512..768)?.parse().ok()?, text(32..64)?.parse().ok()?);
        let subnqn = nqn_of(bytes.get(256..512)?)?.to_owned();
        Some(Self { subnqn, addr: SocketAddr::new(ip, port) })
    }
}
