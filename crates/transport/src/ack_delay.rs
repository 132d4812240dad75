//! Delayed acknowledgements: how long one waits for a request to travel with.
//!
//! On a wire an acknowledgement in a datagram of its own costs a system call at both ends. For a
//! program that answers each message at once, both can go in one train: its request, and the
//! acknowledgement after it. The transport cannot know what a program will do next, so the
//! [`AckPolicy`] of a QP delays acknowledgements only for a program that answered at once several
//! times in a row, and only for as long as the policy allows, as QUIC does (RFC 9000 13.2.1).
//!
//! The owner of the QP says when an answer may follow ([`Qp::delay_ack`]), whether it did
//! ([`Qp::note_answer`]), and that there is nothing left to wait for ([`Qp::release_ack`]). The
//! rest is as for every timer: [`Qp::poll_timeout`] returns the deadline, and after
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
    /// The longest delay. Zero: no acknowledgement waits.
    #[doc(alias = "max_ack_delay")]
    pub max_delay: Duration,
    /// How often in a row a program has to answer at once before acknowledgements wait for it.
    pub answers_to_trust: u8,
    /// The peer's ACK timeout is assumed to be that of the QP itself: no acknowledgement waits if
    /// that is shorter than this.
    pub shortest_timeout: Duration,
}

impl AckPolicy {
    /// Every acknowledgement goes at once.
    pub const AT_ONCE: Self =
        Self { max_delay: Duration::ZERO, answers_to_trust: 0, shortest_timeout: Duration::ZERO };
}

/// What a QP knows about its delayed acknowledgements.
#[derive(Debug)]
pub(crate) struct AckDelay {
    policy: &'static AckPolicy,
    /// How often in a row the program answered at once.
    answers_in_a_row: u8,
    /// Whether an acknowledgement stayed when the QP was last polled.
    stayed: bool,
    /// Until when the next one may stay.
    until: Option<Time>,
    /// Whether the one that stays was not asked for, and has no deadline (see `ask`).
    held: bool,
}

impl Default for AckDelay {
    fn default() -> Self {
        let policy = &AckPolicy::AT_ONCE;
        Self { policy, answers_in_a_row: 0, stayed: false, until: None, held: false }
    }
}

impl AckDelay {
    /// Whether an acknowledgement may stay if it is all that the peer is owed.
    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.until.is_some() || self.held
    }

    /// Whether one stays that was not asked for.
    #[inline]
    pub(crate) fn is_held(&self) -> bool {
        self.held
    }

    /// One stays that was not asked for.
    #[inline]
    pub(crate) fn hold(&mut self) {
        (self.stayed, self.held) = (true, true);
    }

    /// It is asked for now.
    #[inline]
    pub(crate) fn ask(&mut self) {
        if self.held {
            self.end();
        }
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

    /// None waits any more: it goes now, or has gone.
    #[inline]
    pub(crate) fn end(&mut self) {
        (self.stayed, self.until, self.held) = (false, None, false);
    }

    /// When one that stayed is due.
    #[inline]
    pub(crate) fn deadline(&self) -> Option<Time> {
        if self.stayed { self.until } else { None }
    }

    /// Releases one that is due: the program did not answer in time.
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
    /// Sets when acknowledgements may wait. Without a policy, each goes at once.
    pub fn set_ack_policy(&mut self, policy: &'static AckPolicy) {
        self.ack_delay.policy = policy;
        self.ack_delay.end();
    }

    /// The program is about to see that a receive completed, and may answer with a request: an
    /// acknowledgement may wait for that. Returns whether the policy allows it.
    #[inline]
    pub fn delay_ack(&mut self, now: Time) -> bool {
        let AckDelay { policy, answers_in_a_row, until, .. } = &mut self.ack_delay;
        if self.path.reliable
            || policy.max_delay.is_zero()
            || *answers_in_a_row < policy.answers_to_trust
        {
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
        (self.ack_delay.until, self.ack_delay.held) = (None, false);
    }

    /// Notes whether the program answered at once after a receive.
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
