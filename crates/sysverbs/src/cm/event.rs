//! Events, copied from C.

use std::ffi::c_void;
use std::slice;

use iba::{Av, Qpn};
use verbs_abi::rdma::{self, event_type as kind, port_space};

use super::channel::CmChannel;
use super::id::CmId;
use crate::attr;
use crate::error::Error;

/// An event.
#[derive(Clone, Debug)]
#[doc(alias = "rdma_cm_event")]
#[non_exhaustive]
pub struct CmEvent {
    /// Whose it is. Of a request, the identifier that was made for it.
    pub id: CmId,
    /// Of a request, the listener, if it is still there.
    pub listener: Option<CmId>,
    /// What happened.
    pub kind: CmEventKind,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[doc(alias = "rdma_cm_event_type")]
#[non_exhaustive]
pub enum CmEventKind {
    /// The address was resolved.
    AddrResolved,
    /// The address could not be resolved.
    AddrError(Error),
    /// The route was resolved.
    RouteResolved,
    /// The route could not be resolved.
    RouteError(Error),
    /// A peer requests a connection.
    ConnectRequest(Said),
    /// A peer asks for a service of datagrams.
    ServiceRequest(UdSaid),
    /// The peer accepted: the QP must follow, and [`CmId::establish`] be called.
    ConnectResponse(Said),
    /// The connection could not be made.
    ConnectError(Error),
    /// The peer did not answer, or has no such service: the status.
    Unreachable(i32),
    /// The peer refused.
    Rejected {
        /// The reason, a number of InfiniBand's (IBA table 109).
        reason: i32,
        /// The private data of the program at the other end.
        private_data: Vec<u8>,
    },
    /// The connection is established.
    Established(Said),
    /// The peer answered with its datagram QP.
    ServiceFound(UdSaid),
    /// The connection ended.
    Disconnected {
        /// Whether the peer failed to confirm it in time.
        timed_out: bool,
    },
    /// The device goes away.
    DeviceRemoval,
    /// A group was joined.
    MulticastJoin(UdSaid),
    /// A group could not be joined.
    MulticastError(Error),
    /// The address of the netdev changed.
    AddrChange,
    /// No packet of the connection can be in flight any more.
    TimewaitExit,
    /// Another one, by its number.
    Other(u32),
}

/// What a peer says of a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[doc(alias = "rdma_conn_param")]
#[non_exhaustive]
pub struct Said {
    /// Its private data: the whole field, padded with zeros.
    pub private_data: Vec<u8>,
    /// READs and atomics that this side should take at once.
    pub responder_resources: u8,
    /// READs and atomics that the peer takes at once.
    pub initiator_depth: u8,
    /// Transport retries.
    pub retry_count: u8,
    /// Retries while there is no receive.
    pub rnr_retry_count: u8,
    /// Its QP.
    pub qpn: Qpn,
}

/// What a peer, or a group, says of datagrams.
#[derive(Clone, Debug, PartialEq, Eq)]
#[doc(alias = "rdma_ud_param")]
#[non_exhaustive]
pub struct UdSaid {
    /// A peer's private data.
    pub private_data: Vec<u8>,
    /// The way there.
    pub av: Av,
    /// The QP.
    pub qpn: Qpn,
    /// The Q_Key.
    pub qkey: u32,
}

impl CmEvent {
    /// Copies an event. `None` if its identifier is about to be destroyed.
    ///
    /// # Safety
    ///
    /// The library gave the event, which is not acknowledged.
    pub(super) unsafe fn copy(channel: &CmChannel, raw: &rdma::CmEvent) -> Option<Self> {
        let failed = |call| Error::new(call, raw.status.checked_neg().unwrap_or(libc::EIO));
        // SAFETY: the caller's promise.
        let is_ud = unsafe { (*raw.id).ps } == port_space::UDP;
        let (id, listener) = if raw.event == kind::CONNECT_REQUEST {
            // SAFETY: the library made it for this event, and the program has not seen it.
            let new = unsafe { CmId::adopt(channel, raw.id) };
            (new, CmId::find(channel.library(), raw.listen_id))
        } else {
            (CmId::find(channel.library(), raw.id)?, None)
        };
        // SAFETY: the caller's promise; an event of datagrams has this member, and not the other.
        let ud = |is_peer| unsafe { ud(raw, is_peer) };
        // SAFETY: as above, for all other events.
        let conn = || unsafe { conn(raw) };
        let kind = match raw.event {
            kind::ADDR_RESOLVED => CmEventKind::AddrResolved,
            kind::ADDR_ERROR => CmEventKind::AddrError(failed("rdma_resolve_addr")),
            kind::ROUTE_RESOLVED => CmEventKind::RouteResolved,
            kind::ROUTE_ERROR => CmEventKind::RouteError(failed("rdma_resolve_route")),
            kind::CONNECT_REQUEST if is_ud => CmEventKind::ServiceRequest(ud(true)),
            kind::CONNECT_REQUEST => CmEventKind::ConnectRequest(conn()),
            kind::CONNECT_RESPONSE => CmEventKind::ConnectResponse(conn()),
            kind::CONNECT_ERROR => CmEventKind::ConnectError(failed("rdma_connect")),
            kind::UNREACHABLE => CmEventKind::Unreachable(raw.status),
            kind::REJECTED => {
                let private_data = if is_ud { ud(true).private_data } else { conn().private_data };
                CmEventKind::Rejected { reason: raw.status, private_data }
            }
            kind::ESTABLISHED if is_ud => CmEventKind::ServiceFound(ud(true)),
            kind::ESTABLISHED => CmEventKind::Established(conn()),
            kind::DISCONNECTED => CmEventKind::Disconnected { timed_out: raw.status != 0 },
            kind::DEVICE_REMOVAL => CmEventKind::DeviceRemoval,
            kind::MULTICAST_JOIN => CmEventKind::MulticastJoin(ud(false)),
            kind::MULTICAST_ERROR => CmEventKind::MulticastError(failed("rdma_join_multicast")),
            kind::ADDR_CHANGE => CmEventKind::AddrChange,
            kind::TIMEWAIT_EXIT => CmEventKind::TimewaitExit,
            other => CmEventKind::Other(other),
        };
        Some(Self { id, listener, kind })
    }
}

/// # Safety
///
/// The event is of a connection, and not acknowledged.
unsafe fn conn(raw: &rdma::CmEvent) -> Said {
    // SAFETY: the caller's promise.
    let conn = unsafe { &raw.param.conn };
    Said {
        // SAFETY: the library says how long it is.
        private_data: unsafe { bytes(conn.private_data, conn.private_data_len) },
        responder_resources: conn.responder_resources,
        initiator_depth: conn.initiator_depth,
        retry_count: conn.retry_count,
        rnr_retry_count: conn.rnr_retry_count,
        qpn: Qpn::new(conn.qp_num),
    }
}

/// # Safety
///
/// The event is of datagrams, and not acknowledged; a peer's, or else of a group, whose private
/// data is the pointer that the join gave.
unsafe fn ud(raw: &rdma::CmEvent, is_peer: bool) -> UdSaid {
    // SAFETY: the caller's promise.
    let ud = unsafe { &raw.param.ud };
    let length = if is_peer { ud.private_data_len } else { 0 };
    UdSaid {
        // SAFETY: the library says how long it is.
        private_data: unsafe { bytes(ud.private_data, length) },
        av: attr::av(&ud.ah_attr),
        qpn: Qpn::new(ud.qp_num),
        qkey: ud.qkey,
    }
}

/// # Safety
///
/// `data` is NULL or has `length` bytes.
unsafe fn bytes(data: *const c_void, length: u8) -> Vec<u8> {
    if data.is_null() || length == 0 {
        return Vec::new();
    }
    // SAFETY: the caller's promise.
    unsafe { slice::from_raw_parts(data.cast::<u8>(), length.into()) }.to_vec()
}
