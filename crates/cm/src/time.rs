//! Times of the standard, which are powers of two of 4.096 us.

use core::time::Duration;

/// `4.096 us * 2^code`; only the low five bits of `code` count (IBA 12.7.26).
pub fn duration(code: u8) -> Duration {
    Duration::from_nanos(4096 << (code & 31))
}

/// The ACK timeout for a channel adapter that takes `ack_delay`, and a packet that lives for
/// `life_time`: `ack_delay + 2 * life_time`, rounded up if the smaller is half the larger (the
/// kernel's `cm_ack_timeout`).
pub fn ack_timeout(ack_delay: u8, life_time: u8) -> u8 {
    let trip = life_time.saturating_add(1);
    let (large, small) = (trip.max(ack_delay), trip.min(ack_delay));
    (large + u8::from(small + 1 >= large)).min(31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_powers_of_two() {
        assert_eq!(duration(0), Duration::from_nanos(4096));
        assert_eq!(duration(20), Duration::from_nanos(4_294_967_296));
        assert_eq!(duration(0xff), duration(31));
    }

    #[test]
    fn the_smaller_part_counts_if_it_is_half_the_larger() {
        assert_eq!(ack_timeout(15, 16), 17);
        assert_eq!(ack_timeout(16, 16), 18);
        assert_eq!(ack_timeout(18, 16), 19);
        assert_eq!(ack_timeout(20, 16), 20);
        assert_eq!(ack_timeout(31, 31), 31);
    }
}
