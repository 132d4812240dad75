//! A work request that ended.

use iba::{Qpn, WcFlags, WcOpcode, WcStatus};

use crate::tm::TmInfo;

/// Which queue a completion belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "a QP has two queues")]
pub enum Side {
    /// The send queue's CQ.
    Send,
    /// The receive queue's CQ.
    Recv,
}

/// A finished work request. The device adds the QP number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "ibv_wc")]
#[expect(clippy::exhaustive_structs, reason = "the device reads every field")]
pub struct Completion {
    /// Which CQ it goes to.
    pub side: Side,
    /// From the work request.
    pub wr_id: u64,
    /// The outcome. If it is not success, only `wr_id`, `side` and `vendor_err` are valid besides.
    pub status: WcStatus,
    /// What completed.
    pub opcode: WcOpcode,
    /// Bytes moved; for a datagram, including the 40 bytes of the GRH.
    pub byte_len: u32,
    /// Which of the following are valid.
    pub flags: WcFlags,
    /// Immediate data, a number whose most significant byte travels first, or the key that the peer
    /// invalidated.
    pub imm: u32,
    /// The sender of a datagram.
    pub src_qpn: Qpn,
    /// Of a datagram, what it came in: 0xa for UDP over IPv4, 0x9 over IPv6. RoCEv2 Annex A17.4.5.1
    /// requires the completion to report it; mlx5 does so in the service level, which RoCE does not
    /// have, and UCX reads it there.
    pub sl: u8,
    /// Of a message with a tag.
    pub tm: TmInfo,
    /// Whether the peer set the solicited bit, or the completion is an error: what a CQ armed for
    /// solicited completions waits for (IBA 11.4.2.2).
    pub solicited: bool,
    /// The reason, in more detail than the status: a [`Reason`] as a number.
    pub vendor_err: u32,
}

impl Completion {
    /// A success without further values; of a SEND unless set otherwise.
    pub const fn new(side: Side, wr_id: u64) -> Self {
        Self {
            side,
            wr_id,
            status: WcStatus::Success,
            opcode: WcOpcode::Send,
            byte_len: 0,
            flags: WcFlags::empty(),
            imm: 0,
            src_qpn: Qpn::new(0),
            sl: 0,
            tm: TmInfo { tag: 0, private: 0 },
            solicited: false,
            vendor_err: Reason::None as u32,
        }
    }
}

/// Why a work request failed, more precisely than its status. The number is the `vendor_err` of its
/// completion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
#[repr(u32)]
pub enum Reason {
    /// Nothing failed.
    None = 0,
    /// The QP was moved to the error state by the program.
    Flushed = 1,
    /// No acknowledgement within the timeout.
    AckTimeout = 2,
    /// The peer answered "PSN sequence error" too often.
    SequenceNak = 3,
    /// The peer answered "receiver not ready" too often.
    RnrNak = 4,
    /// The peer answered "invalid request".
    InvalidRequestNak = 5,
    /// The peer answered "remote access error".
    RemoteAccessNak = 6,
    /// The peer answered "remote operational error".
    RemoteOperationalNak = 7,
    /// A key, range or access of a local scatter/gather element.
    LocalProtection = 8,
    /// Local memory was unmapped or lost.
    LocalFault = 9,
    /// A message was longer than the receive it met.
    ReceiveTooShort = 10,
    /// An invalid response.
    BadResponse = 11,
    /// A peer's request broke the protocol; the completion is of the receive it consumed.
    PeerBrokeProtocol = 12,
    /// A peer's request was refused access; the completion is of the receive it consumed.
    PeerRefused = 13,
    /// A READ or an atomic on a QP whose `max_rd_atomic` is 0.
    NoReadDepth = 14,
    /// A memory window could not be bound as asked.
    BindRefused = 15,
    /// No receive in a tag list has the handle of the one to be removed.
    NoSuchTag = 16,
    /// A rendezvous is longer than the receive that its tag matched.
    RendezvousTooLong = 17,
}

impl Reason {
    /// Every reason, in the order of its number.
    pub const ALL: [Self; 18] = [
        Self::None,
        Self::Flushed,
        Self::AckTimeout,
        Self::SequenceNak,
        Self::RnrNak,
        Self::InvalidRequestNak,
        Self::RemoteAccessNak,
        Self::RemoteOperationalNak,
        Self::LocalProtection,
        Self::LocalFault,
        Self::ReceiveTooShort,
        Self::BadResponse,
        Self::PeerBrokeProtocol,
        Self::PeerRefused,
        Self::NoReadDepth,
        Self::BindRefused,
        Self::NoSuchTag,
        Self::RendezvousTooLong,
    ];

    /// The reason that a completion's `vendor_err` stands for.
    pub fn from_vendor_err(vendor_err: u32) -> Option<Self> {
        Self::ALL.get(vendor_err as usize).copied()
    }
}
