//! Packets that overtook a lost one.
//!
//! IBA lets a responder drop them, and the requester send everything again from the lost one on.
//! Here the owner of the QP keeps them ([`Early`]) until the lost one was sent again, and the
//! responder tells the requester what it has (`wire::sack`), which then sends only what is missing
//! (`repair`). A requester that knows nothing of this sends everything again: what it sends twice
//! is a duplicate.
//!
//! Only SENDs and WRITEs are kept. Other requests are short, and the responder's resources for them
//! few.

use std::collections::VecDeque;

use iba::{Psn, QpType};
use wire::{Headers, Opcode, Sack, SackRange, Service};

use crate::env::{Env, Rx, Skipped, Source, To, TransmitError};
use crate::qp::{Qp, Sent};

/// How far ahead of the packet that is missing one is kept: the largest window of a wire, and some
/// more.
pub(crate) const FARTHEST: u32 = 1024;

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
    packets: VecDeque<EarlyPacket<P>>,
}

impl<P> Default for Early<P> {
    fn default() -> Self {
        Self { packets: VecDeque::new() }
    }
}

impl<P> Early<P> {
    /// Whether there are none.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.packets.is_empty()
    }

    /// Keeps a packet for `qp`, which [awaits it later](Qp::is_early). It must still be given to
    /// [`Qp::handle_packet`].
    pub fn keep(&mut self, qp: &mut Qp, headers: Headers, length: u32, payload: P) {
        if qp.resp.kept.is_empty() {
            // Of an earlier connection.
            self.packets.clear();
        }
        let psn = headers.bth.psn;
        let at = self.packets.partition_point(|packet| packet.headers.bth.psn.is_before(psn));
        self.packets.insert(at, EarlyPacket { headers, payload, length });
        qp.note_kept(psn, headers.bth.ackreq);
    }

    /// Takes the packet whose turn has come, for [`Qp::handle_packet`]. Ask again afterwards.
    /// Packets that nobody waits for any more are gone.
    pub fn next(&mut self, qp: &mut Qp) -> Option<EarlyPacket<P>> {
        if !qp.state().receives() || qp.resp.kept.is_empty() {
            self.packets.clear();
        }
        while let Some(front) = self.packets.front() {
            let psn = front.headers.bth.psn;
            let distance = psn.distance(qp.resp.psn);
            if distance > 0 {
                return None;
            }
            let mut packet = self.packets.pop_front()?;
            qp.resp.kept.remove_before(psn.add(1));
            if distance == 0 {
                // The peer learns where the next gap is, or that there is none.
                packet.headers.bth.ackreq |= qp.resp.kept.run_at(psn.add(1)) == 0;
                return Some(packet);
            }
        }
        qp.resp.kept.clear();
        qp.resp.owes_sack = false;
        None
    }
}

impl Qp {
    /// Whether a packet came before its turn and is worth keeping ([`Early`]): one of a wire, of a
    /// SEND or a WRITE, while the packet before it is missing.
    #[inline]
    pub fn is_early(&self, headers: &Headers, length: u32) -> bool {
        headers.bth.psn != self.resp.psn && self.keeps(headers, length)
    }

    fn keeps(&self, headers: &Headers, length: u32) -> bool {
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
