//! The responder's steps by name.

use core::fmt;

/// A step of the responder, under the name that the kernel's `rxe_resp.c` gives it.
///
/// [`Qp::last_refusal`](crate::Qp::last_refusal) is the error step at which the last bad packet
/// ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Step {
    /// Is this the next packet?
    CheckPsn,
    /// Does it continue the message, or begin one?
    CheckOpSeq,
    /// Is the peer allowed this operation at all?
    CheckOpValid,
    /// Is there a receive, or a place for another READ?
    CheckResource,
    /// Is the payload as long as it must be?
    CheckLength,
    /// May the peer use the memory that it names?
    CheckRkey,
    /// Carry it out.
    Execute,
    /// Complete the receive.
    Complete,
    /// Answer the peer.
    Acknowledge,
    /// Answer a request that was carried out before.
    DuplicateRequest,
    /// Done with the packet.
    Cleanup,
    /// A packet is missing before this one.
    ErrPsnOutOfSeq,
    /// A packet that continues a message that has no beginning.
    ErrMissingOpcodeFirst,
    /// A message begins before the last one has ended, on RC.
    ErrMissingOpcodeLastC,
    /// The same on UC.
    ErrMissingOpcodeLastD1e,
    /// The QP's access flags do not allow the operation, or it is not implemented.
    ErrUnsupportedOpcode,
    /// An atomic whose address is not a multiple of eight.
    ErrMisalignedAtomic,
    /// More READs and atomics than the QP has resources for.
    ErrTooManyRdmaAtmReq,
    /// No receive is posted.
    ErrRnr,
    /// The key does not allow the access.
    ErrRkeyViolation,
    /// The key cannot be invalidated.
    ErrInvalidateRkey,
    /// The payload has the wrong length for its place in the message.
    ErrLength,
    /// A message longer than its receive. The kernel has one step for this and the previous one.
    ErrReceiveTooShort,
    /// The scatter list of a receive names memory that it may not use.
    ErrMalformedWqe,
    /// The memory of a receive is gone. The kernel has no step for it, as its pages are pinned.
    ErrReceiveFault,
    /// A datagram with the wrong key. The kernel drops it before the responder.
    ErrQkey,
    /// The memory is absent at the moment. The kernel's rxe waits for its pages instead.
    ErrNotPresent,
}

impl Step {
    /// The kernel's name, without `RESPST_`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::CheckPsn => "CHK_PSN",
            Self::CheckOpSeq => "CHK_OP_SEQ",
            Self::CheckOpValid => "CHK_OP_VALID",
            Self::CheckResource => "CHK_RESOURCE",
            Self::CheckLength => "CHK_LENGTH",
            Self::CheckRkey => "CHK_RKEY",
            Self::Execute => "EXECUTE",
            Self::Complete => "COMPLETE",
            Self::Acknowledge => "ACKNOWLEDGE",
            Self::DuplicateRequest => "DUPLICATE_REQUEST",
            Self::Cleanup => "CLEANUP",
            Self::ErrPsnOutOfSeq => "ERR_PSN_OUT_OF_SEQ",
            Self::ErrMissingOpcodeFirst => "ERR_MISSING_OPCODE_FIRST",
            Self::ErrMissingOpcodeLastC => "ERR_MISSING_OPCODE_LAST_C",
            Self::ErrMissingOpcodeLastD1e => "ERR_MISSING_OPCODE_LAST_D1E",
            Self::ErrUnsupportedOpcode => "ERR_UNSUPPORTED_OPCODE",
            Self::ErrMisalignedAtomic => "ERR_MISALIGNED_ATOMIC",
            Self::ErrTooManyRdmaAtmReq => "ERR_TOO_MANY_RDMA_ATM_REQ",
            Self::ErrRnr => "ERR_RNR",
            Self::ErrRkeyViolation => "ERR_RKEY_VIOLATION",
            Self::ErrInvalidateRkey => "ERR_INVALIDATE_RKEY_VIOLATION",
            Self::ErrLength => "ERR_LENGTH",
            Self::ErrReceiveTooShort => "ERR_RECEIVE_TOO_SHORT",
            Self::ErrMalformedWqe => "ERR_MALFORMED_WQE",
            Self::ErrReceiveFault => "ERR_RECEIVE_FAULT",
            Self::ErrQkey => "ERR_QKEY",
            Self::ErrNotPresent => "ERR_NOT_PRESENT",
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
