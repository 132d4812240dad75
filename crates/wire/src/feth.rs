//! FLUSH extended transport header (IBA Annex A19): how far data must be flushed, and which data.

use zerocopy::byteorder::big_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::bits::with_bit;

/// Bytes of the header.
pub const LEN: usize = 4;

const GLOBAL: u32 = 1 << 0;
const PERSISTENT: u32 = 1 << 1;
const SELECTIVITY_SHIFT: u32 = 4;
const SELECTIVITY_MASK: u32 = 3 << SELECTIVITY_SHIFT;

/// Which data a FLUSH covers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[doc(alias = "ib_selectivity_level")]
#[expect(clippy::exhaustive_enums, reason = "two bits, all of them covered")]
pub enum Selectivity {
    /// The range in the RETH.
    #[default]
    Range,
    /// The whole memory region.
    Mr,
    /// Reserved: 2 or 3.
    Reserved(u8),
}

impl From<u8> for Selectivity {
    /// From the low two bits.
    fn from(code: u8) -> Self {
        match code & 3 {
            0 => Self::Range,
            1 => Self::Mr,
            reserved => Self::Reserved(reserved),
        }
    }
}

impl From<Selectivity> for u8 {
    fn from(selectivity: Selectivity) -> Self {
        match selectivity {
            Selectivity::Range => 0,
            Selectivity::Mr => 1,
            Selectivity::Reserved(code) => code & 3,
        }
    }
}

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
pub struct RawFeth {
    word: U32,
}

impl RawFeth {
    /// Sets whether the data must be globally visible.
    pub fn set_global(&mut self, global: bool) {
        self.word.set(with_bit(self.word.get(), GLOBAL, global));
    }

    /// Sets whether the data must be persistent.
    pub fn set_persistent(&mut self, persistent: bool) {
        self.word.set(with_bit(self.word.get(), PERSISTENT, persistent));
    }

    /// Sets the selectivity level.
    pub fn set_selectivity(&mut self, selectivity: Selectivity) {
        let code = u32::from(u8::from(selectivity)) << SELECTIVITY_SHIFT;
        self.word.set(self.word.get() & !SELECTIVITY_MASK | code);
    }

    /// Whether the data must be globally visible.
    pub fn global(&self) -> bool {
        self.word.get() & GLOBAL != 0
    }

    /// Whether the data must be persistent.
    pub fn persistent(&self) -> bool {
        self.word.get() & PERSISTENT != 0
    }

    /// The selectivity level.
    pub fn selectivity(&self) -> Selectivity {
        Selectivity::from((self.word.get() >> SELECTIVITY_SHIFT) as u8)
    }
}

/// The header's contents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "the fields of the FETH")]
pub struct Feth {
    /// Placement type: globally visible.
    pub global: bool,
    /// Placement type: persistent.
    pub persistent: bool,
    /// Which data.
    pub selectivity: Selectivity,
}

impl Feth {
    /// Reads a header.
    pub fn parse(raw: &RawFeth) -> Self {
        Self { global: raw.global(), persistent: raw.persistent(), selectivity: raw.selectivity() }
    }

    /// The header's bytes, reserved bits zero.
    pub fn to_raw(&self) -> RawFeth {
        let mut raw = RawFeth::default();
        raw.set_global(self.global);
        raw.set_persistent(self.persistent);
        raw.set_selectivity(self.selectivity);
        raw
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bits::setters_keep_their_neighbours;

    setters_keep_their_neighbours! {
        RawFeth, LEN;
        global / set_global: bool => core::convert::identity;
        persistent / set_persistent: bool => core::convert::identity;
        selectivity / set_selectivity: u8 => Selectivity::from;
    }

    #[test]
    fn the_bytes_are_those_of_the_standard() {
        let feth = Feth { global: false, persistent: true, selectivity: Selectivity::Mr };
        assert_eq!(feth.to_raw().as_bytes(), [0, 0, 0, 0x12]);
    }
}
