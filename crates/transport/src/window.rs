//! How many packets may be unacknowledged.
//!
//! A wire may have less room than both ends would like: a switch's queue, or a socket buffer that
//! the administrator keeps small. The right size is found by trial, as in TCP (RFC 5681): the
//! window grows while nothing is lost, doubling at first, and is halved at each loss. If the peer
//! reports what it lacks, a few packets remain; if it is silent, fewer, as then all of a window was
//! lost. A switch that marks instead of dropping shrinks it sooner and by less (see `congestion`).
//! Paths that lose nothing have a fixed window.

use iba::Mtu;

/// The window of one requester, in packets.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    now: u32,
    /// The largest it may become. Equal to the smallest size for a fixed window.
    limit: u32,
    is_fixed: bool,
    /// Up to here it doubles with every window that arrives whole; above, it grows by [`STEP`].
    threshold: u32,
    /// Packets acknowledged since it last grew above the threshold.
    credit: u32,
    /// Packets acknowledged since it last shrank for a mark, and how many make a round trip.
    since_mark: u32,
    round: u32,
    /// How frequent marks were recently, in parts of [`ALWAYS`].
    alpha: u32,
    /// Its size before the last mark, and the windows left until it is near that again.
    target: u32,
    steps_back: u32,
}

/// The initial window of a wire: the whole window of the kernel's rxe (`RXE_MAX_UNACKED_PSNS`), and
/// in bytes what that is at an MTU of 1024. In a fat tree of 128 hosts with packets of 4 KiB, the
/// last of 64 that send to one ends after 6.3 ms with these bytes, and after 8.9 ms with four times
/// as many.
const START: u32 = 128;
const START_BYTES: u32 = START * 1024;
/// The minimum after any number of losses that the peer reports: some of the window arrived.
const FLOOR: u32 = 16;
/// The minimum that always remains. Marks and silence come from many connections that share a
/// queue, which may be shorter than [`FLOOR`] for each of them: a connection that insists on that
/// many loses them all, until no retry is left.
const SMALLEST: u32 = 2;
/// The growth for each window that arrives whole.
const STEP: u32 = 8;
/// The largest window on a wire, in packets and in bytes: several QPs share a receiver's socket
/// buffer.
const LIMIT: u32 = 768;
const LIMIT_BYTES: u32 = 1 << 20;
/// Marks in every round trip.
const ALWAYS: u32 = 1024;
/// The share of the newest round trip in the estimate: one in this many.
const GAIN: u32 = 16;
/// After a mark, this many windows halve the distance to its earlier size (fast recovery of DCQCN).
const STEPS_BACK: u32 = 5;

impl Window {
    /// A window of constant size.
    pub(crate) const fn fixed(packets: u32) -> Self {
        Self {
            now: packets,
            limit: packets,
            is_fixed: true,
            threshold: packets,
            credit: 0,
            since_mark: 0,
            round: 0,
            alpha: ALWAYS,
            target: packets,
            steps_back: 0,
        }
    }

    /// The window of a wire that may lose packets.
    pub(crate) fn wire(mtu: Mtu) -> Self {
        let limit = LIMIT.min(LIMIT_BYTES / mtu.bytes());
        Self { now: START.min(START_BYTES / mtu.bytes()), is_fixed: false, ..Self::fixed(limit) }
    }

    /// Its size.
    pub(crate) const fn packets(&self) -> u32 {
        self.now
    }

    /// Whether it is as small as losses make it. Connections that share a queue which is too short
    /// for all of them then pause after a loss: if none ever did, those whose packets found the
    /// queue full would find it full each time that they try again.
    pub(crate) const fn is_small(&self) -> bool {
        self.now <= FLOOR
    }

    /// Notes that this many more packets have arrived at the peer.
    pub(crate) fn arrived(&mut self, packets: u32) {
        if self.is_fixed {
            return;
        }
        self.since_mark = self.since_mark.saturating_add(packets);
        if self.now < self.threshold {
            self.now = self.now.saturating_add(packets).min(self.threshold);
            return;
        }
        self.credit = self.credit.saturating_add(packets);
        if self.credit < self.now {
            return;
        }
        self.credit = 0;
        self.alpha -= self.alpha / GAIN;
        if self.steps_back > 0 {
            self.steps_back -= 1;
            self.now = u32::midpoint(self.now, self.target).min(self.limit);
        } else {
            self.now = (self.now + STEP).min(self.limit);
        }
    }

    /// Notes that packets were lost, as the peer reported.
    pub(crate) fn lost(&mut self) {
        self.halve(FLOOR);
    }

    /// Notes that the peer was silent for so long that the whole window counts as lost.
    pub(crate) fn silent(&mut self) {
        self.halve(SMALLEST);
    }

    fn halve(&mut self, floor: u32) {
        if !self.is_fixed {
            self.shrink((self.now / 2).max(floor.min(self.now)));
            self.steps_back = 0;
        }
    }

    /// Notes that packets were marked in transit. Returns false if the window does not react to
    /// marks.
    ///
    /// It shrinks once a round trip: notifications about packets sent before say nothing about the
    /// new window.
    pub(crate) fn marked(&mut self) -> bool {
        if self.is_fixed {
            return false;
        }
        if self.since_mark < self.round {
            return true;
        }
        self.alpha += (ALWAYS - self.alpha) / GAIN;
        (self.target, self.round) = (self.now, self.now);
        // DCQCN: shrinks by half of the estimate.
        self.shrink((self.now - self.now * self.alpha / (2 * ALWAYS)).max(SMALLEST));
        (self.since_mark, self.steps_back) = (0, STEPS_BACK);
        true
    }

    fn shrink(&mut self, to: u32) {
        self.now = to;
        self.threshold = to;
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
        assert_eq!(window.packets(), LIMIT);
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
    fn silence_shrinks_it_more_than_losses_and_it_recovers_quickly() {
        let mut window = Window::wire(Mtu::Mtu1024);
        (0..100).for_each(|_| window.silent());
        assert_eq!(window.packets(), SMALLEST);
        window.lost();
        assert_eq!(window.packets(), SMALLEST, "a loss does not make it larger");
        window.arrived(2);
        window.arrived(10);
        assert_eq!(window.packets(), 18);
    }

    #[test]
    fn marks_in_one_round_trip_count_once_and_rare_marks_shrink_it_little() {
        let mut window = Window::wire(Mtu::Mtu1024);
        assert!(window.marked() && window.marked());
        assert_eq!(window.packets(), 64, "the first one counts as much as a loss");
        // Each window brings back half of what was lost, then it grows as usual.
        window.arrived(64);
        assert_eq!(window.packets(), 96);
        for _ in 0..200 {
            window.arrived(window.packets());
        }
        assert_eq!(window.packets(), LIMIT);
        assert!(window.marked());
        assert!(
            window.packets() > LIMIT / 16 * 15,
            "{window:?}: after a long time without marks, one mark has little effect"
        );
    }

    #[test]
    fn constant_marks_leave_a_small_window_that_losses_do_not_enlarge() {
        let mut window = Window::wire(Mtu::Mtu1024);
        for _ in 0..100 {
            window.marked();
            window.arrived(window.round);
        }
        assert!(window.packets() <= 8, "{window:?}");
        let before = window.packets();
        window.lost();
        assert!(window.packets() <= before);
    }

    #[test]
    fn a_fixed_window_never_changes() {
        let mut window = Window::fixed(8);
        window.arrived(1000);
        assert_eq!(window.packets(), 8);
        window.lost();
        window.silent();
        assert!(!window.marked());
        assert_eq!(window.packets(), 8);
    }
}
