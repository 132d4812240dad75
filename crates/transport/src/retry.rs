//! How send work requests end: done, failed, or tried again.

use iba::{Psn, QpEvent, QpState, QpType, WcStatus};

use crate::env::{Counter, Env, Reason, Skipped};
use crate::qp::Qp;
use crate::time::Time;
use crate::tm::Role;
use crate::wqe::{Failure, Wqe};

/// The outcome of an acknowledgement.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub(crate) enum Acked {
    /// Everything before the given number is acknowledged.
    All,
    /// A READ or an atomic before it is not answered: its answer was lost in transit.
    AnswerMissing,
}

impl Qp {
    /// Does what is due: retries what was not acknowledged in time, or continues after a pause for
    /// a peer that was not ready.
    ///
    /// Call it when the time that [`Qp::poll_timeout`] named has come; earlier calls do nothing.
    pub fn handle_timeout<E: Env>(&mut self, env: &mut E, now: Time) {
        self.ack_delay.handle_timeout(now);
        if self.req.rnr_until.is_some_and(|until| until <= now) {
            self.req.rnr_until = None;
        }
        if self.req.paced_until.is_some_and(|until| until <= now) {
            self.req.paced_until = None;
        }
        if self.req.ack_timer.is_some_and(|due| due <= now) {
            self.req.ack_timer = None;
            if self.req.is_quiet() && !self.req.blocked {
                return;
            }
            if env.peer_is_behind() {
                return self.req.watch(now, &self.attr);
            }
            env.count(Counter::LocalAckTimeoutErr);
            self.req.timeouts += u32::from(!self.path.reliable);
            self.retry(env, now, Reason::AckTimeout);
        }
    }

    /// How many timeouts have passed since the peer last acknowledged anything, on a path that can
    /// lose packets.
    pub fn timeouts_in_a_row(&self) -> u32 {
        self.req.timeouts
    }

    /// Notes that the peer has received everything before `to`: retires what is complete, and
    /// counts that as progress.
    ///
    /// `to` is in `una ..= max`, which the caller checks.
    pub(crate) fn acknowledge<E: Env>(&mut self, env: &mut E, now: Time, to: Psn) -> Acked {
        let before = self.req.una;
        // Distances are counted from `una`, as distances of more than half the 24-bit space have no
        // sign.
        let mut left = to.sub(before.value()).value();
        let mut acked = Acked::All;
        while left > 0 {
            let Some(front) = self.sq.front() else { break };
            if front.is_answered() {
                acked = Acked::AnswerMissing;
                break;
            }
            let rest = front.end().sub(self.req.una.value()).value();
            if left < rest {
                self.req.una = to;
                break;
            }
            left -= rest;
            self.req.una = front.end();
            self.retire_front(env);
        }
        self.note_progress(now, before);
        acked
    }

    /// After `una` moved away from `before`: the peer is alive, so retries start afresh.
    pub(crate) fn note_progress(&mut self, now: Time, before: Psn) {
        let req = &mut self.req;
        if req.una == before || self.attr.state == QpState::Err {
            return;
        }
        self.window.arrived(req.una.sub(before.value()).value());
        let sent = req.max.sub(req.una.value()).value();
        // Otherwise a request after `una` still waits for what the peer asked for.
        let is_past = req.gaps.executed.is_none_or(|executed| req.una.is_after(executed))
            || req.rnr_psn.is_none_or(|psn| req.una.is_after(psn));
        if is_past {
            req.rnr_psn = None;
        }
        req.gaps.follow(req.una);
        if req.outstanding() > sent {
            // The peer already has what was going to be sent again.
            self.go_to(self.base());
        }
        let req = &mut self.req;
        req.is_met = true;
        req.retries = self.attr.retry_cnt;
        req.timeouts = 0;
        req.gap = false;
        if is_past || req.place_missing {
            req.rnr_retries = self.attr.rnr_retry;
            req.rnr_until = None;
        }
        req.place_missing = false;
        req.skipped = Skipped::default();
        req.ack_timer = None;
        if req.repair.is_some() || !req.has.is_empty() {
            self.follow_repair();
        }
        let req = &mut self.req;
        if sent > 0 || req.blocked {
            req.watch(now, &self.attr);
        }
    }

    /// Sends again from the oldest packet that is not acknowledged, if a retry is left.
    pub(crate) fn retry<E: Env>(&mut self, env: &mut E, now: Time, reason: Reason) {
        let Some(retries) = self.req.retries.checked_sub(1) else {
            return self.give_up(env, reason);
        };
        self.req.retries = retries;
        match reason {
            Reason::AckTimeout => {
                // Whatever it had, it may have lost.
                self.req.has.clear();
                self.req.gaps.forget();
                self.window.silent();
            }
            _ => self.window.lost(),
        }
        self.repair_all();
        self.req.ack_timer = None;
        self.req.watch(now, &self.attr);
    }

    /// No retry is left.
    pub(crate) fn give_up<E: Env>(&mut self, env: &mut E, reason: Reason) {
        self.fail_front(env, Failure::new(WcStatus::RetryExcErr, reason));
    }

    /// Takes the first work request off the queue as done.
    pub(crate) fn retire_front<E: Env>(&mut self, env: &mut E) {
        // It is read where it is: to move it costs more than to complete it.
        let Some(wqe) = self.sq.front() else { return };
        // IBA 10.7.3.1: without a signal, success is silent.
        if self.sq_sig_all || wqe.is_signaled() {
            Self::complete_send(env, wqe, None);
        } else {
            Self::count_send(env, wqe, None);
            if wqe.role == Role::Posted {
                env.ended_silently();
            }
        }
        let is_answered = wqe.is_answered();
        self.sq.pop_front();
        self.follow_pop(is_answered);
        self.settle(env);
    }

    /// Marks the work request at the cursor as failed. It fails once those before it are done.
    pub(crate) fn fail<E: Env>(&mut self, env: &mut E, failure: Failure) {
        self.fail_at(env, self.req.index, failure);
    }

    /// The same of another one, which the cursor then does not pass.
    pub(crate) fn fail_at<E: Env>(&mut self, env: &mut E, index: usize, failure: Failure) {
        if index == 0 {
            self.fail_front(env, failure);
        } else if let Some(wqe) = self.sq.get_mut(index) {
            wqe.failure = Some(failure);
            if index < self.req.index {
                self.go_to(self.base());
            }
        }
    }

    /// Fails the first work request, and with it the send queue: RC goes to ERR, the unreliable
    /// services to SQE, where receiving continues (IBA 10.3.1).
    pub(crate) fn fail_front<E: Env>(&mut self, env: &mut E, failure: Failure) {
        let Some(wqe) = self.pop_front() else { return };
        self.account_send(env, &wqe, failure);
        Self::complete_send(env, &wqe, Some(failure));
        if matches!(self.qp_type, QpType::Uc | QpType::Ud) {
            self.attr.state = QpState::Sqe;
            self.req.stop();
            self.flush_sends(env);
        } else {
            // What the program has seen arrive is acknowledged.
            if !self.holds_ack() {
                self.resp.forget_answers();
            }
            self.enter_error(env);
        }
    }

    fn pop_front(&mut self) -> Option<Wqe> {
        let wqe = self.sq.pop_front()?;
        self.follow_pop(wqe.is_answered());
        Some(wqe)
    }

    /// The first work request left the queue.
    fn follow_pop(&mut self, is_answered: bool) {
        if let Some(index) = self.req.index.checked_sub(1) {
            self.req.index = index;
            if is_answered {
                self.req.rd_atomic = self.req.rd_atomic.saturating_sub(1);
            }
        }
    }

    /// Handles what waited for earlier work requests: a failure, or the end of draining.
    fn settle<E: Env>(&mut self, env: &mut E) {
        if let Some(failure) = self.sq.front().and_then(|front| front.failure) {
            return self.fail_front(env, failure);
        }
        self.check_drained(env);
    }

    /// IBA 10.3.1: in SQD, raises an event when everything begun is done.
    pub(crate) fn check_drained<E: Env>(&mut self, env: &mut E) {
        if self.req.draining && !self.sq.front().is_some_and(|front| front.begun) {
            self.req.draining = false;
            if self.attr.en_sqd_async_notify {
                env.event(QpEvent::SqDrained);
            }
        }
    }
}
