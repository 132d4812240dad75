//! What a completion reports.

use bitflags::bitflags;

/// The outcome of a work request, with the values of `enum ibv_wc_status`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[doc(alias = "ibv_wc_status")]
#[non_exhaustive]
#[repr(u8)]
pub enum WcStatus {
    /// Done.
    #[default]
    Success = 0,
    /// A received message was longer than its buffers.
    LocLenErr = 1,
    /// An internal consistency error of the local QP.
    LocQpOpErr = 2,
    /// An internal consistency error of a local EE context.
    LocEecOpErr = 3,
    /// A local key did not allow the access.
    LocProtErr = 4,
    /// The QP was in error: the request was not carried out.
    WrFlushErr = 5,
    /// Binding a memory window failed.
    MwBindErr = 6,
    /// The peer sent something that is not a valid response.
    BadRespErr = 7,
    /// A local buffer was refused while carrying out a peer's request.
    LocAccessErr = 8,
    /// The peer found the request malformed.
    RemInvReqErr = 9,
    /// The peer refused access to its memory.
    RemAccessErr = 10,
    /// The peer could not carry out a valid request.
    RemOpErr = 11,
    /// No answer within the timeout, and the retry count is used up.
    RetryExcErr = 12,
    /// The peer was not ready, and the RNR retry count is used up.
    RnrRetryExcErr = 13,
    /// Reliable datagram only.
    LocRddViolErr = 14,
    /// Reliable datagram only.
    RemInvRdReqErr = 15,
    /// The peer aborted the operation.
    RemAbortErr = 16,
    /// Reliable datagram only.
    InvEecnErr = 17,
    /// Reliable datagram only.
    InvEecStateErr = 18,
    /// The device failed.
    FatalErr = 19,
    /// The answer did not come in time.
    RespTimeoutErr = 20,
    /// Anything else.
    GeneralErr = 21,
    /// An operation on a tag list failed: a message had already matched the entry.
    TmErr = 22,
    /// A rendezvous matched a receive that has no room for it.
    TmRndvIncomplete = 23,
}

impl WcStatus {
    /// Every status, in the order of its number.
    pub const ALL: [Self; 24] = [
        Self::Success,
        Self::LocLenErr,
        Self::LocQpOpErr,
        Self::LocEecOpErr,
        Self::LocProtErr,
        Self::WrFlushErr,
        Self::MwBindErr,
        Self::BadRespErr,
        Self::LocAccessErr,
        Self::RemInvReqErr,
        Self::RemAccessErr,
        Self::RemOpErr,
        Self::RetryExcErr,
        Self::RnrRetryExcErr,
        Self::LocRddViolErr,
        Self::RemInvRdReqErr,
        Self::RemAbortErr,
        Self::InvEecnErr,
        Self::InvEecStateErr,
        Self::FatalErr,
        Self::RespTimeoutErr,
        Self::GeneralErr,
        Self::TmErr,
        Self::TmRndvIncomplete,
    ];

    /// The status that `value` encodes, if any.
    pub fn from_code(value: u32) -> Option<Self> {
        Self::ALL.get(value as usize).copied()
    }

    /// Its name in C, without `IBV_WC_`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Success => "SUCCESS",
            Self::LocLenErr => "LOC_LEN_ERR",
            Self::LocQpOpErr => "LOC_QP_OP_ERR",
            Self::LocEecOpErr => "LOC_EEC_OP_ERR",
            Self::LocProtErr => "LOC_PROT_ERR",
            Self::WrFlushErr => "WR_FLUSH_ERR",
            Self::MwBindErr => "MW_BIND_ERR",
            Self::BadRespErr => "BAD_RESP_ERR",
            Self::LocAccessErr => "LOC_ACCESS_ERR",
            Self::RemInvReqErr => "REM_INV_REQ_ERR",
            Self::RemAccessErr => "REM_ACCESS_ERR",
            Self::RemOpErr => "REM_OP_ERR",
            Self::RetryExcErr => "RETRY_EXC_ERR",
            Self::RnrRetryExcErr => "RNR_RETRY_EXC_ERR",
            Self::LocRddViolErr => "LOC_RDD_VIOL_ERR",
            Self::RemInvRdReqErr => "REM_INV_RD_REQ_ERR",
            Self::RemAbortErr => "REM_ABORT_ERR",
            Self::InvEecnErr => "INV_EECN_ERR",
            Self::InvEecStateErr => "INV_EEC_STATE_ERR",
            Self::FatalErr => "FATAL_ERR",
            Self::RespTimeoutErr => "RESP_TIMEOUT_ERR",
            Self::GeneralErr => "GENERAL_ERR",
            Self::TmErr => "TM_ERR",
            Self::TmRndvIncomplete => "TM_RNDV_INCOMPLETE",
        }
    }
}

/// What completed, with the values of `enum ibv_wc_opcode`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[doc(alias = "ibv_wc_opcode")]
#[non_exhaustive]
#[repr(u8)]
pub enum WcOpcode {
    /// A send.
    #[default]
    Send = 0,
    /// A write.
    RdmaWrite = 1,
    /// A read.
    RdmaRead = 2,
    /// A compare and swap.
    CompSwap = 3,
    /// A fetch and add.
    FetchAdd = 4,
    /// A memory window bind.
    BindMw = 5,
    /// A local invalidate.
    LocalInv = 6,
    /// A flush.
    Flush = 8,
    /// An atomic write.
    AtomicWrite = 9,
    /// A receive of a send.
    Recv = 128,
    /// A receive consumed by a write with immediate.
    RecvRdmaWithImm = 129,
    /// A receive added to a tag list.
    TmAdd = 130,
    /// A receive removed from a tag list.
    TmDel = 131,
    /// A count of unexpected messages.
    TmSync = 132,
    /// A receive of a message with a tag.
    TmRecv = 133,
    /// A receive of a message without a tag.
    TmNoTag = 134,
}

impl WcOpcode {
    /// Every operation, in the order of their values.
    pub const ALL: [Self; 16] = [
        Self::Send,
        Self::RdmaWrite,
        Self::RdmaRead,
        Self::CompSwap,
        Self::FetchAdd,
        Self::BindMw,
        Self::LocalInv,
        Self::Flush,
        Self::AtomicWrite,
        Self::Recv,
        Self::RecvRdmaWithImm,
        Self::TmAdd,
        Self::TmDel,
        Self::TmSync,
        Self::TmRecv,
        Self::TmNoTag,
    ];

    /// The operation that `value` encodes, if any.
    pub fn from_code(value: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|opcode| *opcode as u32 == value)
    }
}

bitflags! {
    /// What else a completion carries, with the values of `enum ibv_wc_flags`.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    #[doc(alias = "ibv_wc_flags")]
    pub struct WcFlags: u32 {
        /// The first 40 bytes of the receive buffer hold a global route header.
        const GRH = 1;
        /// Immediate data is valid.
        const WITH_IMM = 1 << 1;
        /// IP checksums were right.
        const IP_CSUM_OK = 1 << 2;
        /// A key was invalidated by the peer.
        const WITH_INV = 1 << 3;
        /// The tag list waits until the program reports how many unexpected messages it has seen.
        const TM_SYNC_REQ = 1 << 4;
        /// A tag matched.
        const TM_MATCH = 1 << 5;
        /// All bytes of a message whose tag matched have arrived.
        const TM_DATA_VALID = 1 << 6;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_code_has_its_meaning() {
        for status in WcStatus::ALL {
            assert_eq!(WcStatus::from_code(status as u32), Some(status));
        }
        for opcode in WcOpcode::ALL {
            assert_eq!(WcOpcode::from_code(opcode as u32), Some(opcode));
        }
        assert_eq!((WcStatus::from_code(24), WcOpcode::from_code(7)), (None, None));
    }
}
