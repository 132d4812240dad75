//! The invariant CRC that ends every RoCEv2 packet (IBA 7.8.1, RoCEv2 Annex A17.3.3; `rxe_icrc.c`
//! of the kernel).
//!
//! It is the CRC-32 of Ethernet over everything that no router changes. What routers may change
//! counts as ones:
//!
//! ```text
//!  LRH: 8 bytes of ones | IP | UDP | BTH, other headers, payload, padding | ICRC
//!                         |     |     `- FECN, BECN and the reserved bits beside them
//!                         |     `------- checksum
//!                         `------------- IPv4: type of service, time to live, checksum
//!                                        IPv6: traffic class, flow label, hop limit
//! ```
//!
//! The value is kept as a number; its little-endian bytes are what goes on the wire.
//!
//! # The identification that a socket does not report
//!
//! The ICRC covers the identification of the IPv4 header, which a UDP socket neither sets nor
//! reports. Linux sends 0 on an unconnected socket with "don't fragment", and counts 0, 1, 2, ...
//! over the segments of one GSO send; other senders use any numbers. A CRC is linear, so a
//! different identification changes it by an amount that depends only on the identification and the
//! length: a sender derives the ICRC of each segment with [`IdSpan::delta`], and a receiver that
//! finds a difference asks [`IdSpan::solve`] which identification, if any, explains it. 65,536 of
//! 4,294,967,296 differences have an explanation, so the check keeps 16 bits of its strength.

mod guess;
mod id_span;

use core::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use crc32fast::Hasher;
use iba::Psn;
use zerocopy::IntoBytes;

use crate::bth;
use crate::headers::ParseError;
use crate::ip::{IPV4_LEN, Ipv4, Ipv6, PROTOCOL_UDP, UDP_LEN, Udp};

use guess::Guess;
pub use id_span::IdSpan;

/// Bytes of the ICRC.
pub const LEN: usize = 4;

/// The byte of the BTH whose bits count as ones: FECN, BECN and six reserved ones.
const BTH_MASKED_BYTE: usize = 4;

/// The addresses around a packet, as far as its ICRC depends on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_enums, reason = "RoCEv2 runs over two versions of IP")]
pub enum Flow {
    /// IPv4.
    V4 {
        /// Sender.
        src: Ipv4Addr,
        /// Receiver.
        dst: Ipv4Addr,
        /// UDP source port.
        src_port: u16,
        /// UDP destination port.
        dst_port: u16,
        /// The "don't fragment" bit.
        df: bool,
    },
    /// IPv6.
    V6 {
        /// Sender.
        src: Ipv6Addr,
        /// Receiver.
        dst: Ipv6Addr,
        /// UDP source port.
        src_port: u16,
        /// UDP destination port.
        dst_port: u16,
    },
}

impl Flow {
    /// The flow between two sockets, with "don't fragment" set. Mapped IPv4 addresses count as
    /// IPv4. `None` if one address is IPv4 and the other IPv6.
    pub fn new(src: SocketAddr, dst: SocketAddr) -> Option<Self> {
        let (src_port, dst_port) = (src.port(), dst.port());
        match (src.ip().to_canonical(), dst.ip().to_canonical()) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                Some(Self::V4 { src, dst, src_port, dst_port, df: true })
            }
            (IpAddr::V6(src), IpAddr::V6(dst)) => Some(Self::V6 { src, dst, src_port, dst_port }),
            _ => None,
        }
    }

    /// Feeds everything before the BTH of a packet of `len` bytes without its ICRC.
    fn hash(&self, hasher: &mut Hasher, id: u16, len: usize) {
        const LRH: [u8; 8] = [0xff; 8];
        // The fields have 16 bits; a longer packet has no IP header, so what its ICRC would be does
        // not matter.
        let udp_len = (UDP_LEN + len + LEN) as u16;
        let udp = |src_port, dst_port| {
            Udp { src_port, dst_port, length: udp_len, checksum: 0xffff }.to_raw()
        };
        match *self {
            Self::V4 { src, dst, src_port, dst_port, df } => {
                let mut ip = Ipv4 {
                    tos: 0xff,
                    total_len: udp_len.wrapping_add(IPV4_LEN as u16),
                    id,
                    df,
                    ttl: 0xff,
                    protocol: PROTOCOL_UDP,
                    src,
                    dst,
                }
                .to_raw();
                ip.set_checksum(0xffff);
                let mut prefix = [0xff; LRH.len() + IPV4_LEN + UDP_LEN];
                prefix[LRH.len()..][..IPV4_LEN].copy_from_slice(ip.as_bytes());
                prefix[LRH.len() + IPV4_LEN..].copy_from_slice(udp(src_port, dst_port).as_bytes());
                hasher.update(&prefix);
            }
            Self::V6 { src, dst, src_port, dst_port } => {
                let ip = Ipv6 {
                    traffic_class: 0xff,
                    flow_label: 0xf_ffff,
                    payload_len: udp_len,
                    next_header: PROTOCOL_UDP,
                    hop_limit: 0xff,
                    src,
                    dst,
                };
                hasher.update(&LRH);
                hasher.update(ip.to_raw().as_bytes());
                hasher.update(udp(src_port, dst_port).as_bytes());
            }
        }
    }
}

/// An ICRC that is computed piece by piece, for packets whose bytes are not contiguous.
#[derive(Clone, Debug)]
pub struct Icrc(Hasher);

impl Icrc {
    /// Begins with the headers of a packet: BTH first, as [`Headers::emit`](crate::Headers::emit)
    /// wrote them. `len` counts the bytes from the BTH to the end of the padding. `id` is the
    /// identification of the IPv4 header.
    pub fn new(flow: &Flow, id: u16, len: usize, headers: &[u8]) -> Self {
        let mut hasher = Hasher::new();
        flow.hash(&mut hasher, id, len);
        if let Some((bth, rest)) = headers.split_first_chunk::<{ bth::LEN }>() {
            let mut bth = *bth;
            bth[BTH_MASKED_BYTE] = 0xff;
            hasher.update(&bth);
            hasher.update(rest);
        } else {
            hasher.update(headers);
        }
        Self(hasher)
    }

    /// Continues with a part of the payload or its padding.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    /// The value.
    #[must_use]
    pub fn finish(self) -> u32 {
        self.0.finalize()
    }
}

/// The ICRC of a packet: the bytes from the BTH to the end of the padding. `id` is the
/// identification of the IPv4 header; IPv6 has none and ignores it.
#[must_use]
pub fn compute(flow: &Flow, id: u16, packet: &[u8]) -> u32 {
    Icrc::new(flow, id, packet.len(), packet).finish()
}

/// The ICRC of a packet of `len` bytes without its ICRC, sent with identification `id`, from the
/// ICRC for identification 0. A sender of many packets of one length keeps the [`IdSpan`] instead.
#[must_use]
pub fn compute_for_id(flow: &Flow, icrc_of_id_0: u32, len: usize, id: u16) -> u32 {
    match flow {
        Flow::V4 { .. } => icrc_of_id_0 ^ IdSpan::new(len).delta(id),
        Flow::V6 { .. } => icrc_of_id_0,
    }
}

/// Splits the payload of a UDP datagram into the packet and its ICRC, without checking it.
pub fn split(datagram: &[u8]) -> Result<(&[u8], u32), ParseError> {
    let Some((packet, icrc)) = datagram.split_last_chunk() else {
        return Err(ParseError::Truncated { header: "ICRC", missing: LEN - datagram.len() });
    };
    Ok((packet, u32::from_le_bytes(*icrc)))
}

/// Splits the ICRC off the payload of a UDP datagram and checks it, for any identification of the
/// IPv4 header. Returns the packet and the identification, 0 over IPv6.
///
/// A receiver of many packets uses a [`Verifier`], which remembers what depends only on the length.
pub fn verify<'a>(flow: &Flow, datagram: &'a [u8]) -> Result<(&'a [u8], u16), IcrcError> {
    let (packet, received) = split(datagram)?;
    check(flow, packet, received, compute(flow, 0, packet), IdSpan::new)
}

/// Computes ICRCs as [`compute`] does, and remembers what packets of one flow and length have in
/// common: everything before the BTH except the identification.
#[derive(Clone, Debug, Default)]
pub struct Sealer {
    /// The flow and the length of recent packets, and the CRC of what precedes their BTH, with
    /// identification 0. Indexed by length modulo the size, in units of four bytes: small messages
    /// and their acknowledgements alternate.
    recent: [Option<(Flow, usize, u32)>; 4],
}

/// What each value of the upper and of the lower half of an identification adds to the CRC of the
/// bytes before the BTH.
const ID_HALVES: [[u32; 256]; 2] = {
    let span = IdSpan::new(0);
    let mut deltas = [[0; 256]; 2];
    let mut half = 0;
    while half < 256 {
        deltas[0][half] = span.delta((half as u16) << 8);
        deltas[1][half] = span.delta(half as u16);
        half += 1;
    }
    deltas
};

/// What is added to the CRC of the bytes before the BTH when these bits of the masked byte differ.
///
/// A difference in that byte equals a difference in the register, 32 steps of the CRC earlier.
const MASKED: [u32; 256] = {
    let mut deltas = [0; 256];
    let mut bits = 0;
    while bits < deltas.len() {
        deltas[bits] = id_span::before(bits as u32, 8 * BTH_MASKED_BYTE as u32);
        bits += 1;
    }
    deltas
};

impl Sealer {
    /// One that remembers nothing yet.
    pub const fn new() -> Self {
        Self { recent: [None; 4] }
    }

    /// The ICRC of a packet: the bytes from the BTH to the end of the padding. `id` is the
    /// identification of the IPv4 header; IPv6 has none and ignores it.
    #[must_use]
    pub fn compute(&mut self, flow: &Flow, id: u16, packet: &[u8]) -> u32 {
        // All in one piece: a start and an end cost as much as hundreds of bytes.
        self.begin(flow, id, packet.len(), packet)
    }

    /// The ICRC up to the end of the first bytes of a packet, which are at least a BTH. `len`
    /// counts the bytes from the BTH to the end of the padding. The CRC-32 that continues from
    /// there to the end of the padding is the ICRC of the packet.
    #[must_use]
    pub fn begin(&mut self, flow: &Flow, id: u16, len: usize, first: &[u8]) -> u32 {
        let recent = &mut self.recent[len / 4 % 4];
        let before = match recent {
            Some((known, known_len, crc)) if *known_len == len && known == flow => *crc,
            _ => {
                let mut hasher = Hasher::new();
                flow.hash(&mut hasher, 0, len);
                let crc = hasher.finalize();
                *recent = Some((*flow, len, crc));
                crc
            }
        };
        let delta = match flow {
            Flow::V4 { .. } => {
                let [upper, lower] = id.to_be_bytes();
                ID_HALVES[0][usize::from(upper)] ^ ID_HALVES[1][usize::from(lower)]
            }
            Flow::V6 { .. } => 0,
        };
        // Bytes shorter than a BTH are no packet; their ICRC is that of the bytes.
        let masked = match first.get(BTH_MASKED_BYTE) {
            Some(byte) if len >= bth::LEN => MASKED[usize::from(!byte)],
            _ => 0,
        };
        go_on(before ^ delta ^ masked, first)
    }
}

/// What is added to a CRC at the end of a BTH when this many of the lowest bits of the sequence
/// number differ.
const PSN_BITS: [u32; 25] = {
    let mut deltas = [0; 25];
    let mut bits = 0;
    while bits < deltas.len() {
        deltas[bits] = id_span::of_last_word((1 << bits) - 1);
        bits += 1;
    }
    deltas
};

/// The same for the identification.
const ID_BITS: [u32; 17] = {
    let span = IdSpan::new(bth::LEN);
    let mut deltas = [0; 17];
    let mut bits = 0;
    while bits < deltas.len() {
        deltas[bits] = span.delta(((1_u32 << bits) - 1) as u16);
        bits += 1;
    }
    deltas
};

/// From the result of [`Sealer::begin`] for a BTH to the result for the next packet of a train,
/// which has the same length, and whose BTH differs only in the next sequence number. `id` and
/// `psn` are those of the first one.
#[inline]
#[must_use]
pub fn next_of_train(crc: u32, flow: &Flow, id: u16, psn: Psn) -> u32 {
    // An increment changes the ones at the end and the bit before them.
    let psn_bits = (psn.value().trailing_ones() + 1).min(24);
    let id_delta = match flow {
        Flow::V4 { .. } => ID_BITS[(id.trailing_ones() + 1).min(16) as usize],
        Flow::V6 { .. } => 0,
    };
    crc ^ PSN_BITS[psn_bits as usize] ^ id_delta
}

/// Continues from [`Sealer::begin`] with more bytes.
#[must_use]
pub fn go_on(crc: u32, bytes: &[u8]) -> u32 {
    if bytes.is_empty() {
        return crc;
    }
    let mut hasher = Hasher::new_with_initial(crc);
    hasher.update(bytes);
    hasher.finalize()
}

/// Checks ICRCs as [`verify`] does, and remembers the [`IdSpan`] of recent lengths, and which
/// identifications senders use.
#[derive(Clone, Debug)]
pub struct Verifier {
    sealer: Sealer,
    guess: Guess,
    /// Indexed by length modulo the size, in units of four bytes, as every length is a multiple of
    /// four.
    spans: [Option<IdSpan>; 16],
}

impl Verifier {
    /// One that remembers nothing yet.
    pub const fn new() -> Self {
        Self { sealer: Sealer::new(), guess: Guess::new(), spans: [None; 16] }
    }

    /// Notes that the next packet is the first of a train: packets of a flow that arrived together.
    /// Omitting this only costs time.
    #[inline]
    pub fn begin_train(&mut self, flow: &Flow) {
        self.guess.begin_train(flow);
    }

    /// Splits the ICRC off the payload of a UDP datagram and checks it, for any identification of
    /// the IPv4 header. Returns the packet and the identification, 0 over IPv6.
    pub fn verify<'a>(
        &mut self,
        flow: &Flow,
        datagram: &'a [u8],
    ) -> Result<(&'a [u8], u16), IcrcError> {
        let (packet, received) = split(datagram)?;
        let guess = match flow {
            Flow::V4 { .. } => self.guess.next(),
            Flow::V6 { .. } => 0,
        };
        let expected = self.sealer.compute(flow, guess, packet);
        let (packet, difference) = check(flow, packet, received, expected, |len| self.span(len))
            .map_err(|_| IcrcError::Mismatch { received, expected: compute(flow, 0, packet) })?;
        let id = guess ^ difference;
        self.guess.found(id);
        Ok((packet, id))
    }

    /// The result of [`Sealer::begin`], for callers that compute and compare the ICRCs of a train
    /// themselves.
    #[must_use]
    pub fn begin(&mut self, flow: &Flow, id: u16, len: usize, first: &[u8]) -> u32 {
        self.sealer.begin(flow, id, len, first)
    }

    /// Notes that a packet with this identification was valid, as those of a train count up.
    pub fn found(&mut self, id: u16) {
        self.guess.found(id);
    }

    /// The span of a length, remembered or new.
    pub fn span(&mut self, len: usize) -> IdSpan {
        let slot = &mut self.spans[len / 4 % 16];
        match slot {
            Some(span) if span.packet_len() == len => *span,
            _ => *slot.insert(IdSpan::new(len)),
        }
    }
}

impl Default for Verifier {
    fn default() -> Self {
        Self::new()
    }
}

/// Why a datagram fails the check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IcrcError {
    /// It is shorter than an ICRC.
    #[error(transparent)]
    Parse(#[from] ParseError),
    /// The ICRC is not that of the packet, for any identification.
    #[error("ICRC {received:#010x}, expected {expected:#010x}")]
    Mismatch {
        /// The ICRC of the datagram.
        received: u32,
        /// The right ICRC for identification 0.
        expected: u32,
    },
}

/// Returns the packet, and how its identification differs from the one that `expected` is for.
fn check<'a>(
    flow: &Flow,
    packet: &'a [u8],
    received: u32,
    expected: u32,
    span: impl FnOnce(usize) -> IdSpan,
) -> Result<(&'a [u8], u16), IcrcError> {
    if received == expected {
        return Ok((packet, 0));
    }
    let id = match flow {
        Flow::V4 { .. } => span(packet.len()).solve(received ^ expected),
        Flow::V6 { .. } => None,
    };
    id.map(|id| (packet, id)).ok_or(IcrcError::Mismatch { received, expected })
}
