//! What the communication manager refuses.

use wire::cm::{CommId, MadError};

use crate::State;

/// Why a call is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CmError {
    /// No such connection.
    #[error("there is no connection {0:#010x}")]
    NoSuchConnection(CommId),
    /// The connection is not in a state for the call.
    #[error("{call}: the connection is in the state {state:?}")]
    State {
        /// The call.
        call: &'static str,
        /// The state.
        state: State,
    },
    /// The message has no room for it.
    #[error("{what} has {length} bytes, and there is room for {room}")]
    TooLong {
        /// What.
        what: &'static str,
        /// How long it is.
        length: usize,
        /// How long it may be.
        room: usize,
    },
    /// A listener has the service already.
    #[error("service {0:#018x} has a listener")]
    ServiceInUse(u64),
    /// All communication ids are in use.
    #[error("no communication id is free")]
    NoIds,
    /// QPs of this type are not connected by requests.
    #[error("QPs of type {0} are not connected by REQ")]
    QpType(iba::QpType),
}

/// Why a message was ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Ignored {
    /// It is not one.
    #[error(transparent)]
    Malformed(#[from] MadError),
    /// It names a connection that does not exist.
    #[error("{0} for a connection that does not exist")]
    NoConnection(&'static str),
    /// It came from somewhere other than the peer.
    #[error("{0} from somewhere other than the connection's peer")]
    WrongSource(&'static str),
    /// It does not fit the state of the connection, like a duplicate of an earlier message.
    #[error("{0} in the state {1:?}")]
    State(&'static str, State),
    /// There is no room for another request; the peer will try again.
    #[error("{0} beyond the backlog")]
    Backlog(&'static str),
    /// Path migration is not supported.
    #[error("{0}: no path migrates")]
    NotSupported(&'static str),
    /// It names a QP that is not the connection's.
    #[error("DREQ for another QP")]
    WrongQp,
}
