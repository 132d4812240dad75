//! What the requester and the completer remember.

use iba::{Psn, QpAttr};

use crate::env::Skipped;
use crate::gaps::Gaps;
use crate::ranges::Ranges;
use crate::repair::Repair;
use crate::time::Time;

/// A timeout lasts between one and four times what the QP was given (IBA 9.7.6.1.3). While nothing
/// is heard of a peer over a wire, it is doubled up to this many times: the peer may only be slow,
/// and repeated requests do not make it faster.
const MAX_PATIENCE: u32 = 2;

/// What the requester and the completer remember.
#[derive(Debug, Default)]
pub(crate) struct Requester {
    /// The next sequence number to send.
    pub(crate) psn: Psn,
    /// The oldest one that is not acknowledged.
    pub(crate) una: Psn,
    /// The one after the highest ever sent.
    pub(crate) max: Psn,
    /// The work request that `psn` belongs to, counted from the front of the queue.
    pub(crate) index: usize,
    /// READs and atomics sent and not answered.
    pub(crate) rd_atomic: u32,
    /// Sequence numbers that the answers to those have not used yet.
    pub(crate) read_psns: u32,
    /// Packets since the last one that asked for an acknowledgement.
    pub(crate) unasked: u32,
    /// Retries left after a timeout or a sequence NAK.
    pub(crate) retries: u8,
    /// Retries left after a receiver-not-ready NAK.
    pub(crate) rnr_retries: u8,
    /// The number that the last such NAK was about.
    pub(crate) rnr_psn: Option<Psn>,
    /// Timeouts in a row, on a wire.
    pub(crate) timeouts: u32,
    /// When the oldest packet counts as lost.
    pub(crate) ack_timer: Option<Time>,
    /// A packet took the fast path, and the ACK timer must start.
    pub(crate) watch_due: bool,
    /// Until when nothing is sent: the peer asked for a pause, or the memory for an answer is
    /// absent.
    pub(crate) rnr_until: Option<Time>,
    /// The memory for an answer to the first work request was absent.
    pub(crate) place_missing: bool,
    /// Until when the rate limit holds back the next packet.
    pub(crate) paced_until: Option<Time>,
    /// A gap in the answers was already handled: later answers of the same stream say nothing new.
    pub(crate) gap: bool,
    /// The carrier had no room for the packet at `psn`.
    pub(crate) blocked: bool,
    /// Operations of this connection are carried out without packets, and wait until nothing is in
    /// flight.
    pub(crate) is_direct: bool,
    /// The peer has acknowledged something: it is there, and awaits the numbers that come next.
    pub(crate) is_met: bool,
    /// In SQD: requests that were begun are not done yet.
    pub(crate) draining: bool,
    /// Operations carried out without packets just before `una`, which the packet with that number
    /// reports.
    pub(crate) skipped: Skipped,
    /// What the peer has of the packets after `base` (`Qp::base`).
    pub(crate) has: Ranges,
    /// What is being sent again.
    pub(crate) repair: Option<Repair>,
    /// What is missing of the answers.
    pub(crate) gaps: Gaps,
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

    /// The same without those of READs, which carry answers.
    pub(crate) fn in_flight(&self) -> u32 {
        self.outstanding().saturating_sub(self.read_psns)
    }

    /// Starts the ACK timer if it does not run (IBA 9.7.6.1.3).
    pub(crate) fn watch(&mut self, now: Time, attr: &QpAttr) {
        if self.ack_timer.is_none() && self.rnr_until.is_none() {
            let patience = 1 << self.timeouts.min(MAX_PATIENCE);
            self.ack_timer = attr.timeout.duration().map(|timeout| now + timeout * patience);
        }
    }

    /// The peer sends what was requested earlier: it is at work, and will come to the oldest packet
    /// later. Its silence counts from now.
    ///
    /// Otherwise a long READ that is requested again after a loss would be requested over and over,
    /// while a slow peer still answers the first request.
    pub(crate) fn hear(&mut self, now: Time, attr: &QpAttr) {
        if self.ack_timer.take().is_some() {
            self.watch(now, attr);
        }
    }

    /// Notes that the only packet of the request at the cursor was sent, and whether it asks for an
    /// acknowledgement.
    pub(crate) fn sent_one(&mut self, ackreq: bool) {
        self.advance(1);
        self.unasked = if ackreq { 0 } else { self.unasked + 1 };
        self.index += 1;
    }

    pub(super) fn advance(&mut self, packets: u32) {
        self.psn = self.psn.add(packets);
        // Counted from `una`, as the numbers in flight may be more than half of all.
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
        req.psn = req.una;
        req.advance(1);
        assert_eq!((req.psn, req.max, req.outstanding()), (Psn::new(0), Psn::new(2), 1));
    }
}
