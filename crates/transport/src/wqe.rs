//! A send work request in its queue.

use iba::{Mtu, Psn, SendFlags, WcFlags, WcOpcode, WcStatus, WrOpcode};

use crate::env::{Completion, LocalError, Reason, Side};
use crate::tm::Role;
use crate::wr::{Data, SendWr};

/// A send work request, and its progress.
#[derive(Debug)]
pub(crate) struct Wqe {
    /// What was posted.
    pub(crate) wr: SendWr,
    /// Length of the message in bytes.
    pub(crate) length: u32,
    /// The sequence number of its first packet, once it has begun.
    pub(crate) first: Psn,
    /// How many sequence numbers it takes; for a READ, those of the answer.
    pub(crate) packets: u32,
    /// Whether its first packet was sent, so that it has its sequence numbers.
    pub(crate) begun: bool,
    /// Why it cannot continue. It fails once all before it are done, so that completions keep their
    /// order.
    pub(crate) failure: Option<Failure>,
    /// Its purpose.
    pub(crate) role: Role,
}

/// How a work request fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) status: WcStatus,
    pub(crate) reason: Reason,
}

impl Failure {
    pub(crate) const FLUSHED: Self = Self::new(WcStatus::WrFlushErr, Reason::Flushed);

    pub(crate) const fn new(status: WcStatus, reason: Reason) -> Self {
        Self { status, reason }
    }

    /// The failure that a sender reports for its own memory.
    pub(crate) const fn local(error: LocalError) -> Self {
        match error {
            LocalError::Protection => Self::new(WcStatus::LocProtErr, Reason::LocalProtection),
            LocalError::Fault | LocalError::NotPresent => {
                Self::new(WcStatus::LocQpOpErr, Reason::LocalFault)
            }
        }
    }
}

impl Role {
    /// Turns the completion of a request with this role into the one that the program sees, if any.
    pub(crate) fn shown(self, completion: Completion) -> Option<Completion> {
        match self {
            Self::Posted => Some(completion),
            Self::Read => Some(Completion {
                side: Side::Recv,
                opcode: WcOpcode::TmRecv,
                flags: WcFlags::TM_DATA_VALID,
                ..completion
            }),
            Self::Fin => None,
        }
    }
}

impl Wqe {
    /// Room for a request: a constant, as a value that was just stored piece by piece is slow to
    /// move.
    pub(crate) const EMPTY: Self = Self::new(SendWr::EMPTY, 0);

    pub(crate) const fn new(wr: SendWr, length: u32) -> Self {
        Self {
            wr,
            length,
            first: Psn::new(0),
            packets: 1,
            begun: false,
            failure: None,
            role: Role::Posted,
        }
    }

    /// The sequence number after its last one.
    pub(crate) const fn end(&self) -> Psn {
        self.first.add(self.packets)
    }

    /// Whether a sequence number is one of its own, once it has begun.
    pub(crate) fn holds(&self, psn: Psn) -> bool {
        psn.sub(self.first.value()).value() < self.packets
    }

    /// Whether the peer answers it, which the requester's depth limits.
    pub(crate) const fn is_answered(&self) -> bool {
        self.wr.opcode.is_answered()
    }

    /// Whether it takes a receive of the peer's.
    pub(crate) const fn takes_receive(&self) -> bool {
        matches!(
            self.wr.opcode,
            WrOpcode::Send
                | WrOpcode::SendWithImm
                | WrOpcode::SendWithInv
                | WrOpcode::RdmaWriteWithImm
        )
    }

    /// Whether the answer brings bytes.
    pub(crate) const fn is_read_like(&self) -> bool {
        self.wr.opcode.is_read_like()
    }

    /// How many sequence numbers it takes.
    pub(crate) fn count_packets(&self, mtu: Mtu) -> u32 {
        match self.wr.opcode {
            // The range it flushes does not travel.
            WrOpcode::Flush => 1,
            _ => mtu.packets(self.length),
        }
    }

    /// Whether it completes visibly when it succeeds.
    pub(crate) const fn is_signaled(&self) -> bool {
        self.wr.flags.contains(SendFlags::SIGNALED)
    }

    /// Its completion, if the program gets one.
    pub(crate) fn completion(&self, failure: Option<Failure>) -> Option<Completion> {
        let end = failure.unwrap_or(Failure::new(WcStatus::Success, Reason::None));
        self.role.shown(Completion {
            status: end.status,
            opcode: wc_opcode(self.wr.opcode),
            byte_len: self.length,
            solicited: failure.is_some(),
            vendor_err: end.reason as u32,
            ..Completion::new(Side::Send, self.wr.wr_id)
        })
    }
}

impl Data {
    /// Its length in bytes.
    pub(crate) fn length(&self) -> u64 {
        match self {
            Self::Sges(sges) => crate::wr::bytes_of(sges),
            Self::Inline(bytes) => bytes.len() as u64,
            Self::Bind(_) => 0,
            Self::Flush(flush) => flush.length as u64,
        }
    }
}

const fn wc_opcode(opcode: WrOpcode) -> WcOpcode {
    match opcode {
        WrOpcode::RdmaWrite | WrOpcode::RdmaWriteWithImm => WcOpcode::RdmaWrite,
        WrOpcode::RdmaRead => WcOpcode::RdmaRead,
        WrOpcode::AtomicCmpAndSwp => WcOpcode::CompSwap,
        WrOpcode::AtomicFetchAndAdd => WcOpcode::FetchAdd,
        WrOpcode::LocalInv => WcOpcode::LocalInv,
        WrOpcode::BindMw => WcOpcode::BindMw,
        WrOpcode::Flush => WcOpcode::Flush,
        WrOpcode::AtomicWrite => WcOpcode::AtomicWrite,
        _ => WcOpcode::Send,
    }
}
