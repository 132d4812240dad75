//! ACK extended transport header (IBA 9.3.5): acknowledgement, refusal, or "not ready", and how
//! many messages are done.

use core::fmt;

use iba::{Msn, RnrTimer};
use zerocopy::byteorder::big_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::bits::with_low_24;

/// Bytes of the header.
pub const LEN: usize = 4;

/// Why a responder refuses a request (IBA 9.7.5.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_enums, reason = "five bits, all of them covered")]
pub enum NakCode {
    /// A packet is missing before this one.
    PsnSequence,
    /// The request is not one the responder can carry out.
    InvalidRequest,
    /// Key, range or rights do not allow the access.
    RemoteAccess,
    /// The responder failed.
    RemoteOperational,
    /// The datagram domain is not valid.
    InvalidRd,
    /// Reserved: 5 to 31.
    Reserved(u8),
}

impl From<u8> for NakCode {
    /// From the low five bits.
    fn from(code: u8) -> Self {
        match code & 0x1f {
            0 => Self::PsnSequence,
            1 => Self::InvalidRequest,
            2 => Self::RemoteAccess,
            3 => Self::RemoteOperational,
            4 => Self::InvalidRd,
            reserved => Self::Reserved(reserved),
        }
    }
}

impl From<NakCode> for u8 {
    fn from(code: NakCode) -> Self {
        match code {
            NakCode::PsnSequence => 0,
            NakCode::InvalidRequest => 1,
            NakCode::RemoteAccess => 2,
            NakCode::RemoteOperational => 3,
            NakCode::InvalidRd => 4,
            NakCode::Reserved(code) => code & 0x1f,
        }
    }
}

impl fmt::Display for NakCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::PsnSequence => "PSN sequence error",
            Self::InvalidRequest => "invalid request",
            Self::RemoteAccess => "remote access error",
            Self::RemoteOperational => "remote operational error",
            Self::InvalidRd => "invalid RD request",
            Self::Reserved(code) => return write!(f, "reserved code {code}"),
        })
    }
}

/// The answer in an AETH (IBA 9.7.5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_enums, reason = "eight bits, all of them covered")]
pub enum Syndrome {
    /// Done, up to and including the packet's PSN.
    Ack {
        /// Encoded count of receives the responder has posted (IBA 9.7.7.2): 0 to 30, or 31 for
        /// "not counted".
        credits: u8,
    },
    /// No receive is posted: try again later.
    RnrNak {
        /// The least time to wait.
        timer: RnrTimer,
    },
    /// Refused.
    Nak(NakCode),
    /// Reserved: the whole byte.
    Reserved(u8),
}

impl Syndrome {
    /// The credit count of a responder that does not count.
    pub const INVALID_CREDITS: u8 = 0x1f;

    /// An acknowledgement without credits.
    pub const ACK: Self = Self::Ack { credits: Self::INVALID_CREDITS };
}

impl Default for Syndrome {
    fn default() -> Self {
        Self::ACK
    }
}

impl From<u8> for Syndrome {
    fn from(byte: u8) -> Self {
        match byte >> 5 {
            0b000 => Self::Ack { credits: byte & 0x1f },
            0b001 => Self::RnrNak { timer: RnrTimer::from_syndrome(byte) },
            0b011 => Self::Nak(NakCode::from(byte)),
            _ => Self::Reserved(byte),
        }
    }
}

impl From<Syndrome> for u8 {
    fn from(syndrome: Syndrome) -> Self {
        match syndrome {
            Syndrome::Ack { credits } => credits & 0x1f,
            Syndrome::RnrNak { timer } => 0b001 << 5 | timer.code(),
            Syndrome::Nak(code) => 0b011 << 5 | Self::from(code),
            Syndrome::Reserved(byte) => byte,
        }
    }
}

impl fmt::Display for Syndrome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ack { credits: Self::INVALID_CREDITS } => f.write_str("ACK"),
            Self::Ack { credits } => write!(f, "ACK credits {credits}"),
            Self::RnrNak { timer } => write!(f, "RNR NAK {:?}", timer.duration()),
            Self::Nak(code) => write!(f, "NAK {code}"),
            Self::Reserved(byte) => write!(f, "syndrome {byte:#04x}"),
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
pub struct RawAeth {
    word: U32,
}

impl RawAeth {
    /// Sets the syndrome.
    pub fn set_syndrome(&mut self, syndrome: Syndrome) {
        let syndrome = u32::from(u8::from(syndrome)) << 24;
        self.word.set(with_low_24(syndrome, self.word.get()));
    }

    /// Sets the message sequence number.
    pub fn set_msn(&mut self, msn: Msn) {
        self.word.set(with_low_24(self.word.get(), msn.value()));
    }

    /// The syndrome.
    pub fn syndrome(&self) -> Syndrome {
        Syndrome::from((self.word.get() >> 24) as u8)
    }

    /// The message sequence number.
    pub fn msn(&self) -> Msn {
        Msn::new(self.word.get())
    }
}

/// The header's contents.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "the fields of the AETH")]
pub struct Aeth {
    /// The answer.
    pub syndrome: Syndrome,
    /// How many messages the responder has completed, modulo 2^24.
    pub msn: Msn,
}

impl Aeth {
    /// Reads a header.
    pub fn parse(raw: &RawAeth) -> Self {
        Self { syndrome: raw.syndrome(), msn: raw.msn() }
    }

    /// The header's bytes.
    #[inline]
    pub fn to_raw(&self) -> RawAeth {
        let syndrome = u32::from(u8::from(self.syndrome)) << 24;
        RawAeth { word: U32::new(syndrome | self.msn.value()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bits::setters_keep_their_neighbours;

    setters_keep_their_neighbours! {
        RawAeth, LEN;
        syndrome / set_syndrome: u8 => Syndrome::from;
        msn / set_msn: u32 => Msn::new;
    }

    #[test]
    fn every_syndrome_converts_both_ways() {
        for byte in 0..=u8::MAX {
            assert_eq!(u8::from(Syndrome::from(byte)), byte);
        }
    }

    #[test]
    fn syndromes_are_those_of_the_standard() {
        assert_eq!(u8::from(Syndrome::ACK), 0x1f);
        assert_eq!(u8::from(Syndrome::RnrNak { timer: RnrTimer::from_code(14).unwrap() }), 0x2e);
        assert_eq!(u8::from(Syndrome::Nak(NakCode::RemoteAccess)), 0x62);
        // A syndrome with its top bit set is reserved, whatever the rest is.
        assert_eq!(Syndrome::from(0x80), Syndrome::Reserved(0x80));
    }
}
