//! Why the environment does not do what a QP asks.

/// Why a packet was not sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "the requester handles each")]
pub enum TransmitError {
    /// The carrier has no room: nothing was sent, and the device calls again when there is.
    Blocked,
    /// The payload could not be taken from local memory.
    Memory(LocalError),
    /// The payload of a READ response could not be taken. If it is only absent at the moment, call
    /// again as if the carrier had no room.
    Remote(RemoteError),
}

/// Why local memory could not be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "the state machines handle each")]
pub enum LocalError {
    /// Key, range, protection domain or access of a scatter/gather element is wrong: LOC_PROT_ERR.
    Protection,
    /// The memory went away under a valid region: LOC_QP_OP_ERR, or LOC_ACCESS_ERR on the receiving
    /// side.
    Fault,
    /// The memory is absent at the moment, and will be back: try again. Nothing fails for it.
    NotPresent,
}

/// Why a peer may not use local memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "the responder handles each")]
pub enum RemoteError {
    /// Key, range, protection domain or access is wrong: NAK remote access error.
    Access,
    /// An atomic's address is not a multiple of eight: NAK invalid request.
    Misaligned,
    /// The memory went away under a valid region: NAK remote access error, as the kernel's rxe
    /// answers.
    Fault,
    /// The memory is absent at the moment, and will be back (a page fault of on-demand paging, a
    /// buffer that moves): an RNR NAK asks the peer to try again, as NICs with on-demand paging do.
    NotPresent,
}
