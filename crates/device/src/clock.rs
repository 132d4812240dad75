//! The device's clock.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use transport::Time;

/// Nanoseconds since the device was opened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Clock {
    start: Instant,
    /// The wall-clock time of that moment, since 1970, as last read.
    start_on_wall: Duration,
    /// The time of the clock, if a test has stopped it.
    #[cfg(test)]
    stopped: Option<Time>,
}

impl Clock {
    pub(crate) fn new() -> Self {
        Self {
            start: Instant::now(),
            start_on_wall: Duration::ZERO,
            #[cfg(test)]
            stopped: None,
        }
    }

    /// Stops the clock, or advances it by `wait` if it is stopped already.
    #[cfg(test)]
    pub(crate) fn pass(&mut self, wait: Duration) {
        self.stopped = Some(self.now() + wait);
    }

    /// The wall-clock time at a time of the device, in nanoseconds since 1970.
    ///
    /// Both clocks run at the same rate, so their difference is stored, and changes only when the
    /// wall clock is set: if it were computed each time, it would vary with the time that this
    /// takes, and later times could come before earlier ones.
    pub(crate) fn wall(&mut self, at: Time) -> u64 {
        let before = self.start.elapsed();
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let after = self.start.elapsed();
        self.set_wall(wall.saturating_sub(after), after - before);
        // CAST: until the year 2554.
        self.start_on_wall.as_nanos() as u64 + at.as_nanos()
    }

    /// Keeps the old value if the new one differs by no more than the duration and the precision of
    /// the reading.
    fn set_wall(&mut self, start_on_wall: Duration, took: Duration) {
        const GRAIN: Duration = Duration::from_micros(1);
        if self.start_on_wall.abs_diff(start_on_wall) > took + GRAIN {
            self.start_on_wall = start_on_wall;
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_times_are_as_far_apart_on_the_wall_clock_as_on_the_device() {
        let mut clock = Clock::new();
        let first = clock.wall(Time::from_nanos(0));
        for at in 1..10_000 {
            assert_eq!(clock.wall(Time::from_nanos(at)), first + at);
        }
    }

    #[test]
    fn a_wall_clock_that_was_set_is_followed() {
        let mut clock = Clock::new();
        let (long, short) = (Duration::from_secs(1_000), Duration::from_nanos(50));
        clock.set_wall(long, short);
        clock.set_wall(long + short, short);
        assert_eq!(clock.start_on_wall, long);
        clock.set_wall(long - Duration::from_secs(1), short);
        assert_eq!(clock.start_on_wall, long - Duration::from_secs(1));
    }
}
