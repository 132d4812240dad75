//! Acknowledgements that wait for a request to travel with.
//!
//! A datagram of its own costs an acknowledgement a system call, made before the program sees what
//! it is for. A program that answers each message in a moment can have both sent in one: its
//! request, and the acknowledgement after it. So on a wire the acknowledgement waits
//!
//! * if the program found a receive by polling, and the policy of the QP trusts it
//!   ([`transport::AckPolicy`], [`ACK_POLICY`](crate::thresholds::ACK_POLICY));
//! * until the next request of any QP, the next poll that finds nothing, a call that arms a queue
//!   or takes a QP away, or its deadline. That is a timer of the QP as any other. Where the program
//!   no longer polls, the background thread looks every
//!   [`ACK_LOOK`](crate::thresholds::ACK_LOOK) once one waited; before that, as often as it makes
//!   sure that the program still polls.
//!
//! The transport decides which acknowledgements wait, and holds them. Here is what it cannot know:
//! whether the program polls, of which QPs it just took receives, and whether it answered at once.
//!
//! The first time that a program is seen not to answer at once, its acknowledgements cease to wait.
//! A packet that came by the fast path was not looked at with a clock: where the program paused
//! either before it polled or before it answered, it gets the benefit of the doubt, and the next
//! packets are looked at. A QP whose own ACK timeout is short is taken to have a peer in the same
//! hurry, and none of its acknowledgements waits.

use transport::Time;

use crate::ids::QpId;
use crate::qp::QpEntry;

/// Whose receives completed in the last poll of the program, and since when they wait for an
/// answer.
#[derive(Debug, Default)]
pub(crate) struct DelayedAcks {
    pub(super) qps: Vec<QpId>,
    pub(super) since: Time,
    /// Whether they may have come later than that, as nobody looked at the clock when they came.
    pub(super) is_vague: bool,
    /// Trains that the clock is to be read for.
    pub(super) doubtful: u32,
    /// Whether what is received now comes to a program that polls.
    is_polled: bool,
    /// Whether one waited since the background thread last asked.
    waited: bool,
}

impl DelayedAcks {
    /// A QP took packets. If the program is about to see a receive complete, the acknowledgement
    /// may wait for its answer.
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

    /// Forgets whose receives completed.
    pub(super) fn clear(&mut self) {
        self.qps.clear();
    }

    /// From now on what is received comes to a program that polls, or it does not.
    pub(super) fn set_polled(&mut self, is_polled: bool) {
        self.is_polled = is_polled;
    }

    /// A train came. Whether it is of interest when.
    #[inline]
    pub(super) fn want_time(&mut self) -> bool {
        let is_wanted = self.doubtful > 0;
        self.doubtful = self.doubtful.saturating_sub(1);
        is_wanted
    }

    /// Whether an acknowledgement waited since this was last asked.
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
