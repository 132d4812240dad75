//! An outgoing packet, and one that arrived.

use iba::{Av, RKey};
use wire::Headers;

use crate::wr::Sge;

/// Where a packet goes.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::exhaustive_enums, reason = "a QP is connected or it is not")]
pub enum To<'a> {
    /// To the connected peer.
    Peer,
    /// To the port that an address vector names.
    Av(&'a Av),
}

/// Where the payload of an outgoing packet comes from. Offsets count from the start of the message.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::exhaustive_enums, reason = "every payload has one of these sources")]
pub enum Source<'a> {
    /// There is none.
    Empty,
    /// `length` bytes at `offset` of a gather list.
    Sges {
        /// The whole list of the message.
        sges: &'a [Sge],
        /// Where this packet's part begins.
        offset: u64,
        /// How long it is.
        length: u32,
    },
    /// The bytes themselves.
    Bytes(&'a [u8]),
    /// `length` bytes at `addr` of a region that a peer's READ named.
    Remote {
        /// The region, already checked with [`Env::check_remote`](super::Env::check_remote) for the
        /// whole READ.
        rkey: RKey,
        /// The address.
        addr: u64,
        /// How long the part is.
        length: u32,
    },
}

impl Source<'_> {
    /// Bytes of it.
    pub const fn len(&self) -> u32 {
        match *self {
            Self::Empty => 0,
            Self::Bytes(bytes) => bytes.len() as u32,
            Self::Sges { length, .. } | Self::Remote { length, .. } => length,
        }
    }

    /// Whether there are none.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// `length` of its bytes from `at` on. They must exist.
    #[must_use]
    pub fn part(self, at: u32, length: u32) -> Self {
        match self {
            Self::Empty => Self::Empty,
            Self::Bytes(bytes) => Self::Bytes(&bytes[at as usize..][..length as usize]),
            Self::Sges { sges, offset, .. } => {
                Self::Sges { sges, offset: offset + u64::from(at), length }
            }
            Self::Remote { rkey, addr, .. } => {
                Self::Remote { rkey, addr: addr.wrapping_add(u64::from(at)), length }
            }
        }
    }
}

/// Packets and messages that a requester carried out without sending them, since the last packet it
/// sent: the receiver counts them as received (`docs/CARRIERS.md`, the direct path). Always
/// zero on a wire.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "two counters")]
pub struct Skipped {
    /// Packet sequence numbers to step over.
    pub psns: u32,
    /// Messages to step over.
    pub messages: u32,
}

/// A packet that arrived: its headers, its payload, and what the carrier knows about it.
#[derive(Debug)]
#[expect(clippy::exhaustive_structs, reason = "the device builds it")]
pub struct Rx<'a, P> {
    /// The headers.
    pub headers: &'a Headers,
    /// The payload.
    pub payload: &'a P,
    /// Its length in bytes. On a reliable carrier it may be many path MTUs: one packet then stands
    /// for `ceil(length / path MTU)` of them.
    pub length: u32,
    /// How many packets of the wire it is: more than one only if
    /// [`Qp::joinable`](crate::Qp::joinable) allows it. On a reliable carrier always one.
    pub packets: u32,
    /// What the peer carried out without packets before this one.
    pub skipped: Skipped,
    /// The path back to the sender, for datagrams.
    pub grh: Option<&'a [u8; 40]>,
    /// Whether a switch on the way marked it: congestion experienced, ECN 3 (RFC 3168).
    pub marked: bool,
}
