//! Atomic acknowledge extended transport header (IBA 9.3.6): the previous value of the eight bytes.

use zerocopy::byteorder::big_endian::U64;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of the header.
pub const LEN: usize = 8;

/// The header as it is in a packet.
#[derive(
    Clone,
    Copy,
    Default,
    Debug,
    PartialEq,
    Eq,
    FromBytes,
    IntoBytes,
    KnownLayout,
    Immutable,
    Unaligned,
)]
#[repr(C)]
pub struct RawAtomicAckEth {
    orig: U64,
}

impl RawAtomicAckEth {
    /// Sets the original value.
    pub fn set_orig(&mut self, orig: u64) {
        self.orig.set(orig);
    }

    /// The original value.
    pub fn orig(&self) -> u64 {
        self.orig.get()
    }
}

/// The header's contents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "the field of the AtomicAckETH")]
pub struct AtomicAckEth {
    /// The value before the operation.
    pub orig: u64,
}

impl AtomicAckEth {
    /// Reads a header.
    pub fn parse(raw: &RawAtomicAckEth) -> Self {
        Self { orig: raw.orig() }
    }

    /// The header's bytes.
    pub fn to_raw(&self) -> RawAtomicAckEth {
        RawAtomicAckEth { orig: U64::new(self.orig) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bits::setters_keep_their_neighbours;

    setters_keep_their_neighbours! {
        RawAtomicAckEth, LEN;
        orig / set_orig: u64 => core::convert::identity;
    }
}
