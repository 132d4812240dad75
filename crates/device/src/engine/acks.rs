//! When acknowledgements that wait for a request go ([`super::late_acks`]).

use super::Engine;
use super::late_acks::{AT_ONCE, DOUBTFUL, End, HABIT, LateAcks};

impl Engine {
    /// Lets acknowledgements go that wait for a request, as one was just sent.
    #[inline]
    pub(super) fn join_late_acks(&mut self) {
        if !self.late_acks.is_empty() {
            self.end_late_acks(End::Answered);
        }
    }

    /// Lets acknowledgements go that wait for a request.
    #[inline]
    pub(crate) fn send_late_acks(&mut self) {
        if !self.late_acks.is_empty() {
            self.end_late_acks(End::Otherwise);
            self.after_transmit();
        }
    }

    /// The same, if they wait for long.
    pub(crate) fn send_overdue_acks(&mut self) {
        let now = self.clock.now();
        if !self.late_acks.is_empty() && now.since(self.late_acks.since) >= AT_ONCE {
            self.core.now = now;
            self.send_late_acks();
        }
    }

    fn end_late_acks(&mut self, end: End) {
        self.release_late_acks();
        self.judge_late_acks(end);
    }

    /// Puts acknowledgements that wait for a request into a train, behind the request if there is
    /// one.
    #[inline]
    pub(super) fn release_late_acks(&mut self) {
        for index in 0..self.late_acks.qps.len() {
            let id = self.late_acks.qps[index];
            if self.qps.get(id).is_some_and(|entry| entry.qp.owes_answers()) {
                self.core.catch_up(&self.clock);
                self.transmit(id);
            }
        }
    }

    /// Takes note how the wait ended, and ends it.
    pub(super) fn judge_late_acks(&mut self, end: End) {
        let is_soon = self.core.now.since(self.late_acks.since) < AT_ONCE;
        let LateAcks { qps, is_vague, doubtful, .. } = &mut self.late_acks;
        // It is not known whether the program paused before it polled or after.
        if end == End::Answered && !is_soon && *is_vague && !qps.is_empty() {
            *doubtful = DOUBTFUL;
            qps.clear();
        }
        while let Some(id) = qps.pop() {
            let Some(entry) = self.qps.get_mut(id) else { continue };
            let habit = &mut entry.context.answers_in_a_row;
            *habit = match end {
                End::Answered if is_soon => habit.saturating_add(1).min(HABIT),
                _ => 0,
            };
        }
    }
}
