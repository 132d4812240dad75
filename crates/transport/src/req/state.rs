//! What the requester and the completer remember.

use iba::{Psn, QpAttr};

use crate::env::Skipped;
use crate::time::Time;

/// A timeout lasts between one and four times what the QP was given (IBA 9.7.6.1.3). It is doubled
/// so often while nothing is heard of a peer over a wire, which may only be slow: to be asked again
/// and again makes it no faster.
const MAX_PATIENCE: u32 = 2;

/// What the requester and the completer remember.
#[derive(Debug, Default)]
pub(crate) struct Requester {
    /// The next sequence number to send.
    pub(crate) psn: Psn,
    /// The oldest one that is not acknowledged.
    pub(crate) una: Psn,
    /// The one after the highest that was ever sent.
    pub(crate) max: Psn,
    /// The work request that `psn` belongs to, counted from the front of the queue.
    pub(crate) index: usize,
    /// READs and atomics sent and not answered.
    pub(crate) rd_atomic: u32,
    /// Sequence numbers of those that their answers have still to use.
    pub(crate) read_psns: u32,
    /// Packets since the last one that asked for an acknowledgement.
    pub(super) unasked: u32,
    /// Retries left after a timeout or a sequence NAK.
    pub(crate) retries: u8,
    /// Retries left after a receiver-not-ready NAK.
    pub(crate) rnr_retries: u8,
    /// Timeouts in a row, on a wire.
    pub(crate) timeouts: u32,
    /// When the oldest packet counts as lost.
    pub(crate) ack_timer: Option<Time>,
    /// A packet took the fast path, and the ACK timer is to start.
    pub(crate) watch_due: bool,
    /// Until when nothing is sent: the peer asked to be left alone, or an answer waits for its
    /// place.
    pub(crate) rnr_until: Option<Time>,
    /// An answer to the first work request came whose place was absent.
    pub(crate) place_missing: bool,
    /// Until when the rate limit holds back the next packet.
    pub(crate) paced_until: Option<Time>,
    /// A gap among the answers was already acted upon: more of the same stream says nothing new.
    pub(crate) gap: bool,
    /// The carrier had no room for the packet at `psn`.
    pub(crate) blocked: bool,
    /// In SQD: what was begun is not done yet.
    pub(crate) draining: bool,
    /// What was carried out without packets just before `una`, for the packet with that number.
    pub(crate) skipped: Skipped,
}

impl Requester {
    /// Starts over at `psn`.
    pub(crate) fn start(&mut self, psn: Psn) {
        *self = Self { psn, una: psn, max: psn, ..Self::default() };
    }

    /// Stops waiting for anything.
    pub(crate) fn stop(&mut self) {
        self.ack_timer = None;
        self.watch_due = false;
        self.rnr_until = None;
        self.paced_until = None;
        self.draining = false;
    }

    /// Whether every packet sent is acknowledged.
    pub(crate) fn is_quiet(&self) -> bool {
        self.una == self.max
    }

    /// How many sequence numbers are sent and not acknowledged.
    pub(crate) fn outstanding(&self) -> u32 {
        self.psn.sub(self.una.value()).value()
    }

    /// Starts the ACK timer if it does not run (IBA 9.7.6.1.3).
    pub(crate) fn watch(&mut self, now: Time, attr: &QpAttr) {
        if self.ack_timer.is_none() && self.rnr_until.is_none() {
            let patience = 1 << self.timeouts.min(MAX_PATIENCE);
            self.ack_timer = attr.timeout.duration().map(|timeout| now + timeout * patience);
        }
    }

    /// The peer sends what it was asked for earlier: it is at work, and comes to the oldest packet
    /// later. Its silence is measured from now.
    ///
    /// Else a long READ that is asked for again after a loss would be asked for ever again, while a
    /// slow peer still answers what it was asked first.
    pub(crate) fn hear(&mut self, now: Time, attr: &QpAttr) {
        if self.ack_timer.take().is_some() {
            self.watch(now, attr);
        }
    }

    /// Goes back to the oldest packet that is not acknowledged.
    pub(crate) fn go_back(&mut self) {
        self.psn = self.una;
        self.index = 0;
        self.rd_atomic = 0;
        self.read_psns = 0;
        self.unasked = 0;
    }

    /// Takes note that the only packet of the request at the cursor, which asks for an
    /// acknowledgement, was sent.
    pub(crate) fn sent_one(&mut self) {
        self.advance(1);
        self.unasked = 0;
        self.index += 1;
    }

    pub(super) fn advance(&mut self, packets: u32) {
        self.psn = self.psn.add(packets);
        // Counted from `una`, as the numbers under way may be more than half of all.
        if self.psn.sub(self.una.value()).value() > self.max.sub(self.una.value()).value() {
            self.max = self.psn;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_highest_number_sent_wraps() {
        let mut req = Requester::default();
        req.start(Psn::new(0xff_ffff));
        req.advance(3);
        assert_eq!((req.psn, req.max, req.outstanding()), (Psn::new(2), Psn::new(2), 3));
        req.go_back();
        req.advance(1);
        assert_eq!((req.psn, req.max, req.outstanding()), (Psn::new(0), Psn::new(2), 1));
    }
}
