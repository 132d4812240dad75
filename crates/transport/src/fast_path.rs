//! The fast path of small messages: a SEND of one packet, and its acknowledgement, when nothing is
//! unusual.
//!
//! A ping-pong consists of nothing else, and most of what the three machines check cannot matter to
//! it. So a device may post by [`Qp::post_fast`], and offer a packet to [`Qp::handle_fast`] before
//! it parses headers. Each first makes sure that nothing is unusual, and then does what the
//! machines would have done. Otherwise it declines, and the device takes the full path, which alone
//! has the rules for unusual cases. Both paths send the same packets, so one end may take the fast
//! path when the other does not.

mod packet;

use std::{mem, slice};

use iba::{Psn, QpState, QpType, SendFlags, WcOpcode, WrOpcode};

use crate::env::{Completion, Env, Side, Skipped, Source, TransmitError};
use crate::packet::payload;
use crate::qp::{Qp, Sent};
use crate::retry::Acked;
use crate::time::Time;
use crate::wqe::Wqe;
use crate::wr::{Data, PlainSend, Request};

pub use self::packet::FastPacket;

/// When the acknowledgement of a packet goes, where nothing is lost. Over a wire it always waits to
/// be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "a packet came alone, or not")]
pub enum AckWay {
    /// At once: the packet came alone, and its sender may wait for it.
    AtOnce,
    /// Behind the packets that came with it, in one for all of them (IBA 9.7.5).
    Together,
}

/// Proof that the next packet of a QP may take the fast path: it begins a request, and nothing else
/// is to be sent, except perhaps an acknowledgement after it.
struct Clear {
    /// Its sequence number.
    psn: Psn,
    /// The acknowledgement that waits, if one does ([`crate::AckPolicy`]).
    ack: Option<Psn>,
}

impl Qp {
    /// Puts a request on the send queue, as [`Qp::post_send`] does, and sends it if nothing is
    /// unusual, followed by an acknowledgement that waits ([`crate::AckPolicy`]).
    ///
    /// Returns whether [`Qp::poll_transmit`] then has nothing left to do. Whatever this returns,
    /// call [`Qp::watch`] before that.
    ///
    /// # Errors
    /// As for [`Qp::post_send`], and the errors of the request itself.
    #[inline]
    pub fn post_fast<E: Env, R: Request>(
        &mut self,
        env: &mut E,
        request: R,
    ) -> Result<bool, R::Error> {
        let mut clear = self.clear();
        if let (Some(usual), Some(plain)) = (&clear, request.plain())
            && self.takes(&plain)
        {
            // The packet first: it need not wait until the request is in its queue.
            let PlainSend { wr_id, flags, sge } = plain;
            let source =
                Source::Sges { sges: slice::from_ref(&sge), offset: 0, length: sge.length };
            let ackreq = self.asks(flags.contains(SendFlags::SIGNALED), true);
            if self.transmit_send(env, usual.psn, (flags, ackreq), source).is_ok() {
                self.sq.push_back(Wqe::EMPTY);
                if let Some(wqe) = self.sq.back_mut() {
                    // In place: to move it would wait for its parts to be written.
                    (wqe.wr.wr_id, wqe.wr.flags) = (wr_id, flags);
                    if let Data::Sges(list) = &mut wqe.wr.data {
                        list.push(sge);
                    }
                    (wqe.length, wqe.begun, wqe.first) = (sge.length, true, usual.psn);
                }
                return Ok(self.has_begun(env, usual, ackreq));
            }
            clear = None;
        }
        self.post_send_with(|to| request.fill(to))?;
        let (Some(clear), Some(wqe)) = (clear, self.sq.back()) else { return Ok(false) };
        let (wr, length) = (&wqe.wr, wqe.length);
        let is_short = wr.opcode == WrOpcode::Send && length <= self.path.path_mtu.bytes();
        if !is_short {
            return Ok(false);
        }
        let ackreq = self.asks(wqe.is_signaled(), true);
        let source = payload(&wr.data, 0, length);
        if self.transmit_send(env, clear.psn, (wr.flags, ackreq), source).is_err() {
            return Ok(false);
        }
        if let Some(wqe) = self.sq.back_mut() {
            (wqe.begun, wqe.first) = (true, clear.psn);
        }
        Ok(self.has_begun(env, &clear, ackreq))
    }

    /// Whether the send queue accepts this, and one packet can carry it.
    #[inline]
    fn takes(&self, send: &PlainSend) -> bool {
        self.sq.len() < self.cap.max_send_wr as usize
            && self.cap.max_send_sge > 0
            && send.sge.length <= self.path.path_mtu.bytes()
    }

    /// Sends the request at the cursor, which has not begun, if it is a SEND of one packet and
    /// nothing is unusual; this is what [`Qp::post_fast`] does for requests that were posted
    /// together, or that had to wait. `None` if it takes the full path.
    pub(crate) fn transmit_short<E: Env>(&mut self, env: &mut E, now: Time) -> Option<Sent> {
        let req = &self.req;
        let wqe = self.sq.get(req.index)?;
        let is_usual = wqe.wr.opcode == WrOpcode::Send
            && wqe.length <= self.path.path_mtu.bytes()
            && self.sends_fast()
            && env.takes_fast();
        if !is_usual {
            return None;
        }
        let (psn, flags) = (req.psn, wqe.wr.flags);
        let ackreq = self.asks(wqe.is_signaled(), true) || self.must_ask(1);
        let source = payload(&wqe.wr.data, 0, wqe.length);
        match self.transmit_send(env, psn, (flags, ackreq), source) {
            Ok(()) => {}
            Err(TransmitError::Blocked) => {
                self.wait_for_room(now);
                return Some(Sent::Blocked);
            }
            Err(_) => return None,
        }
        let wqe = self.sq.get_mut(self.req.index)?;
        (wqe.begun, wqe.first) = (true, psn);
        self.req.blocked = false;
        self.req.sent_one(ackreq);
        self.req.watch(now, &self.attr);
        Some(Sent::Packets(1))
    }

    /// Sends a SEND of one packet. If its memory cannot be read, the full path finds the reason
    /// again, and acts on it.
    #[inline]
    fn transmit_send<E: Env>(
        &self,
        env: &mut E,
        psn: Psn,
        (flags, ackreq): (SendFlags, bool),
        source: Source<'_>,
    ) -> Result<(), TransmitError> {
        let se = flags.contains(SendFlags::SOLICITED);
        let packet = FastPacket::Send { psn, se, ackreq };
        let length = source.len();
        env.transmit_fast(packet, self.attr.dest_qpn, source, length)
    }

    /// Starts the ACK timer if a packet that took the fast path asks for it. The clock is read only
    /// then. The packet need not wait for that, but this must come before any other call.
    #[inline]
    pub fn watch(&mut self, clock: impl FnOnce() -> Time) {
        if mem::take(&mut self.req.watch_due) && !self.req.is_quiet() {
            self.req.watch(clock(), &self.attr);
        }
    }

    /// Whether a request that is posted now may be sent at once in a packet of the fast path.
    #[inline]
    fn clear(&self) -> Option<Clear> {
        let req = &self.req;
        let ack = if self.ack_delay.has_stayed() { self.resp.only_ack() } else { None };
        let is_clear = req.index == self.sq.len()
            && self.sends_fast()
            && !self.owes_report()
            && (ack.is_some() || !self.resp.has_answers())
            && req.rnr_until.is_none()
            && !req.blocked;
        is_clear.then_some(Clear { psn: req.psn, ack })
    }

    /// Whether the next packet may take the fast path, as far as the packets before it matter.
    #[inline]
    fn sends_fast(&self) -> bool {
        let req = &self.req;
        self.is_fast()
            && req.psn == req.max
            && req.has.is_empty()
            && req.rd_atomic == 0
            && !self.pace.is_limited()
            && req.skipped == Skipped::default()
            && req.outstanding() < self.window.packets()
    }

    /// Notes that the last request was sent in one packet, and sends the acknowledgement behind it.
    /// False if that was not possible.
    fn has_begun<E: Env>(&mut self, env: &mut E, clear: &Clear, ackreq: bool) -> bool {
        self.req.sent_one(ackreq);
        self.req.watch_due = self.req.ack_timer.is_none();
        self.ack_delay.end();
        let Some(psn) = clear.ack else { return true };
        let ack = FastPacket::Ack { psn, msn: self.resp.msn };
        if env.transmit_fast(ack, self.attr.dest_qpn, Source::Empty, 0).is_err() {
            return false;
        }
        self.resp.forget_answers();
        true
    }

    /// Handles a packet for this QP, with this many bytes of payload, if nothing is unusual.
    /// Otherwise nothing has happened, and the packet is one for [`Qp::handle_packet`], with no
    /// [`Skipped`] and no GRH.
    ///
    /// [`Qp::owes_answers`] and [`Qp::has_unsent`] say what is left to send: over a wire, each
    /// acknowledgement. Timers are set only by an acknowledgement that came with other packets in
    /// shared memory; otherwise `now` may be slightly late.
    #[must_use]
    pub fn handle_fast<E: Env>(
        &mut self,
        env: &mut E,
        now: Time,
        packet: FastPacket,
        (payload, length): (&E::Payload, u32),
        ack: AckWay,
    ) -> bool {
        let at_once = self.path.reliable && ack == AckWay::AtOnce;
        // What goes at once must not overtake others.
        if at_once && (self.resp.has_answers() && !self.holds_ack() || self.owes_report()) {
            return false;
        }
        match packet {
            FastPacket::Send { psn, se, ackreq } => {
                let ack = (ackreq, at_once && ackreq);
                self.receives_fast() && self.respond_fast(env, (psn, se), (payload, length), ack)
            }
            FastPacket::Ack { psn, .. } if length == 0 && self.is_fast() => {
                let together = self.path.reliable && ack == AckWay::Together;
                self.acknowledge_fast(env, now, psn)
                    || together && self.acknowledge_several(env, now, psn)
            }
            FastPacket::Ack { .. } => false,
        }
    }

    /// Whether this QP can receive by the fast path. In RTR, the first packet is an event.
    fn receives_fast(&self) -> bool {
        let rtr = self.state() == QpState::Rtr && self.comm_est;
        self.is_fast() || rtr && self.qp_type == QpType::Rc
    }

    /// Whether this QP can use the fast path.
    fn is_fast(&self) -> bool {
        self.qp_type == QpType::Rc && self.state() == QpState::Rts
    }

    /// The steps of the responder from CHK_PSN to ACKNOWLEDGE.
    fn respond_fast<E: Env>(
        &mut self,
        env: &mut E,
        (psn, se): (Psn, bool),
        (payload, length): (&E::Payload, u32),
        (ackreq, at_once): (bool, bool),
    ) -> bool {
        if !self.resp.awaits(psn)
            || self.has_srq
            || length > self.path.path_mtu.bytes()
            || env.withholds_receives()
            || self.resp.is_put_off()
        {
            return false;
        }
        let Some(wr) = self.rq.front().filter(|wr| wr.room() >= u64::from(length)) else {
            return false;
        };
        // The full path tries again, and reports the reason.
        if length > 0 && env.scatter(Side::Recv, &wr.sges, 0, payload).is_err() {
            return false;
        }
        let wr_id = wr.wr_id;
        self.rq.pop_front();
        let msn = self.resp.received_one();
        // First, as it takes longest to be seen. On a wire it may share a datagram.
        let ack = FastPacket::Ack { psn, msn };
        if at_once && env.transmit_fast(ack, self.attr.dest_qpn, Source::Empty, 0).is_ok() {
            if self.resp.has_answers() {
                // The one that was held is in it.
                self.resp.forget_answers();
                self.ack_delay.end();
            }
        } else {
            self.owe_ack(psn, ackreq);
        }
        Self::complete(
            env,
            &Completion {
                opcode: WcOpcode::Recv,
                byte_len: length,
                src_qpn: self.attr.dest_qpn,
                solicited: se,
                ..Completion::new(Side::Recv, wr_id)
            },
        );
        true
    }

    /// The completer, for an acknowledgement of some of the requests, of which none has an answer
    /// of its own.
    fn acknowledge_several<E: Env>(&mut self, env: &mut E, now: Time, psn: Psn) -> bool {
        let req = &self.req;
        let is_sent = psn.sub(req.una.value()).value() < req.max.sub(req.una.value()).value();
        let is_usual = req.rd_atomic == 0 && req.rnr_until.is_none() && !req.blocked;
        is_sent && is_usual && self.acknowledge(env, now, psn.add(1)) == Acked::All
    }

    /// The completer, for the acknowledgement of the only request there is.
    fn acknowledge_fast<E: Env>(&mut self, env: &mut E, now: Time, psn: Psn) -> bool {
        let req = &self.req;
        let to = psn.add(1);
        let is_usual = self.sq.len() == 1
            && req.index == 1
            && to == req.psn
            && to == req.max
            && req.rnr_until.is_none()
            && !req.blocked;
        let Some(wqe) = self.sq.front().filter(|_| is_usual) else { return false };
        if wqe.is_answered() || wqe.end() != to {
            return false;
        }
        // In its place: it is large, and nothing is left behind it.
        if self.sq_sig_all || wqe.is_signaled() {
            Self::complete_send(env, wqe, None);
        } else {
            Self::count_send(env, wqe, None);
        }
        self.sq.clear();
        let before = req.una;
        (self.req.una, self.req.index) = (to, 0);
        self.note_progress(now, before);
        true
    }
}
