//! Packet pacing: a send queue that must send no faster than this many bits a second.
//!
//! ```text
//!   room for a burst --+-----------------------------+-------------> time
//!                      | packets take from it        | full again
//!                      +--- the rate fills it -------+
//! ```
//!
//! A token bucket of bytes, which the rate fills, and from which each packet takes its length. It
//! is stored as the time at which it will be full, so that nothing needs updating while nothing is
//! sent.

use core::time::Duration;

use iba::Mtu;
use wire::Headers;

use crate::time::Time;

/// How fast a send queue may send.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[doc(alias = "ibv_qp_rate_limit_attr")]
#[expect(clippy::exhaustive_structs, reason = "the fields of libibverbs")]
pub struct RateLimit {
    /// In kbit/s, including all headers; 0 means no limit.
    #[doc(alias = "rate_limit")]
    pub kbps: u32,
    /// Bytes that may leave at once after a pause; 0 means what the rate allows in a millisecond.
    #[doc(alias = "max_burst_sz")]
    pub max_burst: u32,
    /// Bytes of a packet, the least size of a burst; 0 means the path MTU.
    #[doc(alias = "typical_pkt_sz")]
    pub typical_packet: u16,
}

/// Ethernet, IPv4 and UDP before the headers of InfiniBand, and the ICRC after the payload.
const AROUND: u64 = 14 + 20 + 8 + 4;

/// Bytes on an IPv4 wire of a packet with this much payload, whichever carrier it takes.
pub(crate) fn on_a_wire(headers: &Headers, payload: u32) -> u64 {
    AROUND + headers.len() as u64 + u64::from(payload)
}

/// The bucket of a send queue.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Pace {
    limit: RateLimit,
    /// When it is full.
    full_at: Time,
}

impl Pace {
    /// A full bucket.
    pub(crate) fn new(limit: RateLimit) -> Self {
        Self { limit, full_at: Time::ZERO }
    }

    pub(crate) fn limit(&self) -> RateLimit {
        self.limit
    }

    pub(crate) fn is_limited(&self) -> bool {
        self.limit.kbps > 0
    }

    /// How long this many bytes take at the rate.
    fn cost(&self, bytes: u64) -> Duration {
        // A bit at 1 kbit/s takes a million nanoseconds.
        Duration::from_nanos((bytes * 8_000_000).div_ceil(u64::from(self.limit.kbps.max(1))))
    }

    /// When a packet may leave, if not now. A packet longer than the bucket waits until the bucket
    /// is full.
    pub(crate) fn wait(&self, now: Time, bytes: u64, mtu: Mtu) -> Option<Time> {
        let filling = self.full_at.since(now);
        if !self.is_limited() || filling.is_zero() {
            return None;
        }
        let RateLimit { kbps, max_burst, typical_packet } = self.limit;
        let burst = if max_burst > 0 { max_burst } else { kbps / 8 };
        let packet = if typical_packet > 0 { u32::from(typical_packet) } else { mtu.bytes() };
        let room = self.cost(u64::from(burst.max(packet))).saturating_sub(self.cost(bytes));
        (filling > room).then(|| now + (filling - room))
    }

    /// Whether another packet like this one, which is about to leave, would have to wait.
    pub(crate) fn next_waits(mut self, now: Time, bytes: u64, mtu: Mtu) -> bool {
        self.spend(now, bytes);
        self.wait(now, bytes, mtu).is_some()
    }

    /// Notes bytes that were sent.
    pub(crate) fn spend(&mut self, now: Time, bytes: u64) {
        if self.is_limited() {
            self.full_at = self.full_at.max(now) + self.cost(bytes);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MTU: Mtu = Mtu::Mtu1024;

    fn pace(kbps: u32, max_burst: u32) -> Pace {
        Pace::new(RateLimit { kbps, max_burst, typical_packet: 0 })
    }

    #[test]
    fn without_a_limit_nothing_waits() {
        let mut pace = pace(0, 0);
        pace.spend(Time::ZERO, 1 << 40);
        assert_eq!(pace.wait(Time::ZERO, 1 << 40, MTU), None);
    }

    #[test]
    fn a_burst_goes_at_once_and_the_next_packet_waits_for_its_own_bytes() {
        // One byte each microsecond.
        let mut pace = pace(8_000, 4_000);
        let now = Time::from_micros(10_000);
        for _ in 0..4 {
            assert_eq!(pace.wait(now, 1_000, MTU), None);
            pace.spend(now, 1_000);
        }
        assert_eq!(pace.wait(now, 1_000, MTU), Some(Time::from_micros(11_000)));
        assert_eq!(pace.wait(now, 10, MTU), Some(Time::from_micros(10_010)));
    }

    #[test]
    fn a_pause_fills_one_burst_and_not_more() {
        let mut pace = pace(8_000, 4_000);
        pace.spend(Time::ZERO, 4_000);
        let late = Time::from_micros(1_000_000);
        let mut sent = 0;
        while pace.wait(late, 1_000, MTU).is_none() {
            pace.spend(late, 1_000);
            sent += 1;
        }
        assert_eq!(sent, 4);
    }

    #[test]
    fn a_packet_longer_than_a_burst_waits_until_the_burst_is_full_and_is_sent() {
        let mut pace = pace(8_000, 2_000);
        assert_eq!(pace.wait(Time::ZERO, 9_000, MTU), None);
        pace.spend(Time::ZERO, 9_000);
        assert_eq!(pace.wait(Time::ZERO, 9_000, MTU), Some(Time::from_micros(9_000)));
    }

    #[test]
    fn a_burst_is_at_least_one_packet() {
        let mut pace = pace(8_000, 1);
        pace.spend(Time::ZERO, 512);
        assert_eq!(pace.wait(Time::ZERO, 512, MTU), None);
    }
}
