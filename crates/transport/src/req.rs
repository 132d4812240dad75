//! The requester: turns work requests into packets.
//!
//! ```text
//!            una             psn               max
//!   ----------|---------------|-----------------|------------> sequence numbers
//!    acked    |  unacked      |  to send again  |  never sent
//! ```
//!
//! `una` is the oldest number without an acknowledgement, `psn` the next to send, `max` the one
//! after the highest ever sent. They are equal when nothing is under way; `psn` goes back to `una`
//! when something was lost, to send again what the peer lacks (`repair`), or all of it where nobody
//! knows what that is (go-back-N). If only answers are missing, it goes back no further than to
//! what the peer has not carried out ([`Qp::base`], `gaps`). The first work request of the queue is
//! always the one that holds `una`.

mod state;

use iba::{Access, QpState, QpType, SendFlags, WcStatus, WrOpcode};
use wire::bth::pad_for;
use wire::{Deth, Headers, ImmDt, Opcode, Position, Srqn, Xrceth};

use crate::env::{Counter, Env, LocalError, Reason, Skipped, Source, To, TransmitError};
use crate::pace;
use crate::packet::{describe, operation_of, payload};
use crate::qp::{Qp, Sent};
use crate::time::Time;
use crate::wqe::{Failure, Wqe};
use crate::wr::Data;

pub(crate) use self::state::Requester;

/// How many windows of READ responses may be requested: one on its way, and enough after it that
/// the peer never waits.
const READ_AHEAD: u32 = 4;

/// What to do about the work request at the cursor.
pub(crate) enum Begin {
    /// Send its packets.
    Send,
    /// It is done; go to the next.
    Done,
    /// It must wait.
    Wait,
}

impl Qp {
    /// Sends the next packet of the send queue, or up to `most` packets that are alike.
    pub(crate) fn transmit_request<E: Env>(&mut self, env: &mut E, now: Time, most: usize) -> Sent {
        if !matches!(self.state(), QpState::Rts | QpState::Sqd) || self.req.rnr_until.is_some() {
            return Sent::Nothing;
        }
        if self.req.place_missing && !self.has_found_place(env, now) {
            return Sent::Nothing;
        }
        if self.req.gaps.executed.is_some() {
            let sent = self.transmit_gap(env, now);
            if sent != Sent::Nothing {
                return sent;
            }
        }
        if self.req.repair.is_some() || self.req.gaps.executed.is_some() {
            self.pass_over();
            if !self.req.is_quiet() {
                // Even if the peer has all, or its answers are kept: something may get lost there.
                self.req.watch(now, &self.attr);
            }
        }
        let Some(wqe) = self.sq.get(self.req.index) else {
            return Sent::Nothing;
        };
        if wqe.failure.is_some() {
            return Sent::Nothing;
        }
        if !wqe.begun {
            if let Some(sent) = self.transmit_short(env, now) {
                return sent;
            }
            match self.begin(env) {
                Begin::Send => {}
                Begin::Done => return Sent::Packets(1),
                Begin::Wait => return Sent::Nothing,
            }
        }
        match self.qp_type {
            QpType::Ud => self.transmit_datagram(env),
            QpType::RawPacket => self.transmit_frame(env, now),
            QpType::Rc | QpType::Uc | QpType::XrcSend => self.transmit_connected(env, now, most),
            _ => Sent::Nothing,
        }
    }

    /// Looks at a work request before its first packet: whether its turn has come, and whether it
    /// needs packets.
    fn begin<E: Env>(&mut self, env: &mut E) -> Begin {
        let wqe = &self.sq[self.req.index];
        // IBA 10.3.1: in SQD what was begun is finished, and nothing is begun.
        if self.state() == QpState::Sqd {
            return Begin::Wait;
        }
        // IBA 10.8.3: a fenced request waits for the READs and atomics before it.
        if wqe.wr.flags.contains(SendFlags::FENCE) && self.req.rd_atomic > 0 {
            return Begin::Wait;
        }
        if matches!(wqe.wr.opcode, WrOpcode::LocalInv | WrOpcode::BindMw) {
            return self.change_key(env);
        }
        if wqe.is_answered() {
            if self.attr.max_rd_atomic == 0 {
                self.fail(env, Failure::new(WcStatus::LocQpOpErr, Reason::NoReadDepth));
                return Begin::Done;
            }
            // IBA 10.2.5: no more outstanding than the peer has resources for.
            if self.req.rd_atomic >= u32::from(self.attr.max_rd_atomic) {
                return Begin::Wait;
            }
        }
        if self.qp_type == QpType::Ud {
            if wqe.length > self.path.path_mtu.bytes() {
                // IBA C10-93.1.1: no packet, and no error either.
                env.count(Counter::DroppedPacket);
                self.req.advance(1);
                self.req.una = self.req.psn;
                self.retire_front(env);
                return Begin::Done;
            }
            return Begin::Send;
        }
        if self.qp_type == QpType::RawPacket {
            return Begin::Send;
        }
        // A bad list is found before the peer sees half of the message.
        let is_long = wqe.is_read_like() || wqe.length > self.segment();
        if let (true, Data::Sges(sges)) = (is_long, &wqe.wr.data) {
            let access = if wqe.is_read_like() { Access::LOCAL_WRITE } else { Access::empty() };
            if let Err(error) = env.check_local(sges, access) {
                self.fail(env, Failure::local(error));
                return Begin::Done;
            }
        }
        self.carry_out_directly(env)
    }

    /// Carries out a request that needs no packet: one that invalidates or creates a key.
    fn change_key<E: Env>(&mut self, env: &mut E) -> Begin {
        // Only when nothing before it can be sent again, as that would need the key.
        if self.req.index > 0 {
            return Begin::Wait;
        }
        let wr = &self.sq[0].wr;
        let failure = match &wr.data {
            Data::Bind(bind) => {
                env.bind(bind).map_err(|_| Failure::new(WcStatus::MwBindErr, Reason::BindRefused))
            }
            // IBA 11.6.2, "memory management operation error": for every change of a key.
            _ => env
                .invalidate(iba::RKey(wr.imm))
                .map_err(|_| Failure::new(WcStatus::MwBindErr, Reason::LocalProtection)),
        };
        match failure {
            Ok(()) => self.retire_front(env),
            Err(failure) => self.fail(env, failure),
        }
        Begin::Done
    }

    /// Sends the next packet of the work request at the cursor, for RC and UC.
    fn transmit_connected<E: Env>(&mut self, env: &mut E, now: Time, most: usize) -> Sent {
        let mtu = self.path.path_mtu;
        let req = &self.req;
        let wqe = &self.sq[req.index];
        let (first, total) =
            if wqe.begun { (wqe.first, wqe.packets) } else { (req.psn, wqe.count_packets(mtu)) };
        let done = req.psn.sub(first.value()).value();
        let offset = done * mtu.bytes();
        let left = wqe.length - offset;

        let (mut chunk, mut packets) = if wqe.is_answered() {
            (left, total - done)
        } else {
            let chunk = left.min(self.segment());
            (chunk, mtu.packets(chunk))
        };
        let is_last = chunk == left;

        // The sequence numbers of READs carry answers, not requests: they have a limit of their
        // own.
        let window = self.window.packets();
        let in_flight = self.in_flight();
        let has_room = if wqe.is_answered() {
            // The peer sends responses as fast as it can: only the number of requests slows it
            // down. What it carried out once had its place.
            req.read_psns == 0
                || req.gaps.executed.is_some_and(|executed| req.psn.is_before(executed))
                || req.read_psns + packets <= window.saturating_mul(READ_AHEAD)
        } else {
            in_flight == 0 || req.psn == self.base() || in_flight + packets <= window
        } && !self.is_too_far(packets);
        if !has_room {
            return Sent::Nothing;
        }
        // At most half of the sequence number space (IBA 9.7.2).
        if req.outstanding() > 0 && req.outstanding() + packets > 1 << 23 {
            return Sent::Nothing;
        }

        let position = Position::new(offset == 0, is_last);
        let operation = operation_of(wqe.wr.opcode);
        // One packet requests an answer of many packets.
        let of_packet = if wqe.is_answered() { Position::Only } else { position };
        let opcode = self.opcode(operation, of_packet);
        let mut headers = Headers::new(opcode, self.attr.dest_qpn, req.psn);
        headers.bth.ackreq = self.qp_type.is_reliable()
            && (is_last && self.asks(wqe.is_signaled(), total == 1 && !wqe.is_answered())
                || self.must_ask(packets));
        describe(&mut headers, wqe, offset, position);
        self.name_srq(&mut headers, wqe);
        let is_run = position == Position::Middle && !headers.bth.ackreq && self.may_run();
        if is_run {
            // The packets after it until one asks for an acknowledgement, and the last packet.
            let until_asked = (self.asks_each() - req.unasked).min(window - in_flight) - 1;
            let middles = (left - 1) / mtu.bytes();
            packets = until_asked.min(middles).min(most as u32).max(1);
            chunk *= packets;
        }
        let source = if wqe.is_read_like() {
            Source::Empty
        } else {
            headers.bth.pad = pad_for(chunk as usize);
            payload(&wqe.wr.data, offset, chunk)
        };
        let skipped = if req.psn == req.una { req.skipped } else { Skipped::default() };
        let carried = if wqe.is_read_like() { 0 } else { chunk };
        let bytes = self.pace.is_limited().then(|| pace::on_a_wire(&headers, carried));
        if let Some(bytes) = bytes {
            self.req.paced_until = self.pace.wait(now, bytes, mtu);
            if self.req.paced_until.is_some() {
                return Sent::Nothing;
            }
            // The next packet may have to wait for longer than the peer may be silent.
            headers.bth.ackreq |=
                self.qp_type.is_reliable() && self.pace.next_waits(now, bytes, mtu);
        }

        env.of_request(wqe.wr.wr_id, self.sq.len() - self.req.index);
        let sent = if is_run {
            env.transmit_run(&headers, source, packets)
        } else {
            env.transmit(To::Peer, &headers, source, skipped).map(|()| packets)
        };
        match sent {
            Ok(sent) => packets = sent,
            Err(TransmitError::Blocked) => {
                self.wait_for_room(now);
                return Sent::Blocked;
            }
            // Not the peer's fault: no time runs, unless it owes an acknowledgement of packets
            // before this one. Of a copy that was sent earlier it may have taken none.
            Err(TransmitError::Memory(LocalError::NotPresent)) => {
                env.count(Counter::PageFaultsPending);
                self.req.blocked = false;
                if self.req.psn == self.req.una {
                    self.req.ack_timer = None;
                }
                return Sent::Blocked;
            }
            Err(error) => {
                self.fail(env, Failure::local(local(error)));
                return Sent::Packets(1);
            }
        }

        if let Some(bytes) = bytes {
            self.pace.spend(now, bytes);
        }
        let wqe = &mut self.sq[self.req.index];
        (wqe.begun, wqe.first, wqe.packets) = (true, first, total);
        let is_answered = wqe.is_answered();
        let req = &mut self.req;
        req.blocked = false;
        req.advance(packets);
        req.unasked = if headers.bth.ackreq { 0 } else { req.unasked + packets };
        if is_answered {
            req.rd_atomic += 1;
            req.read_psns += packets;
        }
        if self.qp_type.is_reliable() {
            req.index += usize::from(is_last);
            req.watch(now, &self.attr);
        } else {
            // Nobody acknowledges: what is sent is done (IBA 9.8.2).
            (req.una, req.skipped) = (req.psn, Skipped::default());
            if is_last {
                self.retire_front(env);
            }
        }
        // A packet that stands for many numbers counts as one.
        Sent::Packets(if is_run { packets } else { 1 })
    }

    /// XRC: names the shared receive queue.
    pub(crate) fn name_srq(&self, headers: &mut Headers, wqe: &Wqe) {
        if self.qp_type == QpType::XrcSend {
            headers.set_xrceth(Xrceth { srqn: Srqn::new(wqe.wr.srqn) });
        }
    }

    /// The carrier takes no more now. That of a dead peer is full for ever: waiting for room is
    /// waiting for the peer.
    pub(crate) fn wait_for_room(&mut self, now: Time) {
        self.req.blocked = true;
        self.req.watch(now, &self.attr);
    }

    /// Whether packets from the middle of a message may be sent in one pass: they consist of their
    /// payload alone.
    pub(crate) fn may_run(&self) -> bool {
        self.qp_type == QpType::Rc && !self.path.reliable && !self.pace.is_limited()
    }

    /// Sends a datagram. It is done when it is sent.
    fn transmit_datagram<E: Env>(&mut self, env: &mut E) -> Sent {
        let wqe = &self.sq[self.req.index];
        let Some(dest) = &wqe.wr.ud else {
            self.fail(env, Failure::new(WcStatus::LocQpOpErr, Reason::LocalProtection));
            return Sent::Packets(1);
        };
        let opcode = match wqe.wr.opcode {
            WrOpcode::SendWithImm => Opcode::UdSendOnlyWithImm,
            _ => Opcode::UdSendOnly,
        };
        let mut headers = Headers::new(opcode, dest.remote_qpn, self.req.psn);
        headers.bth.se = wqe.wr.flags.contains(SendFlags::SOLICITED);
        headers.bth.pad = pad_for(wqe.length as usize);
        // IBA 10.2.5, C10-15: a controlled key is set on the QP, not in the work request.
        let qkey = if dest.remote_qkey.is_controlled() { self.attr.qkey } else { dest.remote_qkey };
        headers.set_deth(Deth { qkey, src_qp: self.qpn });
        if opcode == Opcode::UdSendOnlyWithImm {
            headers.set_imm_dt(ImmDt { data: wqe.wr.imm });
        }
        let source = payload(&wqe.wr.data, 0, wqe.length);
        env.of_request(wqe.wr.wr_id, self.sq.len() - self.req.index);
        match env.transmit(To::Av(&dest.av), &headers, source, Skipped::default()) {
            Ok(()) => {}
            Err(TransmitError::Blocked) => return Sent::Blocked,
            Err(TransmitError::Memory(LocalError::NotPresent)) => {
                env.count(Counter::PageFaultsPending);
                return Sent::Blocked;
            }
            Err(error) => {
                self.fail(env, Failure::local(local(error)));
                return Sent::Packets(1);
            }
        }
        self.req.advance(1);
        self.req.una = self.req.psn;
        self.retire_front(env);
        Sent::Packets(1)
    }
}

/// A failed transmission of a request is a failure of local memory, however the environment reports
/// it.
const fn local(error: TransmitError) -> LocalError {
    match error {
        TransmitError::Memory(error) => error,
        TransmitError::Remote(_) | TransmitError::Blocked => LocalError::Fault,
    }
}
