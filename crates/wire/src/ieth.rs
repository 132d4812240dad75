//! Invalidate extended transport header (IBA 9.3.8): the key that a SEND invalidates at the
//! receiver.

use iba::RKey;
use zerocopy::byteorder::big_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of the header.
pub const LEN: usize = 4;

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
pub struct RawIeth {
    rkey: U32,
}

impl RawIeth {
    /// Sets the key.
    pub fn set_rkey(&mut self, rkey: RKey) {
        self.rkey.set(rkey.0);
    }

    /// The key.
    pub fn rkey(&self) -> RKey {
        RKey(self.rkey.get())
    }
}

/// The header's contents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[doc(alias = "invalidate_rkey")]
#[expect(clippy::exhaustive_structs, reason = "the field of the IETH")]
pub struct Ieth {
    /// The key.
    pub rkey: RKey,
}

impl Ieth {
    /// Reads a header.
    pub fn parse(raw: &RawIeth) -> Self {
        Self { rkey: raw.rkey() }
    }

    /// The header's bytes.
    pub fn to_raw(&self) -> RawIeth {
        RawIeth { rkey: U32::new(self.rkey.0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bits::setters_keep_their_neighbours;

    setters_keep_their_neighbours! {
        RawIeth, LEN;
        rkey / set_rkey: u32 => RKey;
    }
}
