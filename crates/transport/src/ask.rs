//! Which requests ask for an acknowledgement at once (the AckReq bit of the BTH).
//!
//! A requester needs one where a program waits for a completion. In shared memory nothing is lost,
//! so there the others can do without: the responder holds their acknowledgement until it has
//! nothing better to do, and one answers all that came by then (IBA 9.7.5). If a receiver is faster
//! than its sender, each message would otherwise be acknowledged alone, which takes both ends as
//! long as the message.
//!
//! Where operations are carried out without packets each asks, as those wait until nothing is in
//! flight; and on a wire, as the timer of the requester runs for its last packet.

use std::time::Duration;

use iba::QpType;

use crate::qp::Qp;

/// The most requests in a row that do not ask. The queue of the program must not stay full for
/// requests that are long done.
const MOST_UNASKED: u32 = 16;
/// At least this part of a send queue asks.
const PARTS: u32 = 4;
/// With an ACK timeout below this, each asks. It is longer than a responder holds an
/// acknowledgement, even one whose program has just stopped to poll.
const SHORTEST_TIMEOUT: Duration = Duration::from_millis(10);

impl Qp {
    /// Whether the last packet of a request asks for an acknowledgement. `is_plain`: it is the only
    /// packet, and nothing else answers the request.
    #[inline]
    pub(crate) fn asks(&self, is_signaled: bool, is_plain: bool) -> bool {
        is_signaled
            || self.sq_sig_all
            || !self.path.reliable
            || !is_plain
            || self.qp_type != QpType::Rc
            || self.is_counted
            || self.req.is_direct
            // Without a retry, a peer that is stopped in between would end the connection.
            || self.attr.retry_cnt == 0
            // What is sent again: the acknowledgement may be lost.
            || self.req.psn != self.req.max
            || self.req.unasked + 1 >= MOST_UNASKED.min(self.cap.max_send_wr / PARTS)
            || self.attr.timeout.duration().is_some_and(|timeout| timeout < SHORTEST_TIMEOUT)
    }

    /// Whether the next packets ask for an acknowledgement whatever they carry: the window must
    /// open before it is full.
    pub(crate) fn must_ask(&self, packets: u32) -> bool {
        self.req.unasked + packets >= self.asks_each()
            || self.in_flight() + packets >= self.window.packets()
            // What is missing: so that the peer's word comes soon.
            || self.req.psn != self.req.max && !self.req.has.is_empty()
    }

    /// At least one of this many packets asks.
    pub(crate) fn asks_each(&self) -> u32 {
        let window = self.window.packets();
        (if self.path.reliable { window / 2 } else { window / 4 }).max(1)
    }

    /// Sets whether somebody waits for each request of this QP, signaled or not, as a completion
    /// counter does: each then asks for an acknowledgement.
    pub fn set_counted(&mut self, is_counted: bool) {
        self.is_counted = is_counted;
    }

    /// The responder owes an acknowledgement of `psn`, for a packet that asks for it or does not.
    #[inline]
    pub(crate) fn owe_ack(&mut self, psn: iba::Psn, is_asked: bool) {
        if is_asked {
            self.resp.push_ack(psn);
            self.ack_delay.ask();
        } else if self.path.reliable {
            let holds = !self.resp.has_answers();
            self.resp.push_ack(psn);
            if holds {
                self.ack_delay.hold();
            }
        }
    }

    /// Whether the peer is owed an acknowledgement that it did not ask for, and nothing else. It
    /// stays until [`Qp::release_ack`], or until something else is sent.
    #[inline]
    pub fn holds_ack(&self) -> bool {
        self.ack_delay.is_held() && self.resp.owes_only_ack()
    }
}
