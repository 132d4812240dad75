//! Queue pair numbers and keys.

use core::fmt;

/// A queue pair number: 24 bits.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[doc(alias = "qp_num")]
pub struct Qpn(u32);

impl Qpn {
    /// The QP of the general services interface, which carries connection management (IBA 3.9.4).
    pub const GSI: Self = Self(1);
    /// The destination of a multicast packet (IBA 10.5.1).
    pub const MULTICAST: Self = Self(0xff_ffff);

    /// The low 24 bits of `value`; higher bits are dropped, as the header field has no room for
    /// them.
    pub const fn new(value: u32) -> Self {
        Self(value & 0xff_ffff)
    }

    /// The number, below 2^24.
    pub const fn value(self) -> u32 {
        self.0
    }
}

impl fmt::Debug for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

impl fmt::Display for Qpn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// The number of an XRC shared receive queue: 24 bits.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[doc(alias = "srq_num")]
pub struct Srqn(u32);

impl Srqn {
    /// The low 24 bits of `value`; higher bits are dropped, as the header field has no room for
    /// them.
    pub const fn new(value: u32) -> Self {
        Self(value & 0xff_ffff)
    }

    /// The number, below 2^24.
    pub const fn value(self) -> u32 {
        self.0
    }
}

impl fmt::Debug for Srqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#08x}", self.0)
    }
}

impl fmt::Display for Srqn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

macro_rules! key {
    ($(#[$doc:meta])* $name:ident($int:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
        #[repr(transparent)]
        pub struct $name(pub $int);

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:#x}", self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(self, f)
            }
        }
    };
}

key! {
    /// Names a memory region in a local scatter/gather element.
    #[doc(alias = "lkey")]
    LKey(u32)
}

key! {
    /// Names a memory region in a request from a peer.
    #[doc(alias = "rkey")]
    RKey(u32)
}

key! {
    /// Guards a datagram QP: a packet whose key differs is dropped (IBA 10.2.5).
    #[doc(alias = "qkey")]
    QKey(u32)
}

key! {
    /// A partition key; the top bit is full membership (IBA 10.9.1.1).
    #[doc(alias = "pkey")]
    PKey(u16)
}

impl QKey {
    /// Whether the key has the bit that makes a sender use its QP's own key instead (IBA 10.2.5,
    /// C10-15).
    pub const fn is_controlled(self) -> bool {
        self.0 & 0x8000_0000 != 0
    }
}

impl PKey {
    /// The key every port has: full membership in the default partition.
    pub const DEFAULT: Self = Self(0xffff);

    /// Whether a packet with key `other` may reach a port with this key: equal below the membership
    /// bit, and at least one of the two is a full member (IBA 10.9.3).
    pub const fn matches(self, other: Self) -> bool {
        self.0 & 0x7fff == other.0 & 0x7fff && (self.0 | other.0) & 0x8000 != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn qpn_keeps_24_bits() {
        assert_eq!(Qpn::new(0x0100_0001).value(), 1);
    }

    #[test]
    fn limited_members_cannot_meet() {
        assert!(PKey::DEFAULT.matches(PKey(0x7fff)));
        assert!(!PKey(0x7fff).matches(PKey(0x7fff)));
        assert!(!PKey(0x8001).matches(PKey(0x8002)));
    }
}
