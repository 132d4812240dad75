//! RDMA extended transport header (IBA 9.3.3): the memory of a WRITE, a READ, a FLUSH or an ATOMIC
//! WRITE.

use iba::RKey;
use zerocopy::byteorder::big_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// Bytes of the header.
pub const LEN: usize = 16;

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
pub struct RawReth {
    va: U64,
    rkey: U32,
    dma_len: U32,
}

impl RawReth {
    /// Sets the virtual address.
    pub fn set_va(&mut self, va: u64) {
        self.va.set(va);
    }

    /// Sets the remote key.
    pub fn set_rkey(&mut self, rkey: RKey) {
        self.rkey.set(rkey.0);
    }

    /// Sets the length.
    pub fn set_dma_len(&mut self, dma_len: u32) {
        self.dma_len.set(dma_len);
    }

    /// The virtual address.
    pub fn va(&self) -> u64 {
        self.va.get()
    }

    /// The remote key.
    pub fn rkey(&self) -> RKey {
        RKey(self.rkey.get())
    }

    /// The length.
    pub fn dma_len(&self) -> u32 {
        self.dma_len.get()
    }
}

/// The header's contents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "the fields of the RETH")]
pub struct Reth {
    /// Where the message's bytes begin, in the region's own addresses.
    pub va: u64,
    /// The region at the responder.
    pub rkey: RKey,
    /// Bytes of the whole message, not of this packet.
    pub dma_len: u32,
}

impl Reth {
    /// Reads a header.
    pub fn parse(raw: &RawReth) -> Self {
        Self { va: raw.va(), rkey: raw.rkey(), dma_len: raw.dma_len() }
    }

    /// The header's bytes.
    pub fn to_raw(&self) -> RawReth {
        RawReth {
            va: U64::new(self.va),
            rkey: U32::new(self.rkey.0),
            dma_len: U32::new(self.dma_len),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bits::setters_keep_their_neighbours;

    setters_keep_their_neighbours! {
        RawReth, LEN;
        va / set_va: u64 => core::convert::identity;
        rkey / set_rkey: u32 => RKey;
        dma_len / set_dma_len: u32 => core::convert::identity;
    }

    #[test]
    fn the_bytes_are_those_of_the_standard() {
        let reth =
            Reth { va: 0x0102_0304_0506_0708, rkey: RKey(0x1112_1314), dma_len: 0x2122_2324 };
        let bytes = [1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x12, 0x13, 0x14, 0x21, 0x22, 0x23, 0x24];
        assert_eq!(reth.to_raw().as_bytes(), bytes);
    }
}
