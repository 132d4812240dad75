//! Packets that overtook a lost one.
//!
//! IBA lets a responder drop them, and the requester send everything again from the lost one on.
//! Here the owner of the QP keeps them ([`Early`]) until the lost one was sent again, and the
//! responder tells the requester what it has (`wire::sack`), which then sends only what is missing
//! (`repair`). A requester that knows nothing of this sends everything again: what it sends twice
//! is a duplicate.
//!
//! Of requests only SENDs and WRITEs are kept. Others are short, and the responder's resources for
//! them few.
//!
//! The answers to those, READ responses and results of atomics, are kept in the same way for the
//! requester, which then requests only what is missing (`gaps`).

use std::collections::VecDeque;

use iba::{Psn, QpState, QpType};
use wire::{Headers, Opcode, Sack, SackRange, Service};

use crate::env::{Env, Rx, Skipped, Source, To, TransmitError};
use crate::qp::{Qp, Sent};
use crate::ranges::Ranges;
use crate::resp::Responder;

/// How far ahead of the packet that is missing one is kept: the largest window of a wire, and some
/// more.
pub(crate) const FARTHEST: u32 = 1024;
/// The most packets in a row that may be missing before one that is kept: the first window of a
/// wire. Whoever guesses sequence numbers must come that near: a packet that the peer never sent
/// would be taken for one that overtook others, and be used in place of the true one.
const WIDEST: u32 = 128;

/// A packet that came early.
#[derive(Debug)]
#[non_exhaustive]
pub struct EarlyPacket<P> {
    /// Its headers.
    pub headers: Headers,
    /// Its payload.
    pub payload: P,
    /// Bytes of the payload.
    pub length: u32,
}

impl<P> EarlyPacket<P> {
    /// The packet as it is given to [`Qp::handle_packet`], with its payload as the environment
    /// knows it. A mark was noted when it arrived.
    pub fn rx<'a, Q>(&'a self, payload: &'a Q) -> Rx<'a, Q> {
        Rx {
            headers: &self.headers,
            payload,
            length: self.length,
            packets: 1,
            skipped: Skipped::default(),
            grh: None,
            marked: false,
        }
    }
}

/// The packets of one QP that came early, in the order of their sequence numbers.
#[derive(Debug)]
pub struct Early<P> {
    requests: VecDeque<EarlyPacket<P>>,
    answers: VecDeque<EarlyPacket<P>>,
}

impl<P> Default for Early<P> {
    fn default() -> Self {
        Self { requests: VecDeque::new(), answers: VecDeque::new() }
    }
}

impl<P> Early<P> {
    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.requests.is_empty() && self.answers.is_empty()
    }

    /// Keeps a packet for `qp`, which [awaits it later](Qp::is_early). It must still be given to
    /// [`Qp::handle_packet`].
    pub fn keep(&mut self, qp: &mut Qp, headers: Headers, length: u32, payload: P) {
        let psn = headers.bth.psn;
        let is_request = headers.bth.opcode.operation().is_request();
        let (packets, kept) = if is_request {
            (&mut self.requests, &qp.resp.kept)
        } else {
            (&mut self.answers, &qp.req.gaps.kept)
        };
        if kept.is_empty() {
            // Of an earlier connection.
            packets.clear();
        }
        let at = packets.partition_point(|packet| packet.headers.bth.psn.is_before(psn));
        packets.insert(at, EarlyPacket { headers, payload, length });
        if is_request {
            qp.note_kept(psn, headers.bth.ackreq);
        } else {
            qp.req.gaps.kept.insert(psn, 1);
        }
    }

    /// Takes the packet whose turn has come, for [`Qp::handle_packet`] and then
    /// [`put_back`](Self::put_back). Ask again afterwards. Packets that nobody waits for any more
    /// are gone.
    pub fn next(&mut self, qp: &mut Qp) -> Option<EarlyPacket<P>> {
        self.next_request(qp).or_else(|| self.next_answer(qp))
    }

    fn next_request(&mut self, qp: &mut Qp) -> Option<EarlyPacket<P>> {
        if !qp.state().receives() {
            self.requests.clear();
        }
        let Responder { psn: expected, kept, owes_sack, .. } = &mut qp.resp;
        match take(&mut self.requests, kept, *expected) {
            Some(mut packet) => {
                // The peer learns where the next gap is, or that there is none.
                packet.headers.bth.ackreq |= kept.run_at(expected.add(1)) == 0;
                Some(packet)
            }
            None => {
                *owes_sack &= !kept.is_empty();
                None
            }
        }
    }

    /// Keeps a packet that [`Qp::handle_packet`] did not take after all, as the memory for it is
    /// absent. Its turn comes again after [`Qp::poll_transmit`].
    pub fn put_back(&mut self, qp: &mut Qp, packet: EarlyPacket<P>) {
        let psn = packet.headers.bth.psn;
        let is_answer = packet.headers.bth.opcode.operation().is_response();
        if is_answer && qp.req.place_missing && psn == qp.req.una {
            self.answers.push_front(packet);
            qp.req.gaps.kept.insert(psn, 1);
        }
    }

    fn next_answer(&mut self, qp: &mut Qp) -> Option<EarlyPacket<P>> {
        if !matches!(qp.state(), QpState::Rts | QpState::Sqd) {
            self.answers.clear();
        }
        if qp.req.place_missing {
            return None;
        }
        take(&mut self.answers, &mut qp.req.gaps.kept, qp.req.una)
    }
}

/// Takes the packet with the number that is `awaited`. Those before it are gone.
fn take<P>(
    packets: &mut VecDeque<EarlyPacket<P>>,
    kept: &mut Ranges,
    awaited: Psn,
) -> Option<EarlyPacket<P>> {
    if kept.is_empty() {
        packets.clear();
    }
    while let Some(front) = packets.front() {
        let psn = front.headers.bth.psn;
        let distance = psn.distance(awaited);
        if distance > 0 {
            return None;
        }
        let packet = packets.pop_front();
        kept.remove_before(psn.add(1));
        if distance == 0 {
            return packet;
        }
    }
    kept.clear();
    None
}

/// Whether a packet is near enough to what came before it: `kept`, or all before `expected`.
pub(crate) fn is_near(kept: &Ranges, expected: Psn, psn: Psn) -> bool {
    let end = kept.end().unwrap_or(expected);
    psn.distance(end) <= WIDEST.cast_signed()
}

impl Qp {
    /// Whether a packet came before its turn and is worth keeping ([`Early`]): one of a wire, of a
    /// SEND or a WRITE, or an answer to a READ or an atomic, while the packet before it is missing.
    #[inline]
    pub fn is_early(&self, headers: &Headers, length: u32) -> bool {
        let (opcode, psn) = (headers.bth.opcode, headers.bth.psn);
        if opcode.operation().is_request() {
            psn != self.resp.psn && self.is_early_request(headers, length)
        } else {
            psn != self.req.una && self.is_early_answer(headers, length)
        }
    }

    fn is_early_request(&self, headers: &Headers, length: u32) -> bool {
        let opcode = headers.bth.opcode;
        let ahead = headers.bth.psn.distance(self.resp.psn);
        matches!(self.qp_type, QpType::Rc | QpType::XrcRecv)
            && !self.path.reliable
            && length <= self.path.path_mtu.bytes()
            && self.state().receives()
            && Some(opcode.service()) == Service::of(self.qp_type)
            && (opcode.operation().is_send() || opcode.operation().is_write())
            && (1..FARTHEST.cast_signed()).contains(&ahead)
            && !self.resp.is_pausing()
            && self.resp.kept.run_at(headers.bth.psn) == 0
            && is_near(&self.resp.kept, self.resp.psn, headers.bth.psn)
    }

    /// A packet that came early is kept. The peer learns of it soon if that tells it of a packet
    /// that is missing, or if it asks.
    fn note_kept(&mut self, psn: Psn, is_asked: bool) {
        let is_behind_gap = self.resp.kept.insert(psn, 1);
        self.resp.owes_sack |= is_behind_gap || is_asked;
    }

    /// Sends what is kept.
    pub(crate) fn transmit_sack<E: Env>(&mut self, env: &mut E) -> Sent {
        let expected = self.resp.psn;
        let mut sack = Sack::default();
        for (place, range) in sack.ranges.iter_mut().zip(self.resp.kept.iter()) {
            // Both are at most FARTHEST.
            let ahead = range.first.sub(expected.value()).value() as u16;
            *place = SackRange { ahead, count: range.len() as u16 };
        }
        let mut headers = Headers::new(Opcode::Sack, self.attr.dest_qpn, expected);
        headers.set_sack(sack);
        let sent = env.transmit(To::Peer, &headers, Source::Empty, Skipped::default());
        // If it is lost, the peer sends more than it must.
        if matches!(sent, Err(TransmitError::Blocked)) {
            return Sent::Blocked;
        }
        self.resp.owes_sack = false;
        Sent::Packets(1)
    }
}
