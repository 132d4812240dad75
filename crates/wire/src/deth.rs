//! Datagram extended transport header (IBA 9.3.2): the sender of a datagram, and the key that it
//! presents.

use iba::{QKey, Qpn};
use zerocopy::byteorder::big_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::bits::with_low_24;

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
pub struct RawDeth {
    qkey: U32,
    src_qp: U32,
}

impl RawDeth {
    /// Sets the Q_Key.
    pub fn set_qkey(&mut self, qkey: QKey) {
        self.qkey.set(qkey.0);
    }

    /// Sets the source QP.
    pub fn set_src_qp(&mut self, src_qp: Qpn) {
        self.src_qp.set(with_low_24(self.src_qp.get(), src_qp.value()));
    }

    /// The Q_Key.
    pub fn qkey(&self) -> QKey {
        QKey(self.qkey.get())
    }

    /// The source QP.
    pub fn src_qp(&self) -> Qpn {
        Qpn::new(self.src_qp.get())
    }
}

/// The header's contents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "the fields of the DETH")]
pub struct Deth {
    /// The key, which must be that of the receiving QP.
    pub qkey: QKey,
    /// The sender.
    pub src_qp: Qpn,
}

impl Deth {
    /// Reads a header.
    pub fn parse(raw: &RawDeth) -> Self {
        Self { qkey: raw.qkey(), src_qp: raw.src_qp() }
    }

    /// The header's bytes, reserved bits zero.
    pub fn to_raw(&self) -> RawDeth {
        RawDeth { qkey: U32::new(self.qkey.0), src_qp: U32::new(self.src_qp.value()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bits::setters_keep_their_neighbours;

    setters_keep_their_neighbours! {
        RawDeth, LEN;
        qkey / set_qkey: u32 => QKey;
        src_qp / set_src_qp: u32 => Qpn::new;
    }
}
