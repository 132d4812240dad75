//! The device's clock.

use std::time::Instant;

use transport::Time;

/// Nanoseconds since the device was opened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    start: Instant,
}

impl Clock {
    pub(crate) fn new() -> Self {
        Self { start: Instant::now() }
    }

    /// Seconds since 1970, for numbers that should differ from run to run.
    pub(crate) fn wall_seconds() -> u64 {
        std::time::UNIX_EPOCH.elapsed().map_or(0, |elapsed| elapsed.as_secs())
    }

    pub(crate) fn now(&self) -> Time {
        // 2^64 nanoseconds are 584 years.
        Time::from_nanos(self.start.elapsed().as_nanos() as u64)
    }
}
