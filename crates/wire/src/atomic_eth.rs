//! Atomic extended transport header (IBA 9.3.4): the operands of CMP_SWAP and FETCH_ADD.

use iba::RKey;
use zerocopy::byteorder::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of the header.
pub const LEN: usize = 28;

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
pub struct RawAtomicEth {
    va: U64,
    rkey: U32,
    swap_add: U64,
    compare: U64,
}

impl RawAtomicEth {
    /// Sets the virtual address.
    pub fn set_va(&mut self, va: u64) {
        self.va.set(va);
    }

    /// Sets the remote key.
    pub fn set_rkey(&mut self, rkey: RKey) {
        self.rkey.set(rkey.0);
    }

    /// Sets the swap or add operand.
    pub fn set_swap_add(&mut self, swap_add: u64) {
        self.swap_add.set(swap_add);
    }

    /// Sets the compare operand.
    pub fn set_compare(&mut self, compare: u64) {
        self.compare.set(compare);
    }

    /// The virtual address.
    pub fn va(&self) -> u64 {
        self.va.get()
    }

    /// The remote key.
    pub fn rkey(&self) -> RKey {
        RKey(self.rkey.get())
    }

    /// The swap or add operand.
    pub fn swap_add(&self) -> u64 {
        self.swap_add.get()
    }

    /// The compare operand.
    pub fn compare(&self) -> u64 {
        self.compare.get()
    }
}

/// The header's contents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "the fields of the AtomicETH")]
pub struct AtomicEth {
    /// Where the eight bytes are, in the region's own addresses; a multiple of eight.
    pub va: u64,
    /// The region at the responder.
    pub rkey: RKey,
    /// The value that CMP_SWAP stores, or that FETCH_ADD adds.
    pub swap_add: u64,
    /// The value that CMP_SWAP expects; FETCH_ADD ignores it.
    pub compare: u64,
}

impl AtomicEth {
    /// Reads a header.
    pub fn parse(raw: &RawAtomicEth) -> Self {
        Self { va: raw.va(), rkey: raw.rkey(), swap_add: raw.swap_add(), compare: raw.compare() }
    }

    /// The header's bytes.
    pub fn to_raw(&self) -> RawAtomicEth {
        RawAtomicEth {
            va: U64::new(self.va),
            rkey: U32::new(self.rkey.0),
            swap_add: U64::new(self.swap_add),
            compare: U64::new(self.compare),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bits::setters_keep_their_neighbours;

    setters_keep_their_neighbours! {
        RawAtomicEth, LEN;
        va / set_va: u64 => core::convert::identity;
        rkey / set_rkey: u32 => RKey;
        swap_add / set_swap_add: u64 => core::convert::identity;
        compare / set_compare: u64 => core::convert::identity;
    }

    #[test]
    fn the_compare_operand_comes_last() {
        let raw = AtomicEth { va: 1, rkey: RKey(2), swap_add: 3, compare: 4 }.to_raw();
        assert_eq!(raw.as_bytes()[7], 1);
        assert_eq!(raw.as_bytes()[11], 2);
        assert_eq!(raw.as_bytes()[19], 3);
        assert_eq!(raw.as_bytes()[27], 4);
    }
}
