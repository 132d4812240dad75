//! How many packets may be unacknowledged.
//!
//! A wire may have less room than both ends would like: a switch's queue, or a socket buffer that the administrator
//! keeps small. What fits is found by trial, as TCP does (RFC 5681): the window grows while nothing is lost, doubling
//! at first, and is halved at each loss. Paths that lose nothing have a fixed window.

use iba::Mtu;

/// The window of one requester, in packets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    now: u32,
    /// The smallest and the largest it may become.
    floor: u32,
    limit: u32,
    /// Until here it doubles with every window that arrives whole; above, it grows by [`STEP`].
    threshold: u32,
    /// Packets acknowledged since it last grew above the threshold.
    credit: u32,
}

/// Where a wire's window starts: the whole of the kernel's rxe (`RXE_MAX_UNACKED_PSNS`).
const START: u32 = 128;
/// What no number of losses takes away.
const FLOOR: u32 = 16;
/// The growth for each window that arrives whole.
const STEP: u32 = 8;
/// The most a wire's window may be, in packets and in bytes: several QPs share a receiver's socket buffer.
const LIMIT: u32 = 512;
const LIMIT_BYTES: u32 = 1 << 20;

impl Window {
    /// A window that stays as it is.
    pub(crate) const fn fixed(packets: u32) -> Self {
        Self { now: packets, floor: packets, limit: packets, threshold: packets, credit: 0 }
    }

    /// The window of a wire that may lose packets.
    pub(crate) fn wire(mtu: Mtu) -> Self {
        let limit = LIMIT.min(LIMIT_BYTES / mtu.bytes());
        Self { now: START, floor: FLOOR, limit, threshold: limit, credit: 0 }
    }

    /// Its size.
    pub(crate) const fn packets(&self) -> u32 {
        self.now
    }

    /// Takes note that the peer has so many packets more.
    pub(crate) fn arrived(&mut self, packets: u32) {
        if self.now >= self.limit {
            return;
        }
        if self.now < self.threshold {
            self.now = self.now.saturating_add(packets).min(self.threshold);
            return;
        }
        self.credit = self.credit.saturating_add(packets);
        if self.credit >= self.now {
            self.credit = 0;
            self.now = (self.now + STEP).min(self.limit);
        }
    }

    /// Takes note that packets were lost.
    pub(crate) fn lost(&mut self) {
        self.now = (self.now / 2).max(self.floor);
        self.threshold = self.now;
        self.credit = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_grows_while_nothing_is_lost() {
        let mut window = Window::wire(Mtu::Mtu1024);
        assert_eq!(window.packets(), 128);
        window.arrived(128);
        assert_eq!(window.packets(), 256);
        window.arrived(100_000);
        assert_eq!(window.packets(), 512);
        assert_eq!(Window::wire(Mtu::Mtu4096).limit, 256, "a mebibyte");
    }

    #[test]
    fn a_loss_halves_it_and_growth_is_slow_from_there() {
        let mut window = Window::wire(Mtu::Mtu1024);
        window.lost();
        assert_eq!(window.packets(), 64);
        window.arrived(63);
        assert_eq!(window.packets(), 64);
        window.arrived(1);
        assert_eq!(window.packets(), 72);
        (0..100).for_each(|_| window.lost());
        assert_eq!(window.packets(), FLOOR);
    }

    #[test]
    fn a_fixed_one_stays() {
        let mut window = Window::fixed(8);
        window.arrived(1000);
        assert_eq!(window.packets(), 8);
        window.lost();
        assert_eq!(window.packets(), 8);
    }
}
