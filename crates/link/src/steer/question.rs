//! Questions for the order of the sockets, and their answers.

use std::net::SocketAddr;

/// How many indexes are asked about at once.
pub(super) const WAVE: u16 = 16;
/// Questions and answers are datagrams of this length:
///
/// | bytes | what |
/// |---|---|
/// | 0..4 | [`QUESTION`] or [`ANSWER`] |
/// | 4..8 | zeros; in a packet of RoCE, bits and QPN 0, which no QP on Ethernet has |
/// | 8..12 | the index asked about |
/// | 12..20 | a number that the asker chose |
/// | 20..24 | in an answer, the VF; in a question, 0, or 1 if it is a request to steer again |
///
/// All numbers are big-endian.
pub(super) const LENGTH: usize = 24;
/// Begins with an opcode that IBA leaves to vendors.
pub(super) const QUESTION: u32 = 0xff50_5251;
pub(super) const ANSWER: u32 = 0xff50_5241;
/// Marks a question as a request to steer again.
pub(super) const STEER_AGAIN: u32 = 1;

/// Whether the packet at the start of `bytes` is steered to a VF by the table.
pub(crate) fn leads_to(vf: u16, bytes: &[u8]) -> bool {
    matches!(*bytes, [_, _, _, _, _, high, middle, _, ..]
        if u16::from_be_bytes([high, middle]) >> 6 == vf)
}

/// Whether one of the datagrams can be a question.
pub(crate) fn may_come_from(src: SocketAddr) -> bool {
    src.ip().is_loopback()
}

/// A question to the socket at an index.
pub(crate) fn question(index: u32) -> [u8; LENGTH] {
    let mut question = [0; LENGTH];
    question[..4].copy_from_slice(&QUESTION.to_be_bytes());
    question[8..12].copy_from_slice(&index.to_be_bytes());
    question
}

/// Questions to the first indexes that want no answer: processes that receive them start to ask.
pub(crate) fn requests_to_steer() -> impl Iterator<Item = [u8; LENGTH]> {
    (0..u32::from(WAVE)).map(|index| {
        let mut request = question(index);
        request[20..].copy_from_slice(&STEER_AGAIN.to_be_bytes());
        request
    })
}

/// Whether a datagram is a request to steer again from this host.
pub(crate) fn is_request_to_steer(src: SocketAddr, bytes: &[u8]) -> bool {
    let request = <&[u8; LENGTH]>::try_from(bytes);
    let is_request_to_steer =
        |request| number(request, 0) == QUESTION && number(request, 20) == STEER_AGAIN;
    src.ip().is_loopback() && request.is_ok_and(is_request_to_steer)
}

/// The answer to a datagram, if it is a question. Only this host may ask: no packet from the wire
/// has a loopback source (RFC 1122 3.2.1.3), so a stranger cannot learn which VFs there are.
pub(crate) fn answer(vf: u16, src: SocketAddr, bytes: &[u8]) -> Option<[u8; LENGTH]> {
    let mut answer = <[u8; LENGTH]>::try_from(bytes).ok()?;
    if number(&answer, 0) != QUESTION || !src.ip().is_loopback() {
        return None;
    }
    answer[..4].copy_from_slice(&ANSWER.to_be_bytes());
    answer[20..].copy_from_slice(&u32::from(vf).to_be_bytes());
    Some(answer)
}

/// The big-endian number at `at`.
pub(super) fn number(bytes: &[u8; LENGTH], at: usize) -> u32 {
    bytes[at..at + 4].iter().fold(0, |number, byte| number << 8 | u32::from(*byte))
}
