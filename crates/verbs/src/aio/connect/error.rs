//! Why there is no connection.

use std::io;
use std::sync::Arc;

use crate::Refusal;
use crate::cm::RejReason;

/// Why there is no connection.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The name of the peer has no address.
    #[error("{0}: {1}")]
    Name(String, Arc<io::Error>),
    /// This side refuses: no route, no device, a QP that cannot be made, parameters.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The peer refused.
    #[error("rdma_connect: the peer refused: {reason}")]
    #[doc(alias = "RDMA_CM_EVENT_REJECTED")]
    Rejected {
        /// Why: [`RejReason::CONSUMER_DEFINED`] if the program did.
        reason: RejReason,
        /// The private data of the program at the other end, padded with zeros.
        private_data: Vec<u8>,
    },
    /// The peer did not answer.
    #[error("rdma_connect: the peer does not answer")]
    #[doc(alias = "RDMA_CM_EVENT_UNREACHABLE")]
    Unreachable,
    /// The peer ended it before it was there.
    #[error("rdma_connect: the peer ended the connection before it was established")]
    Ended,
    /// The address went away, or the device failed.
    #[error("rdma_connect: the device or its address is gone")]
    #[doc(alias = "RDMA_CM_EVENT_DEVICE_REMOVAL")]
    DeviceRemoval,
}
