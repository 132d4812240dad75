//! What a QP has the device count.

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
    /// Accesses put off because the memory was not there.
    PageFaultsPending,
    /// Packets that came with a mark of congestion.
    NpEcnMarkedRocePackets,
    /// Congestion notifications sent.
    NpCnpSent,
    /// Congestion notifications obeyed.
    RpCnpHandled,
    /// Congestion notifications that nothing came of.
    RpCnpIgnored,
    QkeyViolation,
    DroppedPacket,
}
