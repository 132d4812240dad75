//! Tag matching: how a shared receive queue handles a message that may carry a tag, and the
//! rendezvous after a match.
//!
//! The rules are those of `ibv_srq_ops(3)` and of rdma-core's `Documentation/tag_matching.md`. The
//! environment decides which receive a message gets ([`Env::take_srq`](crate::Env::take_srq)); this
//! module fills and completes it. A rendezvous reads the sender's memory and then tells the sender:
//! both requests are in the QP's send queue, which the program of a tag matching queue does not
//! have.

mod rendezvous;

use iba::{RKey, WcFlags, WcOpcode};

use crate::wr::RecvWr;

/// Bytes of the header of every tagged message (`struct ibv_tmh`).
pub const TMH_BYTES: usize = 16;
/// Bytes of a rendezvous' two headers (`struct ibv_tmh`, `struct ibv_rvh`).
pub const RNDV_BYTES: usize = 32;

/// What a completion reports about the tag.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[doc(alias = "ibv_wc_tm_info")]
#[expect(clippy::exhaustive_structs, reason = "the two fields of libibverbs")]
pub struct TmInfo {
    /// The tag of the message.
    pub tag: u64,
    /// The data that the sender's program added to it.
    pub private: u32,
}

/// A rendezvous' headers, and their contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "ibv_rvh")]
#[expect(clippy::exhaustive_structs, reason = "the environment builds it")]
pub struct Rendezvous {
    /// As received: they are sent back, or passed to the program.
    pub header: [u8; RNDV_BYTES],
    /// Where the bytes are, in the sender's memory.
    pub addr: u64,
    /// The key of that memory.
    pub rkey: RKey,
    /// How many bytes.
    pub length: u32,
}

/// How a message was matched with its receive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "the responder handles each")]
pub enum Met {
    /// The queue does not match tags.
    #[default]
    Plain,
    /// It has no tag.
    NoTag,
    /// Its tag matched nothing: the program must handle it.
    Unexpected,
    /// Its tag matched, and its bytes follow the header.
    Eager(TmInfo),
    /// Its tag matched, and the rendezvous says where its bytes are.
    Rendezvous(TmInfo, Rendezvous),
}

/// What a shared receive queue returned for a message.
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_structs, reason = "the environment builds it")]
pub struct Taken {
    /// The receive.
    pub wr: RecvWr,
    /// How it was chosen.
    pub met: Met,
}

impl From<RecvWr> for Taken {
    fn from(wr: RecvWr) -> Self {
        Self { wr, met: Met::Plain }
    }
}

/// The purpose of a request in the send queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Role {
    /// The program's.
    #[default]
    Posted,
    /// The READ of a rendezvous, which completes the receive that its tag matched.
    Read,
    /// The message that tells the sender that its memory was read. It never completes visibly.
    Fin,
}

impl Met {
    /// Bytes at the head of the message that the receive does not get.
    pub(crate) const fn header(&self) -> u32 {
        match self {
            Self::Eager(_) => TMH_BYTES as u32,
            _ => 0,
        }
    }

    /// How long a message may be if its receive has room for `room` bytes.
    pub(crate) fn room(&self, room: u64) -> u64 {
        match self {
            // Its bytes do not go to the receive.
            Self::Rendezvous(..) => u64::MAX,
            _ => room + u64::from(self.header()),
        }
    }

    /// Opcode, flags and tag of the completion of a whole message, whose match may already be
    /// reported (`is_reported`).
    pub(crate) fn completion(&self, is_reported: bool) -> (WcOpcode, WcFlags, TmInfo) {
        let none = (WcFlags::empty(), TmInfo::default());
        let (opcode, (flags, info)) = match *self {
            Self::Plain => (WcOpcode::Recv, none),
            Self::NoTag => (WcOpcode::TmNoTag, none),
            Self::Unexpected => (WcOpcode::TmRecv, none),
            Self::Eager(_) if is_reported => {
                (WcOpcode::TmRecv, (WcFlags::TM_DATA_VALID, TmInfo::default()))
            }
            Self::Eager(info) => {
                (WcOpcode::TmRecv, (WcFlags::TM_MATCH | WcFlags::TM_DATA_VALID, info))
            }
            Self::Rendezvous(info, _) => (WcOpcode::TmRecv, (WcFlags::TM_MATCH, info)),
        };
        (opcode, flags, info)
    }
}
