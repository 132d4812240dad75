//! The counters of a QP, which the device keeps.

/// What the transport counts, under the names of mlx5's and rxe's hardware counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(missing_docs, reason = "each is the counter of that name")]
#[non_exhaustive]
pub enum Counter {
    DuplicateRequest,
    ImpliedNakSeqErr,
    LocalAckTimeoutErr,
    OutOfBuffer,
    OutOfSequence,
    PacketSeqErr,
    ReqCqeError,
    ReqCqeFlushError,
    ReqRemoteAccessErrors,
    ReqRemoteInvalidRequest,
    RespCqeError,
    RespCqeFlushError,
    RespLocalLengthError,
    RespRemoteAccessErrors,
    /// A request was refused as invalid.
    RespRemoteInvalidRequest,
    RnrNakRetryErr,
    RxAtomicRequests,
    RxReadRequests,
    RxWriteRequests,
    SendRnrNak,
    /// Accesses put off because the memory was absent.
    PageFaultsPending,
    /// Packets that arrived with a congestion mark.
    NpEcnMarkedRocePackets,
    /// Congestion notifications sent.
    NpCnpSent,
    /// Congestion notifications obeyed.
    RpCnpHandled,
    /// Congestion notifications that had no effect.
    RpCnpIgnored,
    QkeyViolation,
    DroppedPacket,
}
