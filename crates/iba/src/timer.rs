//! How the standard writes times in five bits.

use core::time::Duration;

/// The local ACK timeout of a QP: `4.096 us * 2^code`, and no timeout at all for code 0 (IBA
/// 9.7.6.1.3).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[doc(alias = "timeout")]
pub struct AckTimeout(u8);

impl AckTimeout {
    /// From the five-bit code of `ibv_qp_attr.timeout`, if it fits.
    pub const fn from_code(code: u8) -> Option<Self> {
        if code < 32 { Some(Self(code)) } else { None }
    }

    /// The five-bit code.
    pub const fn code(self) -> u8 {
        self.0
    }

    /// The time, or `None` for "wait forever".
    pub const fn duration(self) -> Option<Duration> {
        if self.0 == 0 { None } else { Some(Duration::from_nanos(4096 << self.0)) }
    }
}

/// How long a requester waits after a receiver-not-ready NAK (IBA table 45).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[doc(alias = "min_rnr_timer")]
pub struct RnrTimer(u8);

impl RnrTimer {
    /// IBA table 45 in units of 10 us. Code 0 is the longest wait, not the shortest.
    const TENS_OF_MICROS: [u32; 32] = [
        65536, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024,
        1536, 2048, 3072, 4096, 6144, 8192, 12288, 16384, 24576, 32768, 49152,
    ];

    /// From the five-bit code of `ibv_qp_attr.min_rnr_timer`, if it fits.
    pub const fn from_code(code: u8) -> Option<Self> {
        if code < 32 { Some(Self(code)) } else { None }
    }

    /// From the low five bits of an AETH syndrome.
    pub const fn from_syndrome(syndrome: u8) -> Self {
        Self(syndrome & 0x1f)
    }

    /// The five-bit code.
    pub const fn code(self) -> u8 {
        self.0
    }

    /// The time.
    pub const fn duration(self) -> Duration {
        Duration::from_micros(Self::TENS_OF_MICROS[self.0 as usize] as u64 * 10)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ack_timeout_14_is_67_ms() {
        let timeout = AckTimeout::from_code(14).unwrap().duration().unwrap();
        assert_eq!(timeout, Duration::from_nanos(67_108_864));
        assert_eq!(AckTimeout::default().duration(), None);
        assert_eq!(AckTimeout::from_code(32), None);
    }

    #[test]
    fn rnr_code_0_is_the_longest() {
        let time = |code| RnrTimer::from_code(code).unwrap().duration();
        assert_eq!(time(0), Duration::from_micros(655_360));
        assert_eq!(time(1), Duration::from_micros(10));
        assert_eq!(time(12), Duration::from_micros(640));
        assert_eq!(time(31), Duration::from_micros(491_520));
    }
}
