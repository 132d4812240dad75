//! Packet and message sequence numbers: 24 bits that wrap.

use core::fmt;

const MASK: u32 = 0xff_ffff;

/// A packet sequence number (IBA 9.7.2).
///
/// There is no `Ord`: which of two numbers is later depends on the distance between them, so a
/// comparison has to say what it means, with [`Psn::distance`].
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
#[doc(alias = "rq_psn")]
#[doc(alias = "sq_psn")]
pub struct Psn(u32);

impl Psn {
    /// The low 24 bits of `value`; higher bits are dropped, as the header field has no room for
    /// them.
    pub const fn new(value: u32) -> Self {
        Self(value & MASK)
    }

    /// The number, below 2^24.
    pub const fn value(self) -> u32 {
        self.0
    }

    /// The number `count` packets later.
    #[must_use]
    pub const fn add(self, count: u32) -> Self {
        Self(self.0.wrapping_add(count) & MASK)
    }

    /// The number `count` packets earlier.
    #[must_use]
    pub const fn sub(self, count: u32) -> Self {
        Self(self.0.wrapping_sub(count) & MASK)
    }

    /// How many packets `self` is after `earlier`: positive when later, negative when before, in
    /// -2^23 ..= 2^23 - 1.
    ///
    /// IBA 9.7.5.1.1 splits the sequence space in half the same way: what is less than half of it
    /// ahead is later.
    pub const fn distance(self, earlier: Self) -> i32 {
        ((self.0.wrapping_sub(earlier.0) << 8) as i32) >> 8
    }

    /// Whether `self` comes strictly before `other`.
    pub const fn is_before(self, other: Self) -> bool {
        self.distance(other) < 0
    }

    /// Whether `self` comes strictly after `other`.
    pub const fn is_after(self, other: Self) -> bool {
        self.distance(other) > 0
    }
}

impl fmt::Debug for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

impl fmt::Display for Psn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A message sequence number, as an acknowledgement carries it (IBA 9.7.7.1).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Msn(u32);

impl Msn {
    /// The low 24 bits of `value`.
    pub const fn new(value: u32) -> Self {
        Self(value & MASK)
    }

    /// The number, below 2^24.
    pub const fn value(self) -> u32 {
        self.0
    }

    /// The number `count` messages later.
    #[must_use]
    pub const fn add(self, count: u32) -> Self {
        Self(self.0.wrapping_add(count) & MASK)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_wraps_at_24_bits() {
        assert_eq!(Psn::new(0).distance(Psn::new(0xff_ffff)), 1);
        assert_eq!(Psn::new(0xff_ffff).distance(Psn::new(0)), -1);
        assert_eq!(Psn::new(0x80_0000).distance(Psn::new(0)), -0x80_0000);
        assert_eq!(Psn::new(0x7f_ffff).distance(Psn::new(0)), 0x7f_ffff);
    }

    #[test]
    fn add_and_sub_undo_each_other() {
        for start in [0, 1, 0x7f_ffff, 0xff_fffe, 0xff_ffff] {
            for count in [0, 1, 2, 0xff_ffff] {
                assert_eq!(Psn::new(start).add(count).sub(count), Psn::new(start));
            }
        }
    }

    #[test]
    fn before_and_after_are_strict() {
        let (a, b) = (Psn::new(0xff_ffff), Psn::new(1));
        assert!(a.is_before(b) && b.is_after(a));
        assert!(!a.is_before(a) && !a.is_after(a));
    }
}
