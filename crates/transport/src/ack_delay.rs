//! Delayed acknowledgements: how long one waits for a request to travel with.
//!
//! On a wire an acknowledgement in a datagram of its own costs a system call at both ends. A
//! program that answers each message at once can have both sent in one train: its request, and the
//! acknowledgement after it. Nobody tells the transport what a program will do next, so the
//! [`AckPolicy`] of a QP lets acknowledgements wait only for a program that answered at once
//! several times in a row, and only as long as it says, as QUIC does (RFC 9000 13.2.1).
//!
//! Whoever owns the QP says when an answer may follow ([`Qp::delay_ack`]), whether it did
//! ([`Qp::note_answer`]), and that nothing is worth waiting for any more ([`Qp::release_ack`]).
//! The rest is as for every timer: [`Qp::poll_timeout`] has the deadline, and after
//! [`Qp::handle_timeout`] the acknowledgement goes alone.
//!
//! Only an acknowledgement waits, and only where packets can be lost. Refusals, answers with data
//! and congestion notifications always go at once.

use std::time::Duration;

use crate::qp::Qp;
use crate::time::Time;

/// When acknowledgements of a QP may wait for a request to travel with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "callers build it")]
pub struct AckPolicy {
    /// The longest that one waits. Zero: none waits.
    #[doc(alias = "max_ack_delay")]
    pub max_delay: Duration,
    /// How often in a row a program has to answer at once before acknowledgements wait for it.
    pub answers_to_trust: u8,
    /// The peer of a QP is taken to be in the same hurry as the QP itself: none waits if its own
    /// ACK timeout is shorter than this.
    pub shortest_timeout: Duration,
}

impl AckPolicy {
    /// Every acknowledgement goes at once.
    pub const AT_ONCE: Self =
        Self { max_delay: Duration::ZERO, answers_to_trust: 0, shortest_timeout: Duration::ZERO };
}

/// What a QP knows of its acknowledgements that wait.
#[derive(Debug)]
pub(crate) struct AckDelay {
    policy: &'static AckPolicy,
    /// How often in a row the program answered at once.
    answers_in_a_row: u8,
    /// Whether an acknowledgement stayed when the QP was last polled.
    stayed: bool,
    /// Until when the next may stay.
    until: Option<Time>,
}

impl Default for AckDelay {
    fn default() -> Self {
        Self { policy: &AckPolicy::AT_ONCE, answers_in_a_row: 0, stayed: false, until: None }
    }
}

impl AckDelay {
    /// Whether an acknowledgement that is all the peer is owed may stay.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.until.is_some()
    }

    /// Whether one stayed when the QP was last polled.
    #[inline]
    pub(crate) fn has_stayed(&self) -> bool {
        self.stayed
    }

    /// One stays.
    pub(crate) fn stay(&mut self) {
        self.stayed = true;
    }

    /// None waits any more: it goes, or went.
    #[inline]
    pub(crate) fn end(&mut self) {
        (self.stayed, self.until) = (false, None);
    }

    /// When one that stayed is due.
    #[inline]
    pub(crate) fn deadline(&self) -> Option<Time> {
        if self.stayed { self.until } else { None }
    }

    /// Lets one go that is due. The program was waited for in vain.
    pub(crate) fn handle_timeout(&mut self, now: Time) {
        if self.deadline().is_some_and(|due| due <= now) {
            self.until = None;
            self.answers_in_a_row = 0;
        }
    }

    /// Nothing waits, and nothing is known of the program.
    pub(crate) fn reset(&mut self) {
        self.end();
        self.answers_in_a_row = 0;
    }
}

impl Qp {
    /// Sets when acknowledgements may wait. Without, each goes at once.
    pub fn set_ack_policy(&mut self, policy: &'static AckPolicy) {
        self.ack_delay.policy = policy;
        self.ack_delay.end();
    }

    /// The program is about to see that a receive completed, and may answer with a request: an
    /// acknowledgement may wait for that. Says whether one may, which is up to the policy.
    #[inline]
    pub fn delay_ack(&mut self, now: Time) -> bool {
        let AckDelay { policy, answers_in_a_row, until, .. } = &mut self.ack_delay;
        if policy.max_delay.is_zero() || *answers_in_a_row < policy.answers_to_trust {
            return false;
        }
        if self.attr.timeout.duration().is_some_and(|timeout| timeout < policy.shortest_timeout) {
            return false;
        }
        until.get_or_insert(now + policy.max_delay);
        true
    }

    /// An acknowledgement that waits goes when the QP is next polled.
    #[inline]
    pub fn release_ack(&mut self) {
        self.ack_delay.until = None;
    }

    /// Takes note of what the program did after a receive: whether it answered at once.
    #[inline]
    pub fn note_answer(&mut self, is_at_once: bool) {
        let AckDelay { policy, answers_in_a_row, .. } = &mut self.ack_delay;
        *answers_in_a_row = if is_at_once {
            answers_in_a_row.saturating_add(1).min(policy.answers_to_trust)
        } else {
            0
        };
    }
}
