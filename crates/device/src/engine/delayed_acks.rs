//! Delayed acknowledgements: they wait for a request to travel with.
//!
//! An acknowledgement in a datagram of its own costs a system call, made before the program sees
//! the message. For a program that answers each message at once, one call can send both: its
//! request, and the acknowledgement after it. So on a wire the acknowledgement waits
//!
//! * if the program found a receive by polling, and the policy of the QP trusts it
//!   ([`transport::AckPolicy`], [`ACK_POLICY`](crate::thresholds::ACK_POLICY));
//! * until the next request of any QP, the next poll that finds nothing, a call that arms a queue
//!   or destroys a QP, or its deadline, which is a timer of the QP like any other. If the program
//!   no longer polls, the background thread checks every [`ACK_LOOK`](crate::thresholds::ACK_LOOK)
//!   once an acknowledgement has waited; before that, as often as it checks that the program still
//!   polls.
//!
//! The transport decides which acknowledgements wait, and holds them. This module has what the
//! transport cannot know: whether the program polls, of which QPs it just took receives, and
//! whether it answered at once.
//!
//! Once a program is seen not to answer at once, its acknowledgements no longer wait. The arrival
//! time of a packet on the fast path is unknown: if the program paused either before it polled or
//! before it answered, it gets the benefit of the doubt, and the times of the next packets are
//! read. The peer of a QP with a short ACK timeout is assumed to have a short one, too, and none of
//! the QP's acknowledgements waits.

use transport::Time;

use crate::ids::QpId;
use crate::qp::QpEntry;

/// The QPs whose receives completed in the last poll of the program, and since when they wait for
/// an answer.
#[derive(Debug, Default)]
pub(crate) struct DelayedAcks {
    pub(super) qps: Vec<QpId>,
    pub(super) since: Time,
    /// Whether they may have arrived later than that, as nobody read the clock then.
    pub(super) is_vague: bool,
    /// The number of trains for which to read the clock.
    pub(super) doubtful: u32,
    /// Whether the program polls for what is received now.
    is_polled: bool,
    /// Whether an acknowledgement has waited since the background thread last asked.
    waited: bool,
}

impl DelayedAcks {
    /// Notes that a QP took packets. If the program is about to see a receive complete, the
    /// acknowledgement may wait for the answer.
    #[inline]
    pub(super) fn note_receive(&mut self, entry: &mut QpEntry, now: Time, now_is_stale: bool) {
        let context = &mut entry.context;
        let has_received = std::mem::take(&mut context.has_received);
        if !has_received || !self.is_polled || !context.route.is_udp() {
            return;
        }
        if self.qps.is_empty() {
            (self.since, self.is_vague) = (now, now_is_stale);
        }
        self.qps.push(context.id);
        self.waited |= entry.qp.delay_ack(now);
    }

    /// Whether nothing waits for an answer.
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.qps.is_empty()
    }

    /// Forgets the QPs whose receives completed.
    pub(super) fn clear(&mut self) {
        self.qps.clear();
    }

    /// Sets whether the program polls for what is received from now on.
    pub(super) fn set_polled(&mut self, is_polled: bool) {
        self.is_polled = is_polled;
    }

    /// A train arrived. Returns whether its time matters.
    #[inline]
    pub(super) fn want_time(&mut self) -> bool {
        let is_wanted = self.doubtful > 0;
        self.doubtful = self.doubtful.saturating_sub(1);
        is_wanted
    }

    /// Whether an acknowledgement has waited since the last call.
    pub(crate) fn take_waited(&mut self) -> bool {
        std::mem::take(&mut self.waited)
    }
}

/// How the wait for an answer ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// The program posted a request.
    Answered,
    /// It did something else.
    Otherwise,
}
