//! The device's clock.

use std::time::Instant;

use transport::Time;

/// Nanoseconds since the device was opened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    start: Instant,
    /// What the clock shows, if a test stopped it.
    #[cfg(test)]
    stopped: Option<Time>,
}

impl Clock {
    pub(crate) fn new() -> Self {
        Self {
            start: Instant::now(),
            #[cfg(test)]
            stopped: None,
        }
    }

    /// Stops the clock, or sets it on by `wait` if it is stopped already.
    #[cfg(test)]
    pub(crate) fn pass(&mut self, wait: std::time::Duration) {
        self.stopped = Some(self.now() + wait);
    }

    /// Seconds since 1970, for numbers that should differ from run to run.
    pub(crate) fn wall_seconds() -> u64 {
        std::time::UNIX_EPOCH.elapsed().map_or(0, |elapsed| elapsed.as_secs())
    }

    pub(crate) fn now(&self) -> Time {
        #[cfg(test)]
        if let Some(at) = self.stopped {
            return at;
        }
        // 2^64 nanoseconds are 584 years.
        Time::from_nanos(self.start.elapsed().as_nanos() as u64)
    }
}
