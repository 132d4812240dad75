//! Acknowledgements that the peer did not ask for (`transport`'s `ask`): one for many messages of a
//! ring, if the program takes messages faster than they come.
//!
//! The transport holds them in their QPs. This module sends them when the program has nothing
//! better to do: after some polls in a row that found nothing, when a poll reads the clock, in a
//! call that is no poll, and whenever the background thread has its turn, which is at least every
//! [`LEASE`](crate::thresholds::LEASE) while it does not sleep. If it sleeps, none is held. A QP
//! that sends a request takes its acknowledgement along.

use super::Engine;
use crate::ids::QpId;
use crate::qp::{QpEntry, QpTable};
use crate::thresholds::POLLS_TO_ACK;

/// The QPs that hold one, and perhaps others that have sent theirs since.
#[derive(Debug, Default)]
pub(super) struct UnaskedAcks {
    qps: Vec<QpId>,
    /// Polls that found nothing since the last was added.
    polls: u32,
}

impl UnaskedAcks {
    /// Notes that a QP holds one.
    #[inline]
    pub(super) fn note(&mut self, entry: &mut QpEntry) {
        self.polls = 0;
        if !std::mem::replace(&mut entry.context.is_noted, true) {
            self.qps.push(entry.context.id);
        }
    }

    /// The same, for a QP that may have been removed.
    #[inline]
    pub(super) fn note_id(&mut self, qps: &mut QpTable, id: QpId) {
        if let Some(entry) = qps.get_mut(id) {
            self.note(entry);
        }
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.qps.is_empty()
    }
}

impl Engine {
    /// A QP holds one.
    #[inline]
    pub(super) fn keep_ack(&mut self, id: QpId) {
        self.schedule.unasked_acks.note_id(&mut self.qps, id);
        if !self.is_alarm_off() {
            self.send_unasked_acks();
        }
    }

    /// A poll found nothing, or another call did.
    #[inline]
    pub(super) fn count_idle_poll(&mut self, is_poll: bool) {
        if !self.schedule.unasked_acks.is_empty() {
            self.schedule.unasked_acks.polls += 1;
            if !is_poll || self.schedule.unasked_acks.polls >= POLLS_TO_ACK {
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
