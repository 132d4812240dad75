//! Sending again what the peer lacks.
//!
//! A peer that keeps what overtook a lost packet says what it has (`early`, `wire::sack`). The
//! cursor then goes back, passes over what the peer has, and returns to where it was:
//!
//! ```text
//!            base         next            top             max
//!   ----------|------------|---------------|---------------|-------> sequence numbers
//!    executed | sent again | kept, missing | on their way  | never sent
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
        let offset = |psn: Psn| psn.sub(una.value()).value();
        // What it said before it went on is out of date.
        let is_known = may && (offset(self.base())..=sent).contains(&offset(expected));
        let sack = rx.headers.sack().filter(|sack| is_known && sack.signature == SIGNATURE);
        let Some(sack) = sack else { return env.count(Counter::DroppedPacket) };
        // READs that are not answered yet stay.
        let _ = self.acknowledge(env, now, expected);
        if matches!(self.state(), QpState::Rts | QpState::Sqd) {
            self.note_has(expected, sack);
            if self.base() == expected {
                self.repair(env, now);
            }
        }
    }

    fn note_has(&mut self, expected: Psn, sack: Sack) {
        let base = self.base();
        let req = &mut self.req;
        let sent = req.max.sub(base.value()).value();
        req.has.remove_before(expected.add(1));
        for range in sack.ranges {
            let (ahead, count) = (range.ahead.into(), range.count.into());
            let first = expected.add(ahead);
            let end = first.sub(base.value()).value() + count;
            // Nothing that was not sent, nothing that no peer keeps, and not what is missing.
            if ahead > 0 && count > 0 && end <= sent.min(FARTHEST) {
                req.has.insert(first, count);
            }
        }
    }

    /// The peer lacks the packet at `base`, and has later ones.
    pub(crate) fn repair<E: Env>(&mut self, env: &mut E, now: Time) {
        let Some(top) = self.req.has.end() else { return };
        let (base, max) = (self.base(), self.req.max);
        let point = match self.req.repair {
            // On its way there.
            Some(repair) if repair.walks => return,
            // Lost after the last repair.
            Some(repair) if !repair.next.is_after(base) => {
                if base.is_before(repair.point) {
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
        self.req.repair =
            Some(Repair { next: base, until: max, point, walks: true, is_all: false });
        self.req.ack_timer = None;
        self.req.watch(now, &self.attr);
        self.go_to(base);
    }

    /// The same, as a NAK says: what the cursor went back for was lost again, if that was for
    /// everything. Other packets arrived, so this uses no retry, but the timer goes on.
    pub(crate) fn repair_after_nak<E: Env>(&mut self, env: &mut E, now: Time) {
        if !self.req.repair.is_some_and(|repair| repair.is_all) {
            self.repair(env, now);
        } else if self.req.psn != self.base() {
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
            let Some(wqe) = self.sq.get(req.index) else { return };
            if wqe.failure.is_some() {
                return self.end_walk();
            }
            let is_answered = wqe.is_answered();
            let had = if is_answered { &req.gaps.kept } else { &req.has };
            let run = had.run_at(req.psn);
            if run == 0 || !wqe.begun {
                return;
            }
            let left = wqe.end().sub(req.psn.value()).value();
            let (passed, is_whole) = (run.min(left), run >= left);
            req.psn = req.psn.add(passed);
            req.index += usize::from(is_whole);
            if is_answered {
                req.read_psns += passed;
                req.rd_atomic += u32::from(is_whole);
            }
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
    /// goes back to `base`.
    pub(crate) fn repair_all(&mut self) {
        let base = self.base();
        self.go_to(base);
        let req = &mut self.req;
        if !self.path.reliable {
            let (next, until) = (base, req.max);
            req.repair = Some(Repair { next, until, point: until, walks: true, is_all: true });
        }
    }

    /// After `base` moved: forgets what it passed.
    pub(crate) fn follow_repair(&mut self) {
        let base = self.base();
        let req = &mut self.req;
        req.has.remove_before(base);
        let Some(repair) = &mut req.repair else { return };
        let is_repaired = !base.is_before(repair.next) && !repair.walks;
        if repair.next.is_before(base) {
            repair.next = base;
        }
        if !req.has.is_empty() {
            return;
        }
        if !base.is_before(repair.until) {
            let is_over = !base.is_before(repair.point);
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
            self.go_to(base);
        } else if repair.walks && !repair.is_all {
            self.end_walk();
        }
    }

    /// Moves the cursor to `psn`, which was sent, or is the next to send.
    pub(crate) fn go_to(&mut self, mut psn: Psn) {
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
            let is_whole = offset(wqe.end()) <= to;
            if wqe.is_answered() {
                let first = if index == 0 { 0 } else { offset(wqe.first) };
                // The rest counts once it is requested.
                rd_atomic += u32::from(is_whole);
                read_psns += offset(wqe.end()).min(to) - first;
            }
            if !is_whole {
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
            && (req.psn.sub(self.base().value()).value() + packets > FARTHEST
                || self.window.is_small())
    }

    /// Packets that count against the window: those between `base` and the cursor, without those
    /// that the peer has; and while the cursor repairs, what is on its way beyond `top`.
    pub(crate) fn in_flight(&self) -> u32 {
        let req = &self.req;
        if req.has.is_empty() && req.gaps.executed.is_none() {
            return req.in_flight();
        }
        let kept = req.has.count_before(req.psn) + self.executed_requests();
        let beyond = match (req.repair, req.has.end()) {
            (Some(repair), Some(top)) if repair.walks && !repair.is_all => {
                req.max.sub(top.value()).value()
            }
            _ => 0,
        };
        (req.in_flight() + beyond).saturating_sub(kept)
    }
}
