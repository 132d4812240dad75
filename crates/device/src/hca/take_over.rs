//! When a program counts as polling.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::thresholds::{POLLS_TO_TAKE_OVER, POLLS_TO_TAKE_OVER_AT_MOST};

/// How many polls it takes until the program counts as polling.
///
/// From then on nothing wakes the background thread, so what arrives waits for the next poll. A
/// program that polls only for its own completions, and spins on memory for what its peer writes
/// (`ib_write_lat`), would wait for the end of the lease each time. So each time that something
/// waited the number doubles, until such a program never has as many. It does not if the last poll
/// found nothing: then the program has lost its processor, and will go on polling.
#[derive(Debug)]
pub(super) struct TakeOver(AtomicU64);

impl TakeOver {
    pub(super) const fn new() -> Self {
        Self(AtomicU64::new(POLLS_TO_TAKE_OVER))
    }

    pub(super) fn polls(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Whether something waited for a poll lately.
    pub(super) fn is_in_doubt(&self) -> bool {
        self.polls() > POLLS_TO_TAKE_OVER
    }

    /// Something waited for a program that counted as polling and did not poll.
    pub(super) fn doubt(&self) {
        self.0.store((2 * self.polls()).min(POLLS_TO_TAKE_OVER_AT_MOST), Ordering::Relaxed);
    }

    /// The program polled at the end of a lease. Less is gained by that than lost by one
    /// [`TakeOver::doubt`]: a program that spins on memory may be polling at that moment.
    pub(super) fn trust(&self) {
        let polls = self.polls();
        self.0.store((polls - polls / 16).max(POLLS_TO_TAKE_OVER), Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn doubt_grows_fast_and_ends_slowly_and_both_end() {
        let take_over = TakeOver::new();
        assert!(!take_over.is_in_doubt());
        take_over.trust();
        assert_eq!(take_over.polls(), POLLS_TO_TAKE_OVER);
        take_over.doubt();
        assert_eq!(take_over.polls(), 2 * POLLS_TO_TAKE_OVER);
        take_over.trust();
        assert!(take_over.is_in_doubt());
        for _ in 0..100 {
            take_over.doubt();
        }
        assert_eq!(take_over.polls(), POLLS_TO_TAKE_OVER_AT_MOST);
        let leases = (0..1000).take_while(|_| {
            take_over.trust();
            take_over.is_in_doubt()
        });
        assert!((50..200).contains(&leases.count()));
    }
}
