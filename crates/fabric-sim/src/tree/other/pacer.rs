//! The reaction point of DCQCN (Zhu et al., SIGCOMM 2015), with the parameters that its authors
//! recommend.
//!
//! A notification cuts the rate by half of `alpha`, the estimate of how much is marked. Silence
//! raises it again, by a timer and by a counter of bytes: five times half of the way back, then a
//! little beyond, and more if both agree.

use std::time::Duration;

use transport::Time;

/// The weight of the newest notification in the estimate.
const GAIN: f64 = 1.0 / 256.0;
/// Without a notification the estimate falls, and the rate rises, once in this time.
const PERIOD: Duration = Duration::from_micros(55);
/// The rate also rises once in so many bytes.
const BYTES: u64 = 10_000_000;
/// Steps of fast recovery.
const RECOVERY: u32 = 5;
/// What the target grows by afterwards, and when timer and counter are both beyond, in bytes per
/// second: 40 and 400 Mbit/s.
const ADDITIVE: f64 = 5e6;
const HYPER: f64 = 5e7;
/// The least rate: 100 Mbit/s.
const LEAST: f64 = 1.25e7;

/// Says when the next packet may leave.
#[derive(Debug)]
pub(super) struct Pacer {
    line: f64,
    rate: f64,
    target: f64,
    alpha: f64,
    /// Rises since the last notification, by the timer and by bytes.
    by_time: u32,
    by_bytes: u32,
    bytes: u64,
    period: Time,
    next: Time,
}

impl Pacer {
    /// It begins with the rate of the line, in bytes per second.
    pub(super) fn new(line: f64) -> Self {
        Self {
            line,
            rate: line,
            target: line,
            alpha: 1.0,
            by_time: 0,
            by_bytes: 0,
            bytes: 0,
            period: Time::ZERO + PERIOD,
            next: Time::ZERO,
        }
    }

    /// When the next packet may leave.
    pub(super) fn next(&self) -> Time {
        self.next
    }

    /// A packet of this size leaves now, if it may.
    pub(super) fn send(&mut self, size: u64, now: Time) -> bool {
        self.pass(now);
        if now < self.next {
            return false;
        }
        self.next = now + Duration::from_secs_f64(size as f64 / self.rate);
        self.bytes += size;
        if self.bytes >= BYTES {
            self.bytes = 0;
            self.by_bytes += 1;
            self.rise();
        }
        true
    }

    /// The other end saw marks.
    pub(super) fn notified(&mut self, now: Time) {
        self.pass(now);
        self.target = self.rate;
        self.rate = (self.rate * (1.0 - self.alpha / 2.0)).max(LEAST);
        self.alpha = (1.0 - GAIN) * self.alpha + GAIN;
        (self.by_time, self.by_bytes, self.bytes, self.period) = (0, 0, 0, now + PERIOD);
    }

    /// The periods that are over.
    fn pass(&mut self, now: Time) {
        while self.period <= now {
            self.period = self.period + PERIOD;
            self.alpha *= 1.0 - GAIN;
            self.by_time += 1;
            self.rise();
        }
    }

    fn rise(&mut self) {
        let (most, least) = (self.by_time.max(self.by_bytes), self.by_time.min(self.by_bytes));
        if least > RECOVERY {
            self.target += HYPER;
        } else if most > RECOVERY {
            self.target += ADDITIVE;
        }
        self.target = self.target.min(self.line);
        self.rate = f64::midpoint(self.rate, self.target);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: f64 = 5e9;

    #[test]
    fn the_first_notification_halves_the_rate_and_five_periods_bring_most_of_it_back() {
        let mut pacer = Pacer::new(LINE);
        let mut now = Time::ZERO;
        pacer.notified(now);
        assert_eq!(pacer.rate, LINE / 2.0);
        now = now + PERIOD * RECOVERY;
        pacer.pass(now);
        assert_eq!(pacer.rate, LINE * (1.0 - 0.5_f64.powi(6)));
        assert!(pacer.alpha < 1.0);
    }

    #[test]
    fn the_rate_keeps_packets_apart() {
        let mut pacer = Pacer::new(1e9);
        let mut now = Time::ZERO;
        assert!(pacer.send(1000, now) && !pacer.send(1000, now));
        now = now + Duration::from_micros(1);
        assert!(pacer.send(1000, now));
    }

    #[test]
    fn many_notifications_leave_the_least_rate() {
        let mut pacer = Pacer::new(LINE);
        for number in 1..100 {
            pacer.notified(Time::ZERO + Duration::from_micros(50) * number);
        }
        assert_eq!(pacer.rate, LEAST);
    }
}
