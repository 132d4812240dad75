//! How fast bytes are copied: at full speed, unless a fault plan limits it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::windows::Windows;

/// How soon a throttled copy notices that the limit has ended.
const SLICE: Duration = Duration::from_millis(10);

/// One rate for all copies of a GPU together.
#[derive(Debug, Default)]
pub(crate) struct Throttle {
    /// Bytes per second; 0 is no limit.
    rate: AtomicU64,
    /// The settings; the rate is the one in force.
    rates: Mutex<Windows<u64>>,
    /// When the bytes copied so far would have arrived at that rate.
    until: Mutex<Option<Instant>>,
}

impl Throttle {
    /// Sets the rate, for good or while a window is open.
    pub(crate) fn set(&self, rate: u64, window: Option<u64>) {
        let mut rates = self.rates.lock().unwrap_or_else(PoisonError::into_inner);
        self.rate.store(rates.set(rate, window), Ordering::Relaxed);
    }

    /// A window ends.
    pub(crate) fn end(&self, window: u64) {
        let mut rates = self.rates.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(rate) = rates.end(window) {
            self.rate.store(rate, Ordering::Relaxed);
        }
    }

    /// Accounts for copied bytes: returns when the copy was no faster than permitted. Must not be
    /// called with a lock held that moves need.
    #[inline]
    pub(crate) fn pace(&self, len: u64) {
        let rate = self.rate.load(Ordering::Relaxed);
        if rate != 0 {
            self.wait(rate, len);
        }
    }

    #[cold]
    fn wait(&self, rate: u64, len: u64) {
        // CAST: bytes and rates are far below 2^53.
        let takes = Duration::from_secs_f64(len as f64 / rate as f64);
        let mut until = self.until.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let end = until.filter(|until| *until > now).unwrap_or(now) + takes;
        *until = Some(end);
        drop(until);
        while self.rate.load(Ordering::Relaxed) == rate {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            std::thread::sleep(left.min(SLICE));
        }
        *self.until.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_copies_together_are_no_faster_than_the_rate() {
        let throttle = Throttle::default();
        throttle.pace(1 << 40);
        throttle.set(1 << 30, None);
        let start = Instant::now();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| throttle.pace(16 << 20));
            }
        });
        assert!(start.elapsed() >= Duration::from_millis(31), "32 MiB at 1 GiB/s");
    }

    #[test]
    fn a_copy_is_let_go_when_the_limit_ends() {
        let throttle = Throttle::default();
        throttle.set(1 << 20, None);
        std::thread::scope(|scope| {
            let copy = scope.spawn(|| throttle.pace(1 << 40));
            throttle.set(0, None);
            copy.join().expect("it ends");
        });
    }
}
