//! The records and datagrams of small messages and their acknowledgements, without building headers
//! (`transport::FastPacket`): they are written as words, and recognised by comparing them with what
//! would have been written. A record is the same whichever path it takes at either end, and so is a
//! datagram.

use iba::Qpn;
use transport::FastPacket;
use umem::Foreign;
use wire::aeth::RawAeth;
use wire::bth::RawBth;
use wire::{Aeth, Bth, Opcode, Syndrome};
use zerocopy::{FromBytes, IntoBytes};

use crate::carrier::shm::record::{FIXED, PACKET};

/// The prefix of a record before its payload: the fixed part and a BTH.
const SEND: usize = FIXED + wire::bth::LEN;
/// The same for an acknowledgement.
const ACK: usize = SEND + wire::aeth::LEN;
/// Bytes of the longest headers of such a packet.
const HEADERS: usize = wire::bth::LEN + wire::aeth::LEN;

/// The opcodes that take it.
const SEND_ONLY: u8 = Opcode::RcSendOnly.code();
const ACKNOWLEDGE: u8 = Opcode::RcAck.code();

/// The prefix of a record that takes the fast path, in machine words: bytes that were just stored
/// in small pieces cannot be loaded as words before those stores are done, and they queue behind a
/// store to a cache line of the peer.
pub(crate) struct Prefix {
    words: [u32; ACK / 4],
    length: usize,
}

impl Prefix {
    /// The prefix of a packet from one QP to another.
    #[inline]
    pub(crate) fn new(packet: FastPacket, source: Qpn, dest: Qpn, length: u32) -> Self {
        let ([first, second, third, aeth], size) = headers(packet, dest, length);
        let fixed = u32::from_ne_bytes([PACKET, 0, size as u8, 0]);
        let words = [fixed, length, source.value(), first, second, third, aeth];
        Self { words, length: FIXED + size }
    }

    #[inline]
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.words.as_bytes()[..self.length]
    }

    /// Whether a record begins with it.
    #[inline]
    fn begins(&self, bytes: &[u8; ACK]) -> bool {
        // After the prefix of a SEND comes payload.
        let mask = if self.length == SEND { 0 } else { u32::MAX };
        let differs = |at: usize| word(bytes, 4 * at) ^ self.words[at];
        let before = (0..SEND / 4).fold(0, |before, at| before | differs(at));
        before | differs(SEND / 4) & mask == 0
    }
}

/// The headers of a packet in machine words, and their length in bytes.
#[inline]
pub(crate) fn headers(packet: FastPacket, dest: Qpn, length: u32) -> ([u32; HEADERS / 4], usize) {
    let (bth, aeth, size) = match packet {
        FastPacket::Send { psn, se, ackreq } => {
            let pad = wire::bth::pad_for(length as usize);
            let bth = Bth { se, ackreq, pad, ..Bth::new(Opcode::RcSendOnly, dest, psn) };
            (bth, 0, wire::bth::LEN)
        }
        FastPacket::Ack { psn, msn } => {
            let aeth = Aeth { syndrome: Syndrome::ACK, msn }.to_raw();
            (Bth::new(Opcode::RcAck, dest, psn), word(aeth.as_bytes(), 0), HEADERS)
        }
    };
    let bth = bth.to_raw();
    let bth = bth.as_bytes();
    ([word(bth, 0), word(bth, 4), word(bth, 8), aeth], size)
}

#[inline]
fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

/// A record that may take the fast path.
pub(crate) struct Arrived<'a> {
    pub(crate) packet: FastPacket,
    pub(crate) source: Qpn,
    pub(crate) dest: Qpn,
    pub(crate) payload: Foreign<'a>,
}

/// Recognises a record that takes the fast path. Reads its prefix once.
#[inline]
pub(crate) fn read(record: Foreign<'_>) -> Option<Arrived<'_>> {
    let mut bytes = [0; ACK];
    let have = record.len().min(ACK);
    record.slice(0, have)?.copy_to(&mut bytes[..have]).ok()?;
    let bth = RawBth::ref_from_bytes(&bytes[FIXED..SEND]).ok()?;
    let psn = bth.psn();
    // As a number: looking it up in the table of opcodes takes longer than all else here.
    let packet = match bytes[FIXED] {
        SEND_ONLY => FastPacket::Send { psn, se: bth.se(), ackreq: bth.ackreq() },
        ACKNOWLEDGE => {
            let aeth = RawAeth::ref_from_bytes(&bytes[SEND..]).ok()?;
            FastPacket::Ack { psn, msn: aeth.msn() }
        }
        _ => return None,
    };
    let (length, source) = (word(&bytes, 4), Qpn::new(word(&bytes, 8)));
    let dest = bth.dest_qp();
    let expected = Prefix::new(packet, source, dest, length);
    let start = expected.length;
    if have < start || !expected.begins(&bytes) {
        return None;
    }
    let payload = record.slice(start, length as usize)?;
    Some(Arrived { packet, source, dest, payload })
}

/// The packet in a datagram without its ICRC, its destination, and where its payload is, if it
/// takes the fast path.
#[inline]
pub(crate) fn read_datagram(datagram: &[u8]) -> Option<(FastPacket, Qpn, &[u8])> {
    let (bth, rest) = RawBth::ref_from_prefix(datagram).ok()?;
    let psn = bth.psn();
    let (packet, payload) = match bth.opcode() {
        Opcode::RcSendOnly if rest.len().is_multiple_of(4) => {
            let length = rest.len().checked_sub(bth.pad().into())?;
            (FastPacket::Send { psn, se: bth.se(), ackreq: bth.ackreq() }, &rest[..length])
        }
        Opcode::RcAck => {
            let aeth = RawAeth::ref_from_bytes(rest).ok()?;
            (FastPacket::Ack { psn, msn: aeth.msn() }, &rest[..0])
        }
        _ => return None,
    };
    let dest = bth.dest_qp();
    let (expected, size) = headers(packet, dest, payload.len() as u32);
    // Word by word: a call to a comparison costs more.
    let (words, _) = datagram.get(..size)?.as_chunks();
    let differs = |(word, expected): (&[u8; 4], &u32)| u32::from_ne_bytes(*word) ^ expected;
    let difference = words.iter().zip(&expected).map(differs).fold(0, |all, one| all | one);
    (difference == 0).then_some((packet, dest, payload))
}

#[cfg(test)]
mod tests;
