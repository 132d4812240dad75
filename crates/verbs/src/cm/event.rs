//! The parameters of a connection, and its events.

use device::rdma_cm::RejReason;

use super::Id;
use crate::Refusal;

/// As many READs and atomics as the device can, and as the peer asks for.
#[doc(alias("RDMA_MAX_RESP_RES", "RDMA_MAX_INIT_DEPTH"))]
pub const MOST: u8 = u8::MAX;

/// The parameters that a side of a connection sends.
#[derive(Clone, Debug, PartialEq, Eq)]
#[doc(alias = "rdma_conn_param")]
#[expect(clippy::exhaustive_structs, reason = "programs build it")]
pub struct ConnParam {
    /// Data for the program at the other end, at most as long as
    /// [`private_data`](super::private_data) says. In an event it is the whole field, padded with
    /// zeros.
    pub private_data: Vec<u8>,
    /// READs and atomics that this side takes at once; in an event, how many it should take.
    pub responder_resources: u8,
    /// READs and atomics that this side has outstanding at once; in an event, how many the peer
    /// takes.
    pub initiator_depth: u8,
    /// Transport retries, at most 7. Used by [`Id::connect`] only.
    pub retry_count: u8,
    /// Retries while the peer has no receive posted, at most 7, which means without end.
    pub rnr_retry_count: u8,
}

impl Default for ConnParam {
    fn default() -> Self {
        Self {
            private_data: Vec::new(),
            responder_resources: MOST,
            initiator_depth: MOST,
            retry_count: 7,
            rnr_retry_count: 7,
        }
    }
}

/// An event of an identifier.
#[derive(Clone, Debug)]
#[doc(alias = "rdma_cm_event")]
#[non_exhaustive]
pub struct Event {
    /// The identifier. Of [`EventKind::ConnectRequest`], the one made for the request: the request
    /// is refused when its last clone is dropped.
    pub id: Id,
    /// Of [`EventKind::ConnectRequest`], the listener, if it is still there.
    pub listener: Option<Id>,
    /// What happened.
    pub kind: EventKind,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[doc(alias = "rdma_cm_event_type")]
#[non_exhaustive]
pub enum EventKind {
    /// A peer requests a connection from a listener: accept or reject it.
    #[doc(alias = "RDMA_CM_EVENT_CONNECT_REQUEST")]
    ConnectRequest {
        /// The peer's parameters.
        param: ConnParam,
    },
    /// The connection is established, and its QP is in RTS.
    #[doc(alias = "RDMA_CM_EVENT_ESTABLISHED")]
    Established {
        /// On the active side, the peer's parameters.
        param: ConnParam,
    },
    /// The peer accepted, but this side's QP could not be moved to RTS.
    #[doc(alias = "RDMA_CM_EVENT_CONNECT_ERROR")]
    ConnectError {
        /// Why not.
        why: Refusal,
    },
    /// The peer did not answer in time.
    #[doc(alias = "RDMA_CM_EVENT_UNREACHABLE")]
    Unreachable,
    /// The peer refused.
    #[doc(alias = "RDMA_CM_EVENT_REJECTED")]
    Rejected {
        /// Why: [`RejReason::CONSUMER_DEFINED`] if the program did.
        reason: RejReason,
        /// The private data of the program at the other end.
        private_data: Vec<u8>,
    },
    /// The connection ended: the peer ended it, which [`Id::disconnect`] confirms, or it confirmed
    /// that this side ended it.
    #[doc(alias = "RDMA_CM_EVENT_DISCONNECTED")]
    Disconnected {
        /// Whether the peer failed to confirm it in time.
        timed_out: bool,
    },
    /// No packet of the connection can be in flight any more.
    #[doc(alias = "RDMA_CM_EVENT_TIMEWAIT_EXIT")]
    TimewaitExit,
    /// The address of the identifier went away, or the device failed.
    #[doc(alias = "RDMA_CM_EVENT_DEVICE_REMOVAL")]
    DeviceRemoval,
}
