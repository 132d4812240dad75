//! When acknowledgements that waited are sent: delayed ones ([`super::delayed_acks`]), and those
//! that nobody asked for ([`super::unasked_acks`]).

use super::Engine;
use super::delayed_acks::{DelayedAcks, End};
use crate::thresholds::{AT_ONCE, POLLS_TO_ACK, TRAINS_IN_DOUBT};

impl Engine {
    /// Releases delayed acknowledgements, as a request was just sent.
    #[inline]
    pub(super) fn join_delayed_acks(&mut self) {
        if !self.delayed_acks.is_empty() {
            self.end_delayed_acks(End::Answered);
        }
    }

    /// Sends delayed acknowledgements.
    #[inline]
    pub(crate) fn send_delayed_acks(&mut self) {
        if !self.delayed_acks.is_empty() {
            self.end_delayed_acks(End::Otherwise);
            self.after_transmit();
        }
    }

    fn end_delayed_acks(&mut self, end: End) {
        self.release_delayed_acks();
        self.judge_delayed_acks(end);
    }

    /// Puts delayed acknowledgements into a train, after the request if there is one.
    #[inline]
    pub(super) fn release_delayed_acks(&mut self) {
        for index in 0..self.delayed_acks.qps.len() {
            let id = self.delayed_acks.qps[index];
            let Some(entry) = self.qps.get_mut(id) else { continue };
            entry.qp.release_ack();
            if entry.qp.owes_answers() {
                self.common.catch_up(&self.clock);
                self.transmit(id);
            }
        }
    }

    /// Notes how the wait ended, and ends it.
    pub(super) fn judge_delayed_acks(&mut self, end: End) {
        let is_soon = self.common.now.since(self.delayed_acks.since) < AT_ONCE;
        let DelayedAcks { qps, is_vague, doubtful, .. } = &mut self.delayed_acks;
        // Whether the program paused before it polled or after is unknown.
        if end == End::Answered && !is_soon && *is_vague && !qps.is_empty() {
            *doubtful = TRAINS_IN_DOUBT;
            qps.clear();
        }
        while let Some(id) = qps.pop() {
            let Some(entry) = self.qps.get_mut(id) else { continue };
            entry.qp.note_answer(end == End::Answered && is_soon);
        }
    }

    /// QPs go on holding what nobody asked for, unless the background thread sleeps: then nobody
    /// would send it if the program did nothing more.
    #[inline]
    pub(super) fn keep_unasked_acks(&mut self) {
        if !self.is_alarm_off() {
            self.send_unasked_acks();
        }
    }

    /// A poll found nothing.
    #[inline]
    pub(super) fn count_idle_poll(&mut self) {
        if !self.schedule.unasked_acks.is_empty() {
            self.schedule.unasked_acks.polls += 1;
            if self.schedule.unasked_acks.polls >= POLLS_TO_ACK {
                self.send_unasked_acks();
            }
        }
    }

    /// Sends those that nobody asked for.
    #[inline]
    pub(crate) fn send_unasked_acks(&mut self) {
        if !self.schedule.unasked_acks.is_empty() {
            while let Some(id) = self.schedule.unasked_acks.qps.pop() {
                let Some(entry) = self.qps.get_mut(id) else { continue };
                entry.context.is_noted = false;
                if entry.qp.holds_ack() {
                    entry.qp.release_ack();
                    self.transmit(id);
                }
            }
            self.after_transmit();
        }
    }
}
