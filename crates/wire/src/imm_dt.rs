//! Immediate data (IBA 9.3.7): four bytes that go into the receiver's completion.

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
pub struct RawImmDt {
    data: U32,
}

impl RawImmDt {
    /// Sets the data.
    pub fn set_data(&mut self, data: u32) {
        self.data.set(data);
    }

    /// The data.
    pub fn data(&self) -> u32 {
        self.data.get()
    }
}

/// The header's contents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[doc(alias = "imm_data")]
#[expect(clippy::exhaustive_structs, reason = "the field of the ImmDt")]
pub struct ImmDt {
    /// The data as a number in host order: its most significant byte is first on the wire. The C
    /// field `imm_data` is in network order, hence `u32::from_be(imm_data)`.
    pub data: u32,
}

impl ImmDt {
    /// Reads a header.
    pub fn parse(raw: &RawImmDt) -> Self {
        Self { data: raw.data() }
    }

    /// The header's bytes.
    pub fn to_raw(&self) -> RawImmDt {
        RawImmDt { data: U32::new(self.data) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bits::setters_keep_their_neighbours;

    setters_keep_their_neighbours! {
        RawImmDt, LEN;
        data / set_data: u32 => core::convert::identity;
    }
}
