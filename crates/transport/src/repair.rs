//! Sending again what the peer lacks.
//!
//! A peer that keeps what overtook a lost packet says what it has (`early`, `wire::sack`). The
//! cursor then goes back, passes over what the peer has, and returns to where it was:
//!
//! ```text
//!            una          next            top             max
//!   ----------|------------|---------------|---------------|-------> sequence numbers
//!    acked    | sent again | kept, missing | on their way  | never sent
//! ```
//!
//! Whatever is missing below `top`, the highest number that the peer has, is sent once. If packets
//! that left after that arrive, and it still is missing, it is lost again; if none do, the timer
//! tells. Other peers, and a timer, let the cursor go back for everything (go-back-N).

mod state;

use iba::{Psn, QpState, QpType};
use wire::sack::SIGNATURE;
use wire::{Operation, Sack};

use crate::early::FARTHEST;
use crate::env::{Counter, Env, Reason, Rx};
use crate::qp::Qp;
use crate::time::Time;

pub(crate) use self::state::Repair;

impl Qp {
    /// Takes the peer's word for what it keeps.
    pub(crate) fn handle_sack<E: Env>(&mut self, env: &mut E, now: Time, rx: &Rx<'_, E::Payload>) {
        let may = matches!(self.qp_type, QpType::Rc | QpType::XrcSend)
            && matches!(self.state(), QpState::Rts | QpState::Sqd)
            && rx.headers.bth.opcode.operation() == Operation::Sack
            && !self.path.reliable;
        let (una, expected) = (self.req.una, rx.headers.bth.psn);
        let sent = self.req.max.sub(una.value()).value();
        let is_known = may && expected.sub(una.value()).value() <= sent;
        let sack = rx.headers.sack().filter(|sack| is_known && sack.signature == SIGNATURE);
        let Some(sack) = sack else { return env.count(Counter::DroppedPacket) };
        // READs that are not answered yet stay.
        let _ = self.acknowledge(env, now, expected);
        if matches!(self.state(), QpState::Rts | QpState::Sqd) {
            self.note_has(expected, sack);
            if self.req.una == expected {
                self.repair(env, now);
            }
        }
    }

    fn note_has(&mut self, expected: Psn, sack: Sack) {
        let req = &mut self.req;
        let sent = req.max.sub(req.una.value()).value();
        req.has.remove_before(expected.add(1));
        for range in sack.ranges {
            let (ahead, count) = (range.ahead.into(), range.count.into());
            let first = expected.add(ahead);
            let end = first.sub(req.una.value()).value() + count;
            // Nothing that was not sent, nothing that no peer keeps, and not what is missing.
            if ahead > 0 && count > 0 && end <= sent.min(FARTHEST) {
                req.has.insert(first, count);
            }
        }
    }

    /// The peer lacks the packet at `una`, and has later ones.
    pub(crate) fn repair<E: Env>(&mut self, env: &mut E, now: Time) {
        let Some(top) = self.req.has.end() else { return };
        let (una, max) = (self.req.una, self.req.max);
        let point = match self.req.repair {
            // On its way there.
            Some(repair) if repair.walks => return,
            // Lost after the last repair.
            Some(repair) if !repair.next.is_after(una) => {
                if una.is_before(repair.point) {
                    repair.point
                } else {
                    self.window.lost();
                    max
                }
            }
            // Lost again, though the peer received later packets: that uses no retry.
            Some(repair) if top.is_after(repair.until) => {
                self.window.silent();
                max
            }
            Some(repair) => {
                let next = repair.next.add(self.req.has.run_at(repair.next));
                let walks = next.is_before(top);
                let is_all = repair.is_all && !walks;
                self.req.repair = Some(Repair { next, walks, is_all, ..repair });
                if walks {
                    self.go_to(next);
                }
                return;
            }
            None => {
                let Some(retries) = self.req.retries.checked_sub(1) else {
                    return self.give_up(env, Reason::SequenceNak);
                };
                self.req.retries = retries;
                self.window.lost();
                max
            }
        };
        self.req.repair = Some(Repair { next: una, until: max, point, walks: true, is_all: false });
        self.req.ack_timer = None;
        self.req.watch(now, &self.attr);
        self.go_to(una);
    }

    /// The same, as a NAK says: what the cursor went back for was lost again, if that was for
    /// everything. Other packets arrived, so this uses no retry, but the timer goes on.
    pub(crate) fn repair_after_nak<E: Env>(&mut self, env: &mut E, now: Time) {
        if !self.req.repair.is_some_and(|repair| repair.is_all) {
            self.repair(env, now);
        } else if self.req.psn != self.req.una {
            self.window.silent();
            self.repair_all();
        }
    }

    /// Passes the cursor over what the peer has, and back to `max` if that is all.
    pub(crate) fn pass_over(&mut self) {
        loop {
            let req = &mut self.req;
            let Some(repair) = req.repair.as_mut().filter(|repair| repair.walks) else { return };
            let end = if repair.is_all { Some(repair.until) } else { req.has.end() };
            if end.is_none_or(|end| !req.psn.is_before(end)) {
                return self.end_walk();
            }
            let run = req.has.run_at(req.psn);
            let Some(wqe) = self.sq.get(req.index) else { return };
            if wqe.failure.is_some() {
                return self.end_walk();
            }
            if run == 0 || !wqe.begun || wqe.is_answered() {
                return;
            }
            let left = wqe.end().sub(req.psn.value()).value();
            req.psn = req.psn.add(run.min(left));
            req.index += usize::from(run >= left);
        }
    }

    fn end_walk(&mut self) {
        let req = &mut self.req;
        let Some(repair) = &mut req.repair else { return };
        (repair.next, repair.until) = (req.psn, req.max);
        repair.walks = false;
        if req.psn != req.max {
            self.go_to(self.req.max);
        }
    }

    /// Everything that is not acknowledged is sent again, but for what the peer has. The cursor
    /// goes back to `una`.
    pub(crate) fn repair_all(&mut self) {
        let req = &mut self.req;
        req.go_back();
        if !self.path.reliable {
            let (next, until) = (req.una, req.max);
            req.repair = Some(Repair { next, until, point: until, walks: true, is_all: true });
        }
    }

    /// After `una` moved: forgets what it passed.
    pub(crate) fn follow_repair(&mut self) {
        let req = &mut self.req;
        let una = req.una;
        req.has.remove_before(una);
        let Some(repair) = &mut req.repair else { return };
        let is_repaired = !una.is_before(repair.next) && !repair.walks;
        if repair.next.is_before(una) {
            repair.next = una;
        }
        if !req.has.is_empty() {
            return;
        }
        if !una.is_before(repair.until) {
            let is_over = !una.is_before(repair.point);
            repair.walks = false;
            if is_over {
                req.repair = None;
            }
            if req.psn != req.max {
                self.go_to(self.req.max);
            }
        } else if is_repaired {
            // What had left before the missing packets were sent again arrived before them, unless
            // packets overtake each other. The peer does not have it: it is lost, too, or the peer
            // does not keep such packets.
            (repair.walks, repair.is_all) = (true, true);
            req.go_back();
        } else if repair.walks && !repair.is_all {
            self.end_walk();
        }
    }

    /// Moves the cursor to `psn`, which was sent, or is the next to send.
    fn go_to(&mut self, mut psn: Psn) {
        let req = &mut self.req;
        let offset = |psn: Psn| psn.sub(req.una.value()).value();
        let to = offset(psn);
        let (mut index, mut rd_atomic, mut read_psns) = (0, 0, 0);
        for wqe in &self.sq {
            // The first one may have begun before `una`.
            let is_before = index == 0 && to > 0 || index > 0 && offset(wqe.first) < to;
            if !wqe.begun || !is_before {
                break;
            }
            if wqe.failure.is_some() {
                // Nothing passes it.
                psn = wqe.first;
                break;
            }
            if wqe.is_answered() {
                rd_atomic += 1;
                let first = if index == 0 { 0 } else { offset(wqe.first) };
                read_psns += offset(wqe.end()) - first;
            }
            if offset(wqe.end()) > to {
                break;
            }
            index += 1;
        }
        (req.psn, req.index) = (psn, index);
        (req.rd_atomic, req.read_psns) = (rd_atomic, read_psns);
        req.unasked = 0;
    }

    /// Whether what was not sent yet must wait, while the peer lacks the packet at `una`: it would
    /// not keep it, or many connections share what there is (`Window::is_small`).
    pub(crate) fn is_too_far(&self, packets: u32) -> bool {
        let req = &self.req;
        !req.has.is_empty()
            && req.psn == req.max
            && (req.outstanding() + packets > FARTHEST || self.window.is_small())
    }

    /// Packets that count against the window: those between `una` and the cursor, without those
    /// that the peer has; and while the cursor repairs, what is on its way beyond `top`.
    pub(crate) fn in_flight(&self) -> u32 {
        let req = &self.req;
        if req.has.is_empty() {
            return req.in_flight();
        }
        let kept = req.has.count_before(req.psn);
        let beyond = match (req.repair, req.has.end()) {
            (Some(repair), Some(top)) if repair.walks && !repair.is_all => {
                req.max.sub(top.value()).value()
            }
            _ => 0,
        };
        (req.in_flight() + beyond).saturating_sub(kept)
    }
}
