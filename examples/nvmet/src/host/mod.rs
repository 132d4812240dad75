//! A small host: queues of commands ([`Queue`]), and a controller over them ([`Host`]).

mod controller;
mod queue;

pub use controller::{Host, NamespaceInfo, Who, discover};
pub use queue::{Answer, Data, Queue, SLOT};

use verbs::cm::RejReason;

use crate::wire::Status;

/// Why the host did not get what it asked for.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HostError {
    /// The device refused.
    #[error(transparent)]
    Device(#[from] verbs::Refusal),
    /// A work request was refused.
    #[error(transparent)]
    Post(#[from] verbs::PostError),
    /// There is no memory.
    #[error(transparent)]
    Memory(#[from] umem::HostBufError),
    /// The memory of this process cannot be accessed.
    #[error("{0}")]
    Fault(String),
    /// The target refused the connection.
    #[error("the target refused the connection: reason {reason:?}, status {sts}")]
    Rejected {
        /// The reason of the connection manager.
        reason: RejReason,
        /// The target's reason ([`Reject`](crate::wire::cm::Reject)).
        sts: u16,
    },
    /// A command failed.
    #[error("{status}, result {result:#x}")]
    Status {
        /// Its status.
        status: Status,
        /// The result, which the command defines.
        result: u64,
    },
    /// The connection ended.
    #[error("the connection is lost: {0}")]
    Lost(String),
    /// The target violates the protocol.
    #[error("the target broke the rules: {0}")]
    Protocol(String),
}

impl HostError {
    /// The status, if a command failed.
    pub fn status(&self) -> Option<Status> {
        match self {
            Self::Status { status, .. } => Some(*status),
            _ => None,
        }
    }
}
