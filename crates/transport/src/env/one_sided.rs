//! Operations that the device carries out on the peer's memory without packets.

use iba::{Access, RKey};

use super::refusal::{LocalError, RemoteError};
use crate::wr::Sge;

/// An atomic operation on eight bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "IBA defines two")]
pub enum AtomicOp {
    /// Store `swap` if the old value equals `compare`.
    CompareSwap {
        /// Expected value.
        compare: u64,
        /// New value.
        swap: u64,
    },
    /// Add, wrapping.
    FetchAdd {
        /// What to add.
        add: u64,
    },
}

/// A one-sided operation that the environment may carry out at once, without a packet.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::exhaustive_structs, reason = "the environment reads every field")]
pub struct OneSided<'a> {
    /// The operation.
    pub kind: OneSidedKind,
    /// Local bytes: source of a WRITE, destination of the others.
    pub local: Local<'a>,
    /// Length in bytes.
    pub length: u32,
    /// The peer's memory.
    pub remote_addr: u64,
    /// Its key.
    pub rkey: RKey,
}

impl OneSided<'_> {
    /// Whether two operations differ only in where they read and write.
    pub fn is_alike(&self, other: &Self) -> bool {
        self.kind == other.kind && self.rkey == other.rkey
    }
}

/// The local side of a [`OneSided`] operation.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::exhaustive_enums, reason = "a work request has a list or its bytes")]
pub enum Local<'a> {
    /// A scatter/gather list.
    Sges(&'a [Sge]),
    /// Inline bytes.
    Bytes(&'a [u8]),
}

/// What a [`OneSided`] operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "the one-sided operations of IBA")]
pub enum OneSidedKind {
    /// WRITE without immediate.
    Write,
    /// READ.
    Read,
    /// An atomic; the old value goes to the local list.
    Atomic(AtomicOp),
}

impl OneSidedKind {
    /// What the peer must allow.
    #[inline]
    pub const fn remote_access(self) -> Access {
        match self {
            Self::Write => Access::REMOTE_WRITE,
            Self::Read => Access::REMOTE_READ,
            Self::Atomic(_) => Access::REMOTE_ATOMIC,
        }
    }

    /// What the program's own memory must allow: the others store there.
    #[inline]
    pub const fn local_access(self) -> Access {
        match self {
            Self::Write => Access::empty(),
            Self::Read | Self::Atomic(_) => Access::LOCAL_WRITE,
        }
    }
}

/// The outcome of a [`OneSided`] operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "the requester handles each")]
pub enum Direct {
    /// Not possible here or now: send packets.
    Declined,
    /// Done; every byte is in place.
    Done,
    /// The peer's memory refused it.
    Remote(RemoteError),
    /// The local memory refused it.
    Local(LocalError),
}
