//! The completer: takes the peer's answers and retires work requests.

use core::time::Duration;

use iba::{Psn, QpState, RnrTimer, WcStatus, WrOpcode};
use wire::{Aeth, NakCode, Operation, Position, Syndrome};

use crate::env::{Counter, Env, LocalError, Reason, Rx, Side};
use crate::qp::Qp;
use crate::retry::Acked;
use crate::time::Time;
use crate::wqe::Failure;
use crate::wr::Data;

/// How long to wait before an answer that met absent memory is requested again.
const FAULT_PAUSE: Duration = Duration::from_micros(100);

impl Qp {
    /// Takes an ACK, a NAK, a READ response or an atomic's answer.
    pub(crate) fn handle_answer<E: Env>(
        &mut self,
        env: &mut E,
        now: Time,
        rx: &Rx<'_, E::Payload>,
    ) {
        let psn = rx.headers.bth.psn;
        let operation = rx.headers.bth.opcode.operation();
        let sent = self.req.max.sub(self.req.una.value()).value();
        if !matches!(self.state(), QpState::Rts | QpState::Sqd) {
            return env.count(Counter::DroppedPacket);
        }
        // IBA 9.7.6: an answer to nothing that is outstanding, old or never sent, is silently
        // dropped.
        if psn.sub(self.req.una.value()).value() >= sent {
            if operation == Operation::ReadResponse && psn.is_before(self.req.una) {
                self.req.hear(now, &self.attr);
            }
            return env.count(Counter::DroppedPacket);
        }
        match operation {
            Operation::ReadResponse => self.handle_read_response(env, now, rx),
            Operation::AtomicAck => self.handle_atomic_ack(env, now, rx),
            _ => match rx.headers.aeth() {
                Some(aeth) => self.handle_ack(env, now, psn, aeth),
                None => env.count(Counter::DroppedPacket),
            },
        }
    }

    fn handle_ack<E: Env>(&mut self, env: &mut E, now: Time, psn: Psn, aeth: Aeth) {
        // Credits are ignored: this requester learns from RNR NAKs, as the standard permits.
        let to = match aeth.syndrome {
            Syndrome::Ack { .. } => psn.add(1),
            // A NAK acknowledges everything before it (IBA 9.7.5).
            Syndrome::Nak(_) | Syndrome::RnrNak { .. } => psn,
            Syndrome::Reserved(_) => return env.count(Counter::DroppedPacket),
        };
        let base = self.base();
        // Before anything was sent again, a NAK that moves nothing is a duplicate.
        let is_repeated = self.req.psn == base && to == base;
        // It can only be about an answer that was requested again: requests were carried out.
        let offset = |psn: Psn| psn.sub(self.req.una.value()).value();
        let is_old = offset(to) < offset(base);
        if is_old && to == psn && !self.is_refusal_of_answer(psn, aeth.syndrome) {
            return env.count(Counter::DroppedPacket);
        }
        if to == psn {
            // Whatever it said it had, this one it lacks.
            self.req.has.remove_before(psn.add(1));
        }
        if self.acknowledge(env, now, to) == Acked::AnswerMissing {
            match aeth.syndrome {
                // For the READ whose answer is missing: it was refused in the middle, and asking
                // again is useless.
                Syndrome::Nak(code) if code != NakCode::PsnSequence && self.is_of_front(psn) => {
                    let failure = refused(env, code);
                    return self.fail_front(env, failure);
                }
                _ if self.path.reliable => return self.handle_gap(env, now),
                // This NAK takes a retry below.
                Syndrome::Nak(NakCode::PsnSequence) => {
                    self.note_executed(now, to);
                    self.req.gap = true;
                }
                // Not for the front. The peer has ended the connection, and may not answer more.
                Syndrome::Nak(_) => return self.has_executed(env, now, to),
                _ => self.has_executed(env, now, to),
            }
        }
        if !matches!(self.state(), QpState::Rts | QpState::Sqd) {
            return;
        }
        match aeth.syndrome {
            Syndrome::Nak(NakCode::PsnSequence) => {
                env.count(Counter::PacketSeqErr);
                if !self.req.has.is_empty() {
                    return self.repair_after_nak(env, now);
                }
                // The cursor is still where it went back to: this NAK is about the same gap.
                if self.req.psn != self.base() {
                    self.retry(env, now, Reason::SequenceNak);
                }
            }
            Syndrome::Nak(code) => {
                let failure = refused(env, code);
                self.fail_front(env, failure);
            }
            Syndrome::RnrNak { timer } if !is_repeated => {
                self.handle_rnr_nak(env, now, (psn, timer));
            }
            Syndrome::RnrNak { .. } | Syndrome::Ack { .. } | Syndrome::Reserved(_) => {}
        }
    }

    /// Whether this refuses an answer that was requested again.
    fn is_refusal_of_answer(&self, psn: Psn, syndrome: Syndrome) -> bool {
        !matches!(syndrome, Syndrome::Nak(NakCode::PsnSequence))
            && self.index_of(psn).is_some_and(|index| self.sq[index].is_answered())
    }

    /// The request that a sequence number belongs to, counted from the front of the queue.
    fn index_of(&self, psn: Psn) -> Option<usize> {
        self.sq.iter().take_while(|wqe| wqe.begun).position(|wqe| wqe.holds(psn))
    }

    /// Whether a sequence number belongs to the oldest work request.
    fn is_of_front(&self, psn: Psn) -> bool {
        self.sq.front().is_some_and(|front| front.begun && front.holds(psn))
    }

    /// IBA 9.7.5, RNR NAK: wait as long as the responder asks, then send the same message again.
    fn handle_rnr_nak<E: Env>(&mut self, env: &mut E, now: Time, (psn, timer): (Psn, RnrTimer)) {
        // While waiting it is a duplicate.
        if self.req.rnr_until.is_some() {
            return;
        }
        self.req.rnr_psn = Some(psn);
        // IBA 9.7.5, RNR NAK: seven means without limit.
        if self.attr.rnr_retry != 7 {
            let Some(retries) = self.req.rnr_retries.checked_sub(1) else {
                env.count(Counter::RnrNakRetryErr);
                let failure = Failure::new(WcStatus::RnrRetryExcErr, Reason::RnrNak);
                return self.fail_at(env, self.index_of(psn).unwrap_or(0), failure);
            };
            self.req.rnr_retries = retries;
        }
        // The peer answered, so the counter of silent timeouts starts afresh.
        self.req.retries = self.attr.retry_cnt;
        self.req.gaps.ask_anew();
        self.repair_all();
        self.req.ack_timer = None;
        self.req.rnr_until = Some(now + timer.duration());
    }

    /// An answer is missing, as a later one arrived, though this path loses nothing: everything is
    /// sent again. This counts as a NAK (IBA 9.7.5, implied NAK), once per gap.
    pub(crate) fn handle_gap<E: Env>(&mut self, env: &mut E, now: Time) {
        // Requests in flight when a pause began are repeated after it.
        if !self.req.gap && self.req.rnr_until.is_none() {
            self.req.gap = true;
            env.count(Counter::ImpliedNakSeqErr);
            self.retry(env, now, Reason::SequenceNak);
        } else {
            self.req.hear(now, &self.attr);
        }
    }

    fn handle_read_response<E: Env>(&mut self, env: &mut E, now: Time, rx: &Rx<'_, E::Payload>) {
        let psn = rx.headers.bth.psn;
        if self.acknowledge(env, now, psn) == Acked::AnswerMissing {
            return self.answer_overtook(env, now, psn);
        }
        let mtu = self.path.path_mtu;
        let Some(front) = self.sq.front().filter(|front| front.begun) else {
            return env.count(Counter::DroppedPacket);
        };
        if matches!(front.wr.opcode, WrOpcode::Flush | WrOpcode::AtomicWrite) {
            return self.handle_done(env, now, rx);
        }
        let offset = psn.sub(front.first.value()).value() * mtu.bytes();
        let left = front.end().sub(psn.value()).value();
        let packets = mtu.packets(rx.length);
        let refused = rx.headers.aeth().is_some_and(|aeth| !is_ack(aeth));
        // A repeated part of a response begins with First or Only, wherever it is in the READ (IBA
        // 9.7.4).
        let ends = matches!(rx.headers.bth.opcode.position(), Position::Last | Position::Only);
        let fits = if ends && packets == left {
            rx.length == front.length - offset
        } else {
            packets < left
                && rx.length == packets * mtu.bytes()
                && (!ends || self.is_end_of_part(psn.add(packets)))
        };
        let is_whole = self.path.reliable || packets == rx.packets;
        if front.wr.opcode != WrOpcode::RdmaRead || refused || !fits || !is_whole {
            let failure = Failure::new(WcStatus::BadRespErr, Reason::BadResponse);
            return self.fail_front(env, failure);
        }
        if let (Data::Sges(sges), true) = (&front.wr.data, rx.length > 0)
            && let Err(error) = env.scatter(Side::Send, sges, u64::from(offset), rx.payload)
        {
            return self.answer_has_no_place(env, now, error);
        }
        self.take_answer(env, now, packets);
    }

    /// The answer to a FLUSH or an ATOMIC WRITE: a READ response of no bytes (IBA annex A19).
    fn handle_done<E: Env>(&mut self, env: &mut E, now: Time, rx: &Rx<'_, E::Payload>) {
        let is_only = rx.headers.bth.opcode.position() == Position::Only;
        if !is_only || rx.length > 0 || !rx.headers.aeth().is_some_and(is_ack) {
            let failure = Failure::new(WcStatus::BadRespErr, Reason::BadResponse);
            return self.fail_front(env, failure);
        }
        self.take_answer(env, now, 1);
    }

    fn handle_atomic_ack<E: Env>(&mut self, env: &mut E, now: Time, rx: &Rx<'_, E::Payload>) {
        let psn = rx.headers.bth.psn;
        if self.acknowledge(env, now, psn) == Acked::AnswerMissing {
            return self.answer_overtook(env, now, psn);
        }
        let Some(front) = self.sq.front().filter(|front| front.begun) else {
            return env.count(Counter::DroppedPacket);
        };
        let value = rx.headers.atomic_ack_eth().filter(|_| rx.headers.aeth().is_some_and(is_ack));
        let (Some(value), true) = (value, front.wr.opcode.is_atomic()) else {
            let failure = Failure::new(WcStatus::BadRespErr, Reason::BadResponse);
            return self.fail_front(env, failure);
        };
        // The old value is in this machine's byte order, whatever its order on the wire.
        if let Data::Sges(sges) = &front.wr.data
            && let Err(error) = env.scatter_bytes(Side::Send, sges, 0, &value.orig.to_ne_bytes())
        {
            return self.answer_has_no_place(env, now, error);
        }
        self.take_answer(env, now, 1);
    }

    /// An answer cannot be stored. If that is temporary, it is requested again when it can be
    /// stored ([`Qp::has_found_place`]): the responder keeps the range of a READ and the result of
    /// an atomic.
    fn answer_has_no_place<E: Env>(&mut self, env: &mut E, now: Time, error: LocalError) {
        if error != LocalError::NotPresent {
            return self.fail_front(env, Failure::local(error));
        }
        env.count(Counter::PageFaultsPending);
        self.req.gaps.forget();
        self.repair_all();
        self.req.ack_timer = None;
        self.req.place_missing = true;
        self.req.rnr_until = Some(now + FAULT_PAUSE);
    }

    /// Whether the answer whose place was absent is requested again now. No timeout runs while the
    /// place is being brought in; if it will not come, the work request fails, whether or not the
    /// peer would still answer.
    pub(crate) fn has_found_place<E: Env>(&mut self, env: &mut E, now: Time) -> bool {
        self.req.place_missing = false;
        let Some(Data::Sges(sges)) = self.sq.front().map(|front| &front.wr.data) else {
            return true;
        };
        match env.may_ask_again(sges) {
            Ok(()) => return true,
            Err(LocalError::NotPresent) => {
                self.req.place_missing = true;
                self.req.rnr_until = Some(now + FAULT_PAUSE);
            }
            Err(error) => self.fail_front(env, Failure::local(error)),
        }
        false
    }

    /// Counts `packets` of the answer that the first work request waits for.
    fn take_answer<E: Env>(&mut self, env: &mut E, now: Time, packets: u32) {
        let before = self.req.una;
        self.req.una = before.add(packets);
        self.req.read_psns = self.req.read_psns.saturating_sub(packets);
        if self.sq.front().is_some_and(|front| front.end() == self.req.una) {
            self.retire_front(env);
        }
        self.note_progress(now, before);
        if let Some(executed) = self.req.gaps.executed {
            // Requests after it were acknowledged already.
            let _ = self.acknowledge(env, now, executed);
        }
    }
}

fn is_ack(aeth: Aeth) -> bool {
    matches!(aeth.syndrome, Syndrome::Ack { .. })
}

/// How a NAK completes a work request (IBA 9.9.2).
fn refused<E: Env>(env: &mut E, code: NakCode) -> Failure {
    match code {
        NakCode::InvalidRequest => {
            env.count(Counter::ReqRemoteInvalidRequest);
            Failure::new(WcStatus::RemInvReqErr, Reason::InvalidRequestNak)
        }
        NakCode::RemoteAccess => {
            env.count(Counter::ReqRemoteAccessErrors);
            Failure::new(WcStatus::RemAccessErr, Reason::RemoteAccessNak)
        }
        _ => Failure::new(WcStatus::RemOpErr, Reason::RemoteOperationalNak),
    }
}
