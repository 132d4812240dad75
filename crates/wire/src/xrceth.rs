//! XRC extended transport header (IBA Annex A14): which shared receive queue takes the request.

pub use iba::Srqn;
use zerocopy::byteorder::big_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::bits::with_low_24;

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
pub struct RawXrceth {
    srqn: U32,
}

impl RawXrceth {
    /// Sets the shared receive queue.
    pub fn set_srqn(&mut self, srqn: Srqn) {
        self.srqn.set(with_low_24(self.srqn.get(), srqn.value()));
    }

    /// The shared receive queue.
    pub fn srqn(&self) -> Srqn {
        Srqn::new(self.srqn.get())
    }
}

/// The header's contents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "the field of the XRCETH")]
pub struct Xrceth {
    /// The shared receive queue.
    pub srqn: Srqn,
}

impl Xrceth {
    /// Reads a header.
    pub fn parse(raw: &RawXrceth) -> Self {
        Self { srqn: raw.srqn() }
    }

    /// The header's bytes, reserved bits zero.
    pub fn to_raw(&self) -> RawXrceth {
        RawXrceth { srqn: U32::new(self.srqn.value()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bits::setters_keep_their_neighbours;

    setters_keep_their_neighbours! {
        RawXrceth, LEN;
        srqn / set_srqn: u32 => Srqn::new;
    }
}
