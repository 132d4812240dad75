//! All headers of a packet as one value: the BTH parsed, the extension headers as their bytes.

use core::fmt;
use core::ops::Range;

use iba::{Psn, Qpn};
use zerocopy::{FromBytes, IntoBytes};

use crate::aeth::{Aeth, RawAeth};
use crate::atomic_ack_eth::{AtomicAckEth, RawAtomicAckEth};
use crate::atomic_eth::{AtomicEth, RawAtomicEth};
use crate::bth::{self, Bth, RawBth};
use crate::deth::{Deth, RawDeth};
use crate::feth::{Feth, RawFeth};
use crate::ieth::{Ieth, RawIeth};
use crate::imm_dt::{ImmDt, RawImmDt};
use crate::opcode::{Ext, Opcode};
use crate::reth::{RawReth, Reth};
use crate::sack::{RawSack, Sack};
use crate::xrceth::{RawXrceth, Xrceth};

/// The BTH of a packet, and the bytes of the extension headers that its opcode has.
///
/// An extension header is there if the opcode has it
/// ([`OpcodeInfo::headers`](crate::opcode::OpcodeInfo::headers)), and zero until it is set.
#[derive(Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Headers {
    /// The BTH. After a change of its opcode, the extension headers must be set again.
    pub bth: Bth,
    /// The extension headers, followed by zeros.
    ext: [u8; EXT_LEN],
}

/// The most bytes that the extension headers of one packet take: those of an XRC atomic and of a
/// SACK.
const EXT_LEN: usize = 32;

/// The most bytes that the headers of one packet take.
pub const MAX_LEN: usize = bth::LEN + EXT_LEN;

/// Getters and setters of extension headers.
macro_rules! extensions {
    ($($ext:ident $name:literal: $get:ident, $set:ident, $raw:ty;)*) => {
        impl Headers {
            $(
                #[doc = concat!("The ", $name, ", if the opcode has one.")]
                #[inline]
                pub fn $get(&self) -> Option<$ext> {
                    let at = self.bth.opcode.place(Ext::$ext)?;
                    let (raw, _) = <$raw>::ref_from_prefix(self.ext.get(at..)?).ok()?;
                    Some($ext::parse(raw))
                }

                #[doc = concat!("Sets the ", $name, ", if the opcode has one.")]
                #[inline]
                pub fn $set(&mut self, header: $ext) {
                    if let Some(at) = self.bth.opcode.place(Ext::$ext) {
                        let raw = header.to_raw();
                        let bytes = raw.as_bytes();
                        self.ext[at..at + bytes.len()].copy_from_slice(bytes);
                    }
                }
            )*
        }
    };
}

extensions! {
    Xrceth "XRCETH": xrceth, set_xrceth, RawXrceth;
    Deth "DETH": deth, set_deth, RawDeth;
    Feth "FETH": feth, set_feth, RawFeth;
    Reth "RETH": reth, set_reth, RawReth;
    AtomicEth "AtomicETH": atomic_eth, set_atomic_eth, RawAtomicEth;
    Aeth "AETH": aeth, set_aeth, RawAeth;
    AtomicAckEth "AtomicAckETH": atomic_ack_eth, set_atomic_ack_eth, RawAtomicAckEth;
    ImmDt "immediate data": imm_dt, set_imm_dt, RawImmDt;
    Ieth "IETH": ieth, set_ieth, RawIeth;
    Sack "SACK": sack, set_sack, RawSack;
}

impl Headers {
    /// A BTH in the default partition ([`Bth::new`]), with extension headers of zeros.
    #[inline]
    pub const fn new(opcode: Opcode, dest_qp: Qpn, psn: Psn) -> Self {
        Self::from_bth(Bth::new(opcode, dest_qp, psn))
    }

    /// This BTH, with extension headers of zeros.
    #[inline]
    pub const fn from_bth(bth: Bth) -> Self {
        Self { bth, ext: [0; EXT_LEN] }
    }

    /// Reads the headers, and finds the payload of a whole packet without its ICRC: the bytes from
    /// the BTH to the end of the padding, as [`icrc::split`](crate::icrc::split) leaves them. The
    /// range excludes the padding.
    pub fn parse(packet: &[u8]) -> Result<(Self, Range<usize>), ParseError> {
        let mut headers = Self::default();
        let range = headers.read(packet)?;
        Ok((headers, range))
    }

    /// As [`Headers::parse`], in place. After an error the value is unspecified.
    #[inline]
    pub fn read(&mut self, packet: &[u8]) -> Result<Range<usize>, ParseError> {
        let start = self.read_prefix(packet)?;
        // IBA 9.2.5: payload and padding together are a multiple of four bytes.
        let (padded, pad) = (packet.len() - start, self.bth.pad);
        if !padded.is_multiple_of(4) || usize::from(pad) > padded {
            return Err(ParseError::Pad { pad, padded });
        }
        Ok(start..packet.len() - usize::from(pad))
    }

    /// Reads the headers at the start of `bytes` and returns where they end. The bytes after them
    /// are not examined.
    #[inline]
    pub fn parse_prefix(bytes: &[u8]) -> Result<(Self, usize), ParseError> {
        let mut headers = Self::default();
        let end = headers.read_prefix(bytes)?;
        Ok((headers, end))
    }

    /// As [`Headers::parse_prefix`], in place. After an error the value is unspecified.
    #[inline]
    pub fn read_prefix(&mut self, bytes: &[u8]) -> Result<usize, ParseError> {
        let Ok((raw, rest)) = RawBth::ref_from_prefix(bytes) else {
            let missing = bth::LEN - bytes.len();
            return Err(ParseError::Truncated { header: "BTH", missing });
        };
        if raw.tver() != bth::TVER {
            return Err(ParseError::Version(raw.tver()));
        }
        *self = Self::from_bth(Bth::parse(raw));
        let opcode = self.bth.opcode;
        if let Opcode::Unknown(code) = opcode {
            return Err(ParseError::UnknownOpcode(code));
        }
        let Some(ext) = rest.get(..opcode.headers_len() - bth::LEN) else {
            return Err(cut_off(opcode, rest.len()));
        };
        self.ext[..ext.len()].copy_from_slice(ext);
        Ok(bth::LEN + ext.len())
    }

    /// The headers of a packet with another opcode: this BTH, and those extension headers that the
    /// new opcode has, too.
    #[must_use]
    pub fn with_opcode(&self, opcode: Opcode) -> Self {
        let mut to = Self::from_bth(Bth { opcode, ..self.bth });
        for ext in opcode.info().headers {
            if let (Some(there), Some(here)) = (opcode.place(*ext), self.bth.opcode.place(*ext)) {
                let bytes = ext.bytes();
                to.ext[there..there + bytes].copy_from_slice(&self.ext[here..here + bytes]);
            }
        }
        to
    }

    /// The number of bytes that [`Headers::emit`] writes.
    #[inline]
    pub const fn len(&self) -> usize {
        self.bth.opcode.headers_len()
    }

    /// Never true: there is always a BTH.
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// Writes the headers at the start of `buf` and returns how many bytes they took.
    ///
    /// # Panics
    ///
    /// If `buf` is shorter than [`Headers::len`]; [`MAX_LEN`] always suffices.
    #[inline]
    pub fn emit(&self, buf: &mut [u8]) -> usize {
        let (bth, ext) = buf[..self.len()].split_at_mut(bth::LEN);
        bth.copy_from_slice(self.bth.to_raw().as_bytes());
        ext.copy_from_slice(&self.ext[..ext.len()]);
        self.len()
    }
}

/// The header in which the bytes after a BTH end.
#[cold]
fn cut_off(opcode: Opcode, mut have: usize) -> ParseError {
    for ext in opcode.info().headers {
        match have.checked_sub(ext.bytes()) {
            Some(left) => have = left,
            None => {
                let missing = ext.bytes() - have;
                return ParseError::Truncated { header: ext.name(), missing };
            }
        }
    }
    unreachable!("the headers of {opcode} are all there")
}

impl fmt::Debug for Headers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl Default for Headers {
    /// Room for the result of [`Headers::read`].
    #[inline]
    fn default() -> Self {
        Self::new(Opcode::Unknown(0xff), Qpn::new(0), Psn::new(0))
    }
}

/// Why bytes are not a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseError {
    /// The packet ends within a header.
    #[error("the packet ends {missing} bytes before the end of its {header}")]
    Truncated {
        /// The header.
        header: &'static str,
        /// How many bytes it lacks.
        missing: usize,
    },
    /// The transport header version is not 0 (IBA 9.6.1).
    #[error("transport header version {0}, expected 0")]
    Version(u8),
    /// No such opcode, or one of a service that is not implemented.
    #[error("unknown opcode {0:#04x}")]
    UnknownOpcode(u8),
    /// Payload and padding are not a multiple of four bytes, or shorter than the padding alone.
    #[error("pad count {pad} does not fit {padded} bytes of payload and padding")]
    Pad {
        /// The pad count.
        pad: u8,
        /// Bytes after the headers.
        padded: usize,
    },
}

#[cfg(test)]
mod tests {
    use iba::RKey;

    use super::*;

    fn write_only() -> Headers {
        let mut headers = Headers::new(Opcode::RcWriteOnly, Qpn::new(5), Psn::new(6));
        headers.set_reth(Reth { va: 0x1000, rkey: RKey(7), dma_len: 3 });
        headers
    }

    #[test]
    fn a_packet_that_ends_in_a_header_is_refused_with_its_name_and_how_much_is_missing() {
        let mut bytes = [0; MAX_LEN];
        let len = write_only().emit(&mut bytes);
        assert_eq!(len, 28);
        for cut in 0..len {
            let (header, end) = if cut < bth::LEN { ("BTH", bth::LEN) } else { ("RETH", len) };
            assert_eq!(
                Headers::parse(&bytes[..cut]),
                Err(ParseError::Truncated { header, missing: end - cut })
            );
        }
    }

    #[test]
    fn the_payload_ends_before_the_padding() {
        let mut headers = write_only();
        headers.bth.pad = bth::pad_for(3);
        let mut bytes = [0; 32];
        headers.emit(&mut bytes);
        assert_eq!(Headers::parse(&bytes), Ok((headers, 28..31)));
        assert_eq!(Headers::parse(&bytes[..28]), Err(ParseError::Pad { pad: 1, padded: 0 }));
        assert_eq!(Headers::parse(&bytes[..31]), Err(ParseError::Pad { pad: 1, padded: 3 }));
    }

    #[test]
    fn only_version_0_is_understood() {
        let mut bytes = [0; 28];
        write_only().emit(&mut bytes);
        bytes[1] |= 3;
        assert_eq!(Headers::parse(&bytes), Err(ParseError::Version(3)));
    }

    #[test]
    fn an_unknown_opcode_is_reported() {
        let bytes = [0x15; 12];
        let mut bytes = bytes;
        bytes[1] = 0;
        assert_eq!(Headers::parse(&bytes), Err(ParseError::UnknownOpcode(0x15)));
    }

    #[test]
    fn the_longest_headers_are_an_xrc_atomic() {
        let longest = Opcode::ALL.iter().map(|opcode| opcode.headers_len()).max();
        assert_eq!(longest, Some(MAX_LEN));
    }

    #[test]
    fn headers_stay_small() {
        assert!(size_of::<Headers>() <= 64, "{} bytes", size_of::<Headers>());
    }
}
