//! Acknowledgements that the peer did not ask for (`transport`'s `ask`): one for many messages of a
//! ring, if the program takes messages faster than they come.
//!
//! The transport holds them in their QPs. They are sent (`engine::acks`) when the program has
//! nothing better to do: after some polls in a row that found nothing, when a poll reads the clock,
//! in a call that is no poll, and whenever the background thread has its turn, which is at least
//! every [`LEASE`](crate::thresholds::LEASE) while it does not sleep. If it sleeps, none is held. A
//! QP that sends a request takes its acknowledgement along.

use crate::ids::QpId;
use crate::qp::QpEntry;

/// The QPs that hold one, and perhaps others that have sent theirs since.
#[derive(Debug, Default)]
pub(super) struct UnaskedAcks {
    pub(super) qps: Vec<QpId>,
    /// Polls that found nothing since the last was added.
    pub(super) polls: u32,
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

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.qps.is_empty()
    }
}
