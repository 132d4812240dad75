//! All headers of a packet as one value.

use core::ops::Range;

use iba::{Psn, Qpn};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::aeth::Aeth;
use crate::atomic_ack_eth::AtomicAckEth;
use crate::atomic_eth::AtomicEth;
use crate::bth::{self, Bth, RawBth};
use crate::deth::Deth;
use crate::feth::Feth;
use crate::ieth::Ieth;
use crate::imm_dt::ImmDt;
use crate::opcode::{Ext, Opcode};
use crate::reth::Reth;
use crate::xrceth::Xrceth;

/// The BTH and the extension headers of a packet.
///
/// A parsed value has exactly the extension headers of its opcode. Code that builds one sets those
/// that [`OpcodeInfo::headers`](crate::opcode::OpcodeInfo::headers) lists; [`Headers::is_complete`]
/// checks it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "one field per header of IBA")]
#[expect(missing_docs, reason = "each is the header of that name")]
pub struct Headers {
    pub bth: Bth,
    pub xrceth: Option<Xrceth>,
    pub deth: Option<Deth>,
    pub feth: Option<Feth>,
    pub reth: Option<Reth>,
    pub atomic_eth: Option<AtomicEth>,
    pub aeth: Option<Aeth>,
    pub atomic_ack_eth: Option<AtomicAckEth>,
    pub imm_dt: Option<ImmDt>,
    pub ieth: Option<Ieth>,
}

/// The most bytes that the headers of one packet take: an XRC atomic.
pub const MAX_LEN: usize = bth::LEN + 4 + 28;

impl Headers {
    /// A BTH in the default partition ([`Bth::new`]) and no extension header yet.
    #[inline]
    pub const fn new(opcode: Opcode, dest_qp: Qpn, psn: Psn) -> Self {
        Self::from_bth(Bth::new(opcode, dest_qp, psn))
    }

    /// This BTH and no extension header yet.
    #[inline]
    pub const fn from_bth(bth: Bth) -> Self {
        Self {
            bth,
            xrceth: None,
            deth: None,
            feth: None,
            reth: None,
            atomic_eth: None,
            aeth: None,
            atomic_ack_eth: None,
            imm_dt: None,
            ieth: None,
        }
    }

    /// Reads the headers and finds the payload of a whole packet without its ICRC: the bytes from
    /// the BTH to the end of the padding, as [`icrc::split`](crate::icrc::split) leaves them. The
    /// range is without the padding.
    pub fn parse(packet: &[u8]) -> Result<(Self, Range<usize>), ParseError> {
        let mut headers = Self::default();
        let range = headers.read(packet)?;
        Ok((headers, range))
    }

    /// As [`Headers::parse`], in place, since the value is large to move. After an error it is
    /// unspecified.
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

    /// Reads the headers at the start of `bytes` and returns where they end. What follows is not
    /// examined.
    #[inline]
    pub fn parse_prefix(bytes: &[u8]) -> Result<(Self, usize), ParseError> {
        let mut headers = Self::default();
        let end = headers.read_prefix(bytes)?;
        Ok((headers, end))
    }

    /// As [`Headers::parse_prefix`], in place. After an error the value is unspecified.
    #[inline]
    pub fn read_prefix(&mut self, bytes: &[u8]) -> Result<usize, ParseError> {
        let headers = self;
        let mut reader = Reader { rest: bytes };
        let raw: &RawBth = reader.take("BTH")?;
        if raw.tver() != bth::TVER {
            return Err(ParseError::Version(raw.tver()));
        }
        *headers = Self::from_bth(Bth::parse(raw));
        if let Opcode::Unknown(code) = headers.bth.opcode {
            return Err(ParseError::UnknownOpcode(code));
        }
        for ext in headers.bth.opcode.info().headers {
            let name = ext.name();
            match ext {
                Ext::Xrceth => headers.xrceth = Some(Xrceth::parse(reader.take(name)?)),
                Ext::Deth => headers.deth = Some(Deth::parse(reader.take(name)?)),
                Ext::Feth => headers.feth = Some(Feth::parse(reader.take(name)?)),
                Ext::Reth => headers.reth = Some(Reth::parse(reader.take(name)?)),
                Ext::AtomicEth => headers.atomic_eth = Some(AtomicEth::parse(reader.take(name)?)),
                Ext::Aeth => headers.aeth = Some(Aeth::parse(reader.take(name)?)),
                Ext::AtomicAckEth => {
                    headers.atomic_ack_eth = Some(AtomicAckEth::parse(reader.take(name)?));
                }
                Ext::ImmDt => headers.imm_dt = Some(ImmDt::parse(reader.take(name)?)),
                Ext::Ieth => headers.ieth = Some(Ieth::parse(reader.take(name)?)),
            }
        }
        Ok(bytes.len() - reader.rest.len())
    }

    /// Bytes that [`Headers::emit`] writes.
    #[inline]
    pub fn len(&self) -> usize {
        self.bth.opcode.headers_len()
    }

    /// Never: there is always a BTH.
    pub const fn is_empty(&self) -> bool {
        false
    }

    /// Whether exactly the extension headers of the opcode are there.
    pub fn is_complete(&self) -> bool {
        let present = [
            (Ext::Xrceth, self.xrceth.is_some()),
            (Ext::Deth, self.deth.is_some()),
            (Ext::Feth, self.feth.is_some()),
            (Ext::Reth, self.reth.is_some()),
            (Ext::AtomicEth, self.atomic_eth.is_some()),
            (Ext::Aeth, self.aeth.is_some()),
            (Ext::AtomicAckEth, self.atomic_ack_eth.is_some()),
            (Ext::ImmDt, self.imm_dt.is_some()),
            (Ext::Ieth, self.ieth.is_some()),
        ];
        present.into_iter().all(|(ext, is_some)| is_some == self.bth.opcode.has(ext))
    }

    /// Writes the headers at the start of `buf` and returns how many bytes they took.
    ///
    /// The opcode decides which headers are written. One that is missing, which a debug build
    /// asserts against, is written with default values, so that length and layout stay true.
    ///
    /// # Panics
    ///
    /// If `buf` is shorter than [`Headers::len`]; [`MAX_LEN`] always suffices.
    #[inline]
    pub fn emit(&self, buf: &mut [u8]) -> usize {
        debug_assert!(self.is_complete(), "headers do not fit the opcode: {self:?}");
        let mut writer = Writer { buf, len: 0 };
        writer.put(&self.bth.to_raw());
        for ext in self.bth.opcode.info().headers {
            match ext {
                Ext::Xrceth => writer.put(&self.xrceth.unwrap_or_default().to_raw()),
                Ext::Deth => writer.put(&self.deth.unwrap_or_default().to_raw()),
                Ext::Feth => writer.put(&self.feth.unwrap_or_default().to_raw()),
                Ext::Reth => writer.put(&self.reth.unwrap_or_default().to_raw()),
                Ext::AtomicEth => writer.put(&self.atomic_eth.unwrap_or_default().to_raw()),
                Ext::Aeth => writer.put(&self.aeth.unwrap_or_default().to_raw()),
                Ext::AtomicAckEth => writer.put(&self.atomic_ack_eth.unwrap_or_default().to_raw()),
                Ext::ImmDt => writer.put(&self.imm_dt.unwrap_or_default().to_raw()),
                Ext::Ieth => writer.put(&self.ieth.unwrap_or_default().to_raw()),
            }
        }
        writer.len
    }
}

impl Default for Headers {
    /// Room for what [`Headers::read`] finds.
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

/// Takes raw headers off the front of a slice.
struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    #[inline]
    fn take<T>(&mut self, header: &'static str) -> Result<&'a T, ParseError>
    where
        T: FromBytes + KnownLayout + Immutable + Unaligned,
    {
        let Ok((raw, rest)) = T::ref_from_prefix(self.rest) else {
            let missing = size_of::<T>() - self.rest.len();
            return Err(ParseError::Truncated { header, missing });
        };
        self.rest = rest;
        Ok(raw)
    }
}

/// Appends raw headers to a buffer.
struct Writer<'a> {
    buf: &'a mut [u8],
    len: usize,
}

impl Writer<'_> {
    #[inline]
    fn put<T: IntoBytes + Immutable>(&mut self, raw: &T) {
        let bytes = raw.as_bytes();
        self.buf[self.len..][..bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }
}

#[cfg(test)]
mod tests {
    use iba::RKey;

    use super::*;

    fn write_only() -> Headers {
        Headers {
            reth: Some(Reth { va: 0x1000, rkey: RKey(7), dma_len: 3 }),
            ..Headers::new(Opcode::RcWriteOnly, Qpn::new(5), Psn::new(6))
        }
    }

    #[test]
    fn a_packet_that_ends_in_a_header_says_which_and_how_short() {
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
        assert!(size_of::<Headers>() <= 192, "{} bytes", size_of::<Headers>());
    }
}
