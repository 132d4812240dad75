//! The records that travel in the rings between processes of a host.
//!
//! A record, in native byte order since both ends are one machine:
//!
//! | bytes | what |
//! |---|---|
//! | 0 | kind: 1 a packet, 2 a datagram that the kernel gave to the wrong process |
//! | 1 | flags: 1 skipped counts follow, 2 a GRH follows |
//! | 2 | length of the packet's headers; of a datagram its traffic class |
//! | 3 | zero; of a datagram its hop limit |
//! | 4..8 | length of the payload |
//! | 8..12 | the sending QP |
//! | then | skipped counts (8 bytes) if flagged, GRH (40 bytes) if flagged, headers, payload |
//!
//! The fixed part of a datagram is followed by its source and its destination, 18 bytes each, and
//! its UDP payload.
//!
//! A record with an eight-byte message fits in one cache line.

use std::net::SocketAddr;

use iba::Qpn;
use transport::env::Skipped;
use umem::Foreign;
use wire::Headers;

use crate::carrier::About;

pub(crate) const PACKET: u8 = 1;
const DATAGRAM: u8 = 2;
const HAS_SKIPPED: u8 = 1;
const HAS_GRH: u8 = 2;
pub(crate) const FIXED: usize = 12;
/// The fixed part, skipped counts, a GRH, and the longest headers.
pub(crate) const MAX_PREFIX: usize = FIXED + 8 + 40 + 64;
/// Two addresses with their ports before a forwarded datagram.
const ADDRESSES: usize = 2 * ADDRESS;
const ADDRESS: usize = 18;

/// The contents of a packet's record besides its payload.
pub(crate) struct Record<'a> {
    pub(crate) headers: &'a Headers,
    pub(crate) length: u32,
    pub(crate) skipped: Skipped,
    pub(crate) grh: Option<&'a [u8; 40]>,
    pub(crate) source: Qpn,
}

/// A received record.
pub(crate) enum Incoming<'a> {
    Packet {
        payload: Foreign<'a>,
        length: u32,
        skipped: Skipped,
        grh: Option<[u8; 40]>,
        source: Qpn,
    },
    Datagram {
        about: About,
        bytes: Vec<u8>,
    },
}

#[inline]
pub(crate) fn write_prefix(prefix: &mut [u8; MAX_PREFIX], record: &Record<'_>) -> usize {
    prefix[0] = PACKET;
    prefix[2] = record.headers.len() as u8;
    prefix[4..8].copy_from_slice(&record.length.to_ne_bytes());
    prefix[8..12].copy_from_slice(&record.source.value().to_ne_bytes());
    let mut at = FIXED;
    if record.skipped != Skipped::default() {
        prefix[1] |= HAS_SKIPPED;
        prefix[at..at + 4].copy_from_slice(&record.skipped.psns.to_ne_bytes());
        prefix[at + 4..at + 8].copy_from_slice(&record.skipped.messages.to_ne_bytes());
        at += 8;
    }
    if let Some(grh) = record.grh {
        prefix[1] |= HAS_GRH;
        prefix[at..at + 40].copy_from_slice(grh);
        at += 40;
    }
    at + record.headers.emit(&mut prefix[at..])
}

/// What precedes the bytes of a forwarded datagram.
pub(super) fn datagram_prefix(about: &About, length: usize) -> [u8; FIXED + ADDRESSES] {
    let mut prefix = [0u8; FIXED + ADDRESSES];
    prefix[0] = DATAGRAM;
    prefix[2] = about.traffic_class;
    prefix[3] = about.hop_limit;
    prefix[4..8].copy_from_slice(&(length as u32).to_ne_bytes());
    for (at, address) in [(FIXED, about.src), (FIXED + ADDRESS, about.dst)] {
        prefix[at..at + 16].copy_from_slice(&iba::Gid::from(address.ip()).0);
        prefix[at + 16..at + ADDRESS].copy_from_slice(&address.port().to_ne_bytes());
    }
    prefix
}

/// What precedes the payload of a record.
#[cfg(test)]
pub(crate) fn prefix_of(record: &Record<'_>) -> Vec<u8> {
    let mut prefix = [0; MAX_PREFIX];
    let length = write_prefix(&mut prefix, record);
    prefix[..length].to_vec()
}

/// Parses a record, and writes the headers of a packet to `headers`. Every word is read once and
/// checked; the payload stays in the ring.
#[inline]
pub(crate) fn parse<'a>(
    record: Foreign<'a>,
    headers: &mut Headers,
) -> Result<Incoming<'a>, &'static str> {
    let mut prefix = [0u8; MAX_PREFIX];
    let have = record.len().min(MAX_PREFIX);
    let unreadable = |_| "a page of it is missing";
    record.slice(0, have).ok_or("empty")?.copy_to(&mut prefix[..have]).map_err(unreadable)?;
    let prefix = &prefix[..have];
    if have < FIXED {
        return Err("shorter than its fixed part");
    }
    let word = |at: usize| {
        prefix.get(at..at + 4).map(|b| u32::from_ne_bytes(b.try_into().expect("four bytes")))
    };
    let length = word(4).ok_or("no length")?;
    if prefix[0] == DATAGRAM {
        let address = |at: usize| {
            let bytes = prefix.get(at..at + ADDRESS).ok_or("no addresses")?;
            let (gid, port) = bytes.split_at(16);
            let gid = iba::Gid(gid.try_into().expect("sixteen bytes"));
            let port = u16::from_ne_bytes(port.try_into().expect("two bytes"));
            Ok::<_, &str>(SocketAddr::new(gid.to_ip(), port))
        };
        let (src, dst) = (address(FIXED)?, address(FIXED + ADDRESS)?);
        let bytes =
            record.slice(FIXED + ADDRESSES, length as usize).ok_or("the length is wrong")?;
        let mut copy = vec![0; bytes.len()];
        bytes.copy_to(&mut copy).map_err(unreadable)?;
        let about = About { src, dst, traffic_class: prefix[2], hop_limit: prefix[3] };
        return Ok(Incoming::Datagram { about, bytes: copy });
    }
    if prefix[0] != PACKET {
        return Err("unknown kind");
    }
    let flags = prefix[1];
    let mut at = FIXED;
    let mut skipped = Skipped::default();
    if flags & HAS_SKIPPED != 0 {
        skipped.psns = word(at).ok_or("no skipped counts")?;
        skipped.messages = word(at + 4).ok_or("no skipped counts")?;
        at += 8;
    }
    let mut grh = None;
    if flags & HAS_GRH != 0 {
        let bytes = prefix.get(at..at + 40).ok_or("no GRH")?;
        grh = Some(bytes.try_into().expect("forty bytes"));
        at += 40;
    }
    let header_len = usize::from(prefix[2]);
    let header_bytes = prefix.get(at..at + header_len).ok_or("no headers")?;
    let end = headers.read_prefix(header_bytes).map_err(|_| "malformed headers")?;
    if end != header_len {
        return Err("the header length is wrong");
    }
    let payload = record.slice(at + header_len, length as usize).ok_or("length lies")?;
    let source = Qpn::new(word(8).ok_or("no source")?);
    Ok(Incoming::Packet { payload, length, skipped, grh, source })
}
