//! Gaps in the answers of the peer: READ responses and results of atomics that were lost, while
//! later ones arrived.
//!
//! The answers come in the order of the requests, so a later one proves that the peer carried out
//! everything before it. Only the answers that are missing are requested again, each gap by a READ
//! of that part (IBA 9.7.4 lets a requester ask for a part of what it asked for before); what
//! follows is kept until its turn ([`Early`](crate::Early)):
//!
//! ```text
//!            una                       executed              max
//!   ----------|-------|-------|-------|-----|------------------|-------> sequence numbers
//!    done     |  gap  | kept  |  gap  |kept | not answered yet | never sent
//! ```
//!
//! The cursor stays where it is. At most one gap of each READ is requested at a time, the lowest:
//! from what the kernel's rxe repeated last of a READ it goes back no more (`docs/semantics.md`
//! 2.10).
//!
//! After a timeout nothing is certain but what was acknowledged, and everything is sent again.

mod state;

use iba::{Psn, QpState, QpType, WrOpcode};
use wire::{Headers, Operation, Position, Reth, Service};

use crate::early::is_near;
use crate::env::{Counter, Env, LocalError, Reason, Skipped, To, TransmitError};
use crate::pace;
use crate::packet::{describe, operation_of, payload};
use crate::qp::{Qp, Sent};
use crate::time::Time;
use crate::wqe::Wqe;

use self::state::Asked;
pub(crate) use self::state::Gaps;

/// How far behind the answer that is missing one is kept: more than a round trip of a fast line
/// carries.
const FARTHEST_ANSWER: u32 = 2048;

/// A gap: answers in a row that are missing.
struct Gap {
    /// The request that they answer, counted from the front of the queue.
    index: usize,
    first: Psn,
    packets: u32,
}

impl Qp {
    /// The oldest sequence number of a request that the peer may not have carried out.
    pub(crate) fn base(&self) -> Psn {
        self.req.gaps.executed.unwrap_or(self.req.una)
    }

    /// Whether answers are kept for it. After [`Qp::poll_transmit`], the turn of one whose memory
    /// was absent may have come ([`Early::next`](crate::Early::next)).
    #[inline]
    pub fn keeps_answers(&self) -> bool {
        !self.req.gaps.kept.is_empty()
    }

    /// Whether this is an answer of a wire that came before its turn, and is worth keeping.
    pub(crate) fn is_early_answer(&self, headers: &Headers, length: u32) -> bool {
        let (opcode, psn) = (headers.bth.opcode, headers.bth.psn);
        let req = &self.req;
        let offset = |psn: Psn| psn.sub(req.una.value()).value();
        matches!(opcode.operation(), Operation::ReadResponse | Operation::AtomicAck)
            && matches!(self.qp_type, QpType::Rc | QpType::XrcSend)
            && !self.path.reliable
            && length <= self.path.path_mtu.bytes()
            && matches!(self.state(), QpState::Rts | QpState::Sqd)
            && Some(opcode.service()) == Service::of(self.qp_type)
            && offset(psn) < offset(req.max)
            && self.awaited_answer().is_some_and(|awaited| {
                (1..FARTHEST_ANSWER.cast_signed()).contains(&psn.distance(awaited))
                    && is_near(&req.gaps.kept, awaited, psn)
            })
            && req.gaps.kept.run_at(psn) == 0
    }

    /// The number of the answer that must come next.
    fn awaited_answer(&self) -> Option<Psn> {
        let (begin, _) = self.begun().find(|(_, wqe)| wqe.is_answered())?;
        Some(self.req.una.add(begin))
    }

    /// The requests that were begun, each with how far after `una` the rest of its numbers begins:
    /// the first one may be done in part.
    fn begun(&self) -> impl Iterator<Item = (u32, &Wqe)> {
        let una = self.req.una;
        let begun = self.sq.iter().take_while(|wqe| wqe.begun).enumerate();
        begun.map(move |(index, wqe)| {
            (if index == 0 { 0 } else { wqe.first.sub(una.value()).value() }, wqe)
        })
    }

    /// An answer came, and one before it is missing. If it is not kept, it is missing, too.
    pub(crate) fn answer_overtook<E: Env>(&mut self, env: &mut E, now: Time, psn: Psn) {
        if self.path.reliable {
            self.handle_gap(env, now);
        } else {
            self.has_executed(env, now, psn.add(1));
        }
    }

    /// The peer has answered everything before `to`, and some of its answers are missing: this
    /// counts as a NAK (IBA 9.7.5, implied NAK), once per gap.
    pub(crate) fn has_executed<E: Env>(&mut self, env: &mut E, now: Time, to: Psn) {
        let is_new = !self.req.gap && self.req.rnr_until.is_none();
        self.req.hear(now, &self.attr);
        self.note_executed(now, to);
        if is_new {
            self.req.gap = true;
            env.count(Counter::ImpliedNakSeqErr);
            let Some(retries) = self.req.retries.checked_sub(1) else {
                return self.give_up(env, Reason::SequenceNak);
            };
            self.req.retries = retries;
            self.slow_down();
        }
    }

    /// The same, where something else counts as the NAK.
    pub(crate) fn note_executed(&mut self, now: Time, to: Psn) {
        let (una, base) = (self.req.una, self.base());
        let offset = |psn: Psn| psn.sub(una.value()).value();
        let req = &mut self.req;
        if offset(base) < offset(to) {
            req.hear(now, &self.attr);
            if req.gaps.note_executed(to) {
                // The peer is alive, and gets ahead.
                req.is_met = true;
                req.timeouts = 0;
                req.retries = self.attr.retry_cnt;
                req.rnr_retries = self.attr.rnr_retry;
            }
            if !req.place_missing {
                req.rnr_until = None;
            }
            if offset(req.psn) < offset(to) {
                self.go_to_request_of(to);
            }
        }
        if self.req.gaps.forget_lost(una) {
            self.window.lost();
        }
        if self.req.repair.is_some() || !self.req.has.is_empty() {
            self.follow_repair();
        }
    }

    /// Moves the cursor, which went back for what the peer has carried out by now: to `psn`, or to
    /// the beginning of its READ. Of one READ only later parts are requested than before.
    fn go_to_request_of(&mut self, psn: Psn) {
        let una = self.req.una;
        let offset = |psn: Psn| psn.sub(una.value()).value();
        let is_within = |wqe: &Wqe| wqe.is_answered() && wqe.first != psn && wqe.holds(psn);
        let read = self.begun().find(|(_, wqe)| is_within(wqe));
        let to = read.map_or(psn, |(begin, _)| una.add(begin));
        if offset(self.req.psn) < offset(to) {
            self.go_to(to);
        }
    }

    /// Once for all that was on its way when the first of it was lost.
    fn slow_down(&mut self) {
        let req = &mut self.req;
        if req.gaps.shrunk_until.is_none_or(|until| !req.una.is_before(until)) {
            req.gaps.shrunk_until = Some(req.max);
            self.window.lost();
        }
    }

    /// Whether an answer may end at this number, which is not the end of its request: what was
    /// requested again ends where later answers had arrived.
    pub(crate) fn is_end_of_part(&self, end: Psn) -> bool {
        self.req.gaps.part_end.is_some_and(|last| !end.is_after(last))
    }

    /// Requests the answers of a gap again, if there is one and its turn has come.
    pub(crate) fn transmit_gap<E: Env>(&mut self, env: &mut E, now: Time) -> Sent {
        let Some(Gap { index, first, packets }) = self.next_gap() else { return Sent::Nothing };
        let wqe = &self.sq[index];
        let mtu = self.path.path_mtu.bytes();
        let offset = first.sub(wqe.first.value()).value() * mtu;
        let end = first.add(packets);
        let length = if end == wqe.end() { wqe.length - offset } else { packets * mtu };
        let opcode = self.opcode(operation_of(wqe.wr.opcode), Position::Only);
        let mut headers = Headers::new(opcode, self.attr.dest_qpn, first);
        headers.bth.ackreq = true;
        describe(&mut headers, wqe, offset, Position::Only);
        if let Some(reth) = headers.reth().filter(|_| wqe.wr.opcode == WrOpcode::RdmaRead) {
            headers.set_reth(Reth { dma_len: length, ..reth });
        }
        self.name_srq(&mut headers, wqe);
        let carried = if wqe.is_read_like() { 0 } else { length };
        let source = payload(&wqe.wr.data, 0, carried);
        let bytes = pace::on_a_wire(&headers, carried);
        if let Some(until) = self.pace.wait(now, bytes, self.path.path_mtu) {
            self.req.paced_until = Some(until);
            return Sent::Nothing;
        }
        env.of_request(wqe.wr.wr_id, self.sq.len() - index);
        match env.transmit(To::Peer, &headers, source, Skipped::default()) {
            Ok(()) => {}
            Err(TransmitError::Blocked) => {
                self.req.watch(now, &self.attr);
                return Sent::Blocked;
            }
            // Only an ATOMIC WRITE has memory to send from.
            Err(TransmitError::Memory(LocalError::NotPresent)) => {
                env.count(Counter::PageFaultsPending);
                return Sent::Blocked;
            }
            // It was in order when it was first sent. The timer finds out if it no longer is.
            Err(_) => return Sent::Nothing,
        }
        self.pace.spend(now, bytes);
        let req = &mut self.req;
        req.gaps.note_asked(Asked { first, end, until: req.max });
        req.watch(now, &self.attr);
        Sent::Packets(1)
    }

    /// The lowest gap that was not requested again yet.
    fn next_gap(&self) -> Option<Gap> {
        let req = &self.req;
        let executed = req.gaps.executed?;
        let offset = |psn: Psn| psn.sub(req.una.value()).value();
        let until = offset(executed);
        // The cursor went back, and requests all of it, unless it stands at what failed.
        let is_failed = self.sq.get(req.index).is_some_and(|wqe| wqe.failure.is_some());
        if offset(req.psn) < until && !is_failed {
            return None;
        }
        let executed =
            self.begun().take_while(|(begin, wqe)| wqe.failure.is_none() && *begin < until);
        executed.enumerate().find_map(|(index, (begin, wqe))| {
            let (first, packets) = self.gap_of(wqe, begin, until)?;
            Some(Gap { index, first, packets })
        })
    }

    /// The same of one request, the rest of whose numbers begin `begin` after `una`.
    fn gap_of(&self, wqe: &Wqe, begin: u32, until: u32) -> Option<(Psn, u32)> {
        if !wqe.is_answered() {
            return None;
        }
        let Gaps { kept, asked, .. } = &self.req.gaps;
        let una = self.req.una;
        let end = wqe.end().sub(una.value()).value().min(until);
        let missing = begin + kept.run_at(una.add(begin));
        let first = una.add(missing);
        if missing >= end || asked.iter().any(|asked| asked.is_within(first, una.add(end))) {
            return None;
        }
        Some((first, (end - missing).min(kept.gap_at(first).unwrap_or(u32::MAX))))
    }

    /// Packets of requests after `una` that the peer has certainly carried out.
    pub(crate) fn executed_requests(&self) -> u32 {
        let Some(executed) = self.req.gaps.executed else { return 0 };
        let una = self.req.una;
        let offset = |psn: Psn| psn.sub(una.value()).value();
        let until = offset(executed).min(offset(self.req.psn));
        let executed = self.begun().take_while(|(begin, _)| *begin < until);
        let requests = executed.filter(|(_, wqe)| !wqe.is_answered());
        requests.map(|(begin, wqe)| offset(wqe.end()).min(until) - begin).sum()
    }
}
