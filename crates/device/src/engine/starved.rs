//! Packets that wait where they came in, as the program has yet to post the receive that they need.
//!
//! The background thread empties carriers while the program is not running, and would soon have
//! used up the receives of a program that posts new ones for those it saw filled.

use std::time::Duration;

use transport::Time;

use super::env::QpFacts;

/// How long a packet waits for a receive before it is dropped.
const STARVED: Duration = Duration::from_millis(100);

impl QpFacts {
    /// Whether a packet for the QP waits, which has a receive for it or not.
    pub(crate) fn waits_for_receive(&mut self, has_one: bool, now: Time) -> bool {
        if has_one {
            self.starved_since = None;
            return false;
        }
        let since = *self.starved_since.get_or_insert(now);
        now.since(since) < STARVED
    }
}
