//! Base transport header (IBA 9.2): every packet begins with one.
//!
//! ```text
//!  0       8        16              32
//!  +-------+-+-+--+----+--------------+
//!  |opcode |S|M|P |TVer|  P_Key       |   S solicited, M migrated, P pad count
//!  +-------+-+-+--+----+--------------+
//!  |F|B|rsv| destination QP           |   F FECN, B BECN
//!  +-------+--------------------------+
//!  |A| rsv | PSN                      |   A acknowledge request
//!  +-------+--------------------------+
//! ```

use iba::{PKey, Psn, Qpn};
use zerocopy::byteorder::big_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::bits::{with_bit, with_low_24};
use crate::opcode::Opcode;

/// Bytes of the header.
pub const LEN: usize = 12;

/// The transport header version that IBA defines.
pub const TVER: u8 = 0;

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
pub struct RawBth {
    opcode: u8,
    flags: u8,
    pkey: U16,
    qp: U32,
    psn: U32,
}

const SE: u32 = 1 << 7;
const MIGREQ: u32 = 1 << 6;
const PAD_SHIFT: u32 = 4;
const FECN: u32 = 1 << 31;
const BECN: u32 = 1 << 30;
const ACKREQ: u32 = 1 << 31;

impl RawBth {
    /// Sets the opcode.
    pub fn set_opcode(&mut self, opcode: Opcode) {
        self.opcode = opcode.into();
    }

    /// Sets the solicited event bit.
    pub fn set_se(&mut self, se: bool) {
        self.flags = with_bit(self.flags.into(), SE, se) as u8;
    }

    /// Sets the migration bit.
    pub fn set_migreq(&mut self, migreq: bool) {
        self.flags = with_bit(self.flags.into(), MIGREQ, migreq) as u8;
    }

    /// Sets the pad count, from its low two bits.
    pub fn set_pad(&mut self, pad: u8) {
        self.flags = self.flags & !(3 << PAD_SHIFT) | (pad & 3) << PAD_SHIFT;
    }

    /// Sets the transport header version, from its low four bits.
    pub fn set_tver(&mut self, tver: u8) {
        self.flags = self.flags & !0xf | tver & 0xf;
    }

    /// Sets the partition key.
    pub fn set_pkey(&mut self, pkey: PKey) {
        self.pkey.set(pkey.0);
    }

    /// Sets the forward congestion bit.
    pub fn set_fecn(&mut self, fecn: bool) {
        self.qp.set(with_bit(self.qp.get(), FECN, fecn));
    }

    /// Sets the backward congestion bit.
    pub fn set_becn(&mut self, becn: bool) {
        self.qp.set(with_bit(self.qp.get(), BECN, becn));
    }

    /// Sets the destination QP.
    pub fn set_dest_qp(&mut self, dest_qp: Qpn) {
        self.qp.set(with_low_24(self.qp.get(), dest_qp.value()));
    }

    /// Sets the acknowledge request bit.
    pub fn set_ackreq(&mut self, ackreq: bool) {
        self.psn.set(with_bit(self.psn.get(), ACKREQ, ackreq));
    }

    /// Sets the packet sequence number.
    pub fn set_psn(&mut self, psn: Psn) {
        self.psn.set(with_low_24(self.psn.get(), psn.value()));
    }

    /// The opcode.
    #[inline]
    pub fn opcode(&self) -> Opcode {
        self.opcode.into()
    }

    /// The solicited event bit.
    pub fn se(&self) -> bool {
        u32::from(self.flags) & SE != 0
    }

    /// The migration bit.
    pub fn migreq(&self) -> bool {
        u32::from(self.flags) & MIGREQ != 0
    }

    /// The pad count, 0 to 3.
    pub fn pad(&self) -> u8 {
        self.flags >> PAD_SHIFT & 3
    }

    /// The transport header version, 0 to 15.
    pub fn tver(&self) -> u8 {
        self.flags & 0xf
    }

    /// The partition key.
    pub fn pkey(&self) -> PKey {
        PKey(self.pkey.get())
    }

    /// The forward congestion bit.
    pub fn fecn(&self) -> bool {
        self.qp.get() & FECN != 0
    }

    /// The backward congestion bit.
    pub fn becn(&self) -> bool {
        self.qp.get() & BECN != 0
    }

    /// The destination QP.
    pub fn dest_qp(&self) -> Qpn {
        Qpn::new(self.qp.get())
    }

    /// The acknowledge request bit.
    pub fn ackreq(&self) -> bool {
        self.psn.get() & ACKREQ != 0
    }

    /// The packet sequence number.
    pub fn psn(&self) -> Psn {
        Psn::new(self.psn.get())
    }
}

/// The header's contents. The transport header version is not kept, as only version 0 parses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "the fields of the BTH")]
pub struct Bth {
    /// What the packet is.
    pub opcode: Opcode,
    /// Solicited event: the sender wants the completion at the receiver to raise an event.
    pub se: bool,
    /// Migration state; set unless automatic path migration is in progress.
    pub migreq: bool,
    /// How many bytes follow the payload to make it a multiple of four: 0 to 3. [`pad_for`]
    /// computes it.
    pub pad: u8,
    /// Partition key.
    pub pkey: PKey,
    /// Forward congestion notification.
    pub fecn: bool,
    /// Backward congestion notification.
    pub becn: bool,
    /// Destination QP.
    pub dest_qp: Qpn,
    /// The requester asks for an acknowledgement.
    pub ackreq: bool,
    /// Packet sequence number.
    pub psn: Psn,
}

/// The pad count of a payload of `len` bytes.
pub const fn pad_for(len: usize) -> u8 {
    (len.wrapping_neg() & 3) as u8
}

impl Bth {
    /// A header in the default partition, migrated, with nothing else set.
    #[inline]
    pub const fn new(opcode: Opcode, dest_qp: Qpn, psn: Psn) -> Self {
        Self {
            opcode,
            se: false,
            migreq: true,
            pad: 0,
            pkey: PKey::DEFAULT,
            fecn: false,
            becn: false,
            dest_qp,
            ackreq: false,
            psn,
        }
    }

    /// Reads a header. The caller checks the version.
    #[inline]
    pub fn parse(raw: &RawBth) -> Self {
        Self {
            opcode: raw.opcode(),
            se: raw.se(),
            migreq: raw.migreq(),
            pad: raw.pad(),
            pkey: raw.pkey(),
            fecn: raw.fecn(),
            becn: raw.becn(),
            dest_qp: raw.dest_qp(),
            ackreq: raw.ackreq(),
            psn: raw.psn(),
        }
    }

    /// The header's bytes, reserved bits zero.
    #[inline(always)]
    pub fn to_raw(&self) -> RawBth {
        let flags = with_bit(with_bit(0, SE, self.se), MIGREQ, self.migreq) as u8;
        let congestion = with_bit(with_bit(0, FECN, self.fecn), BECN, self.becn);
        RawBth {
            opcode: self.opcode.into(),
            flags: flags | (self.pad & 3) << PAD_SHIFT | TVER,
            pkey: U16::new(self.pkey.0),
            qp: U32::new(congestion | self.dest_qp.value()),
            psn: U32::new(with_bit(self.psn.value(), ACKREQ, self.ackreq)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bits::setters_keep_their_neighbours;

    setters_keep_their_neighbours! {
        RawBth, LEN;
        opcode / set_opcode: u8 => Opcode::from;
        se / set_se: bool => core::convert::identity;
        migreq / set_migreq: bool => core::convert::identity;
        pad / set_pad: u8 => |pad| pad & 3;
        tver / set_tver: u8 => |tver| tver & 0xf;
        pkey / set_pkey: u16 => PKey;
        fecn / set_fecn: bool => core::convert::identity;
        becn / set_becn: bool => core::convert::identity;
        dest_qp / set_dest_qp: u32 => Qpn::new;
        ackreq / set_ackreq: bool => core::convert::identity;
        psn / set_psn: u32 => Psn::new;
    }

    #[test]
    fn the_bytes_are_those_of_the_standard() {
        let bytes = [0x04, 0xb0, 0xff, 0xff, 0x40, 0x12, 0x34, 0x56, 0x80, 0xab, 0xcd, 0xef];
        let raw = RawBth::read_from_bytes(&bytes).unwrap();
        let bth = Bth::parse(&raw);
        assert_eq!(
            bth,
            Bth {
                se: true,
                migreq: false,
                pad: 3,
                becn: true,
                ackreq: true,
                ..Bth::new(Opcode::RcSendOnly, Qpn::new(0x12_3456), Psn::new(0xab_cdef))
            }
        );
        assert_eq!(bth.to_raw(), raw);
    }

    #[test]
    fn padding_reaches_a_multiple_of_four() {
        assert_eq!([0, 1, 2, 3, 4, 4095].map(pad_for), [0, 3, 2, 1, 0, 1]);
    }
}
