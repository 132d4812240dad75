//! Why a call on a QP is refused.

use iba::{QpState, QpType, TransitionError, WrOpcode};

/// Why a QP does not change as requested. Then nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ModifyError {
    /// The transition table has no such transition, or not with these attributes (IBA table 91).
    #[error("{qp_type} QP: {error}")]
    Transition {
        /// The type of the QP.
        qp_type: QpType,
        /// What the table says.
        error: TransitionError,
    },
    /// The caller assumes another state than the QP is in (IBA 11.2.5, "current QP state").
    #[error("the QP is in {actual}, not in {claimed}")]
    CurrentState {
        /// The state that the caller named.
        claimed: QpState,
        /// The state of the QP.
        actual: QpState,
    },
    /// A value does not fit its field.
    #[error("{attribute} is {value}, at most {max} is possible")]
    Range {
        /// The attribute.
        attribute: &'static str,
        /// The value that was requested.
        value: u32,
        /// The largest value.
        max: u32,
    },
}

/// Why a work request is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PostError {
    /// Not accepted in this state (IBA C10-96, C10-97).
    #[error("a QP in {0} takes no such work requests")]
    State(QpState),
    /// The queue holds as many requests as it was created for.
    #[error("the queue is full: it was created for {0} work requests")]
    Full(u32),
    /// A QP of this type does not do that (`ibv_post_send(3)`, table of opcodes).
    #[error("a QP of type {qp_type} has no operation {opcode:?}")]
    Opcode {
        /// The type of the QP.
        qp_type: QpType,
        /// The operation that was requested.
        opcode: WrOpcode,
    },
    /// A QP of this type may do that, but the device or its library has no such operation.
    #[error("the provider has no {}", .0.name())]
    Absent(WrOpcode),
    /// More scatter/gather elements than the queue was created for.
    #[error("{count} scatter/gather elements, the queue was created for {max}")]
    Sges {
        /// How many were given.
        count: usize,
        /// How many are possible.
        max: u32,
    },
    /// More inline data than the queue was created for, or inline data where none is allowed.
    #[error("{length} bytes inline, at most {max} are possible here")]
    Inline {
        /// How many were given.
        length: usize,
        /// How many are possible.
        max: u32,
    },
    /// The elements add up to more than 2^31 bytes (IBA 9.7.1).
    #[error("{0} bytes, a message has at most 2^31")]
    Length(u64),
    /// An atomic moves eight bytes (IBA 9.4.5).
    #[error("the local buffer of an atomic has eight bytes, not {0}")]
    AtomicLength(u64),
    /// A frame begins with an Ethernet header.
    #[error("{0} bytes are not an Ethernet frame: its header has 14")]
    FrameLength(u64),
    /// A datagram needs an address.
    #[error("a datagram needs a destination")]
    NoDestination,
    /// An object of another device.
    #[error("what the request names is of another device than the queue")]
    OtherDevice,
    /// Only an operation that completes a receive can carry immediate data (IBA 9.2, table 38).
    #[error("{0:?} carries no immediate data")]
    Immediate(WrOpcode),
    /// Nothing can be posted to the device any more.
    #[error(
        "the device failed, or was opened before a fork and belongs to the parent; open it again"
    )]
    Dead,
    /// The library that the QP is of refused, with this error number.
    #[error("the provider refused with error number {0}, and gives no reason")]
    Provider(i32),
    /// The QP takes its receives from a shared receive queue.
    #[error("the QP takes its receives from a shared receive queue")]
    HasSrq,
}
