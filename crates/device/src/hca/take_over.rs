//! When a program counts as polling.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::thresholds::{
    BETWEEN_CALLS, LEASE, LEASES_TO_TAKE_OVER_AT_MOST, POLLS_TO_TAKE_OVER,
    POLLS_TO_TAKE_OVER_AT_MOST,
};

/// What it takes until the program counts as polling: polls that find nothing, or leases full of
/// posts and polls.
///
/// From then on nothing wakes the background thread, so what arrives waits for the next poll. A
/// program that polls only for its own completions, and spins on memory for what its peer writes
/// (`ib_write_lat`), would wait for the end of the lease each time. So each time that something
/// waited both numbers double, until such a program never has as many polls, and as many leases
/// only twice in a minute. They do not if the last poll found nothing: then the program has lost
/// its processor, and will go on polling.
#[derive(Debug)]
pub(super) struct TakeOver {
    polls: AtomicU64,
    leases: AtomicU64,
}

impl TakeOver {
    pub(super) const fn new() -> Self {
        Self { polls: AtomicU64::new(POLLS_TO_TAKE_OVER), leases: AtomicU64::new(1) }
    }

    pub(super) fn polls(&self) -> u64 {
        self.polls.load(Ordering::Relaxed)
    }

    pub(super) fn leases(&self) -> u64 {
        self.leases.load(Ordering::Relaxed)
    }

    /// Whether something waited for a poll lately.
    pub(super) fn is_in_doubt(&self) -> bool {
        self.polls() > POLLS_TO_TAKE_OVER
    }

    /// Something waited for a program that counted as polling and did not poll.
    pub(super) fn doubt(&self) {
        let twice = |number: u64, most: u64| (2 * number).min(most);
        self.polls.store(twice(self.polls(), POLLS_TO_TAKE_OVER_AT_MOST), Ordering::Relaxed);
        self.leases.store(twice(self.leases(), LEASES_TO_TAKE_OVER_AT_MOST), Ordering::Relaxed);
    }

    /// The program polled at the end of a lease. Less is gained by that than lost by one
    /// [`TakeOver::doubt`]: a program that spins on memory may be polling at that moment.
    pub(super) fn trust(&self) {
        let less = |number: u64, least: u64| (number - number.div_ceil(16)).max(least);
        self.polls.store(less(self.polls(), POLLS_TO_TAKE_OVER), Ordering::Relaxed);
        self.leases.store(less(self.leases(), 1), Ordering::Relaxed);
    }
}

/// The posts and polls of the program, as the background thread sees them when it wakes.
///
/// A program that sends as fast as it can posts, and finds completions in almost every poll, above
/// all if the thread is woken for each acknowledgement and takes it: there would never be enough
/// polls that find nothing, and the two would stand in each other's way.
#[derive(Debug)]
pub(super) struct Calls {
    counted: u64,
    waits_begun: u64,
    since: Instant,
    /// Leases full of calls, in a row.
    leases: u64,
}

impl Calls {
    pub(super) fn new(now: Instant) -> Self {
        Self { counted: 0, waits_begun: 0, since: now, leases: 0 }
    }

    /// The program did not poll for what waited: what it did before does not count.
    pub(super) fn start_again(&mut self) {
        self.leases = 0;
    }

    /// For how many leases in a row the program has made call after call, and has not waited for
    /// an event, when it has made `calls` and waited for `waits_begun` events.
    pub(super) fn leases(&mut self, calls: u64, waits_begun: u64, now: Instant) -> u64 {
        let took = now.duration_since(self.since);
        let waited = waits_begun != self.waits_begun;
        if took < LEASE && !waited {
            return self.leases;
        }
        let count = u32::try_from(calls.wrapping_sub(self.counted)).unwrap_or(u32::MAX);
        let is_full = !waited && took <= BETWEEN_CALLS * count;
        let leases = if is_full { self.leases + 1 } else { 0 };
        *self = Self { counted: calls, waits_begun, since: now, leases };
        leases
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_lease_is_full_of_calls_if_they_are_many_and_none_waits() {
        let began = Instant::now();
        let mut calls = Calls::new(began);
        let mut leases = |micros, made, waits_begun| {
            calls.leases(made, waits_begun, began + Duration::from_micros(micros))
        };
        assert_eq!(leases(100, 1000, 0), 0, "too early to tell");
        assert_eq!(leases(2000, 1000, 0), 1);
        assert_eq!(leases(3000, 1000, 0), 1, "no whole lease has passed");
        assert_eq!(leases(4000, 1200, 0), 2);
        assert_eq!(leases(6000, 1399, 0), 0, "one call too few");
        assert_eq!(leases(9000, 2000, 0), 1);
        assert_eq!(leases(9010, 3000, 1), 0, "it waited for an event");
        assert_eq!(leases(12_000, 4000, 1), 1);
        calls.start_again();
        assert_eq!(calls.leases(4500, 1, began + Duration::from_micros(13_000)), 0);
    }

    #[test]
    fn doubt_grows_fast_and_ends_slowly_and_both_end() {
        let take_over = TakeOver::new();
        assert!(!take_over.is_in_doubt());
        take_over.trust();
        assert_eq!((take_over.polls(), take_over.leases()), (POLLS_TO_TAKE_OVER, 1));
        take_over.doubt();
        assert_eq!((take_over.polls(), take_over.leases()), (2 * POLLS_TO_TAKE_OVER, 2));
        take_over.trust();
        assert!(take_over.is_in_doubt());
        for _ in 0..100 {
            take_over.doubt();
        }
        assert_eq!(take_over.polls(), POLLS_TO_TAKE_OVER_AT_MOST);
        assert_eq!(take_over.leases(), LEASES_TO_TAKE_OVER_AT_MOST);
        let leases = (0..1000).take_while(|_| {
            take_over.trust();
            take_over.is_in_doubt()
        });
        assert!((50..200).contains(&leases.count()));
        (0..1000).for_each(|_| take_over.trust());
        assert_eq!(take_over.leases(), 1);
    }
}
