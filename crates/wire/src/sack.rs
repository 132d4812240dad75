//! Selective acknowledgement: what a responder keeps of the packets that overtook a lost one.
//!
//! The packet is peerdma's own. Its opcode is one of those that IBA leaves to manufacturers (IBA
//! table 38), and a signature follows it, since other manufacturers may use that opcode, too. Its
//! sequence number is the one that the responder expects next.

use zerocopy::byteorder::big_endian::U16;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of the header.
pub const LEN: usize = 32;
/// How many ranges it has room for.
pub const RANGES: usize = 7;
/// Its first bytes.
pub const SIGNATURE: [u8; 4] = *b"pSAK";

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
pub struct RawSack {
    signature: [u8; 4],
    ranges: [RawRange; RANGES],
}

/// A range as it is in a packet.
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
pub struct RawRange {
    ahead: U16,
    count: U16,
}

/// Sequence numbers in a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "the fields of a range")]
pub struct SackRange {
    /// How far its first number is ahead of the one that the responder expects.
    pub ahead: u16,
    /// How many numbers it has; 0 in a place that is not used.
    pub count: u16,
}

/// The header's contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "the fields of the header")]
pub struct Sack {
    /// [`SIGNATURE`]; other manufacturers' packets have something else, and mean something else.
    pub signature: [u8; 4],
    /// What is kept, in order. There may be more, further ahead.
    pub ranges: [SackRange; RANGES],
}

impl Default for Sack {
    fn default() -> Self {
        Self { signature: SIGNATURE, ranges: Default::default() }
    }
}

impl Sack {
    /// Reads a header.
    pub fn parse(raw: &RawSack) -> Self {
        let range = |raw: RawRange| SackRange { ahead: raw.ahead.get(), count: raw.count.get() };
        Self { signature: raw.signature, ranges: raw.ranges.map(range) }
    }

    /// The header's bytes.
    pub fn to_raw(&self) -> RawSack {
        let raw = |range: SackRange| RawRange {
            ahead: U16::new(range.ahead),
            count: U16::new(range.count),
        };
        RawSack { signature: self.signature, ranges: self.ranges.map(raw) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_begins_with_the_signature() {
        let mut sack = Sack::default();
        sack.ranges[0] = SackRange { ahead: 1, count: 300 };
        sack.ranges[6] = SackRange { ahead: 700, count: 2 };
        let raw = sack.to_raw();
        assert_eq!(raw.as_bytes().len(), LEN);
        assert_eq!(raw.as_bytes()[..8], [b'p', b'S', b'A', b'K', 0, 1, 1, 44]);
        assert_eq!(Sack::parse(&raw), sack);
    }
}
