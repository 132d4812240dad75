//! Connection management, as a layer like librdmacm uses it: endpoints, their parameters and their
//! events. The kernel calls this layer `rdma_cm`; its `ib_cm`, with the messages, is the crate
//! `cm`.
//!
//! [`Engine::cm_create`](crate::Engine::cm_create) creates an endpoint ([`CmId`]), which is one of
//! three things: a listener, the active side of a connection, or the passive side. Its calls are
//! methods of [`Engine`](crate::Engine) whose names begin with `cm_`; none of them waits. Their
//! outcome is an [`Event`], which the engine passes to the endpoint's [`Sink`].
//!
//! ```text
//!    active                                                passive
//!    cm_create, cm_resolve                                 cm_create, cm_bind, cm_listen
//!    cm_connect            ------------ REQ ----------->   ConnectRequest { id of the new endpoint }
//!                                                          QP to RTR and RTS by cm_qp_attr
//!    ConnectResponse       <----------- REP ------------   cm_accept
//!    QP to RTR and RTS
//!    cm_ready              ------------ RTU ----------->   Established
//!    cm_disconnect         ------------ DREQ ---------->   Disconnected
//!    Disconnected          <----------- DREP -----------   cm_disconnect
//!    TimewaitExit                                          TimewaitExit
//! ```
//!
//! An endpoint of [`PortSpace::Udp`] resolves a service instead of connecting: `cm_connect` sends a
//! SIDR_REQ, `cm_accept` answers with a QP number and a Q_Key, and the active side's event is
//! `Established`.
//!
//! Ports are those of the host, not of the process: binding one that another process has is refused
//! with [`Kind::AddressInUse`](crate::Kind), or [`Kind::AddressNotAvailable`](crate::Kind) where
//! one of the two is the wildcard.

use std::collections::VecDeque;
use std::fmt;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd};

use iba::{Gid, Mtu, QKey, QpType, Qpn};
use rustix::event::EventfdFlags;
use threads::whole::Mutex;

pub use ::cm::{Ece, PortSpace, RejReason, SidrStatus};

pub use crate::ids::CmId;
use crate::objects::bell::Bell;
use crate::refusal::Result;

/// Bytes of private data that a program may put into each message (IBA 12.6, less the 36 bytes of
/// the RDMA-CM header where there is one). The receiver always sees the whole field, padded with
/// zeros.
pub mod private_data {
    /// For `cm_connect` on a connection.
    pub const REQ: usize = 56;
    /// For `cm_accept` on a connection.
    pub const REP: usize = 196;
    /// For `cm_reject`.
    pub const REJ: usize = 148;
    /// For `cm_ready`.
    pub const RTU: usize = 224;
    /// For `cm_connect` on a datagram endpoint.
    pub const SIDR_REQ: usize = 180;
    /// For `cm_accept` and `cm_reject` on a datagram endpoint.
    pub const SIDR_REP: usize = 136;
}

/// The parameters of a new endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "callers build it")]
pub struct Spec {
    /// The port space.
    pub port_space: PortSpace,
    /// The service of its QP: RC, UC or an XRC type for [`PortSpace::Tcp`], UD for
    /// [`PortSpace::Udp`], any of them for [`PortSpace::Ib`].
    pub qp_type: QpType,
    /// Returned in events.
    pub cookie: u64,
}

/// How an address is bound.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "callers build it")]
pub struct BindOptions {
    /// Another endpoint of this process with this option may have the same port, as long as neither
    /// listens.
    #[doc(alias = "RDMA_OPTION_ID_REUSEADDR")]
    pub reuse_addr: bool,
    /// An IPv6 wildcard does not include IPv4.
    #[doc(alias = "RDMA_OPTION_ID_AFONLY")]
    pub af_only: bool,
}

/// The path to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "ibv_sa_path_rec")]
#[non_exhaustive]
pub struct Path {
    /// The index of our GID in the table.
    pub sgid_index: u8,
    /// Our GID.
    pub sgid: Gid,
    /// The peer's GID.
    pub dgid: Gid,
    /// The path MTU.
    pub mtu: Mtu,
    /// IP type of service.
    #[doc(alias = "RDMA_OPTION_ID_TOS")]
    pub traffic_class: u8,
    /// Flow label, 20 bits.
    pub flow_label: u32,
    /// IP time to live.
    pub hop_limit: u8,
    /// How long a packet lives: `4.096 us * 2^code`.
    pub packet_life_time: u8,
}

/// The parameters that the two sides of a connection exchange (`struct rdma_conn_param`, and
/// `rdma_ud_param`).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[doc(alias = "rdma_conn_param")]
#[expect(clippy::exhaustive_structs, reason = "callers build it")]
pub struct ConnParam {
    /// For the program at the other end; at most as long as [`private_data`] says.
    pub private_data: Vec<u8>,
    /// READs and atomics that this side accepts at once. In an event, the peer's two numbers are
    /// swapped, as the kernel swaps them: this is how many the receiver should accept, since the
    /// peer has no more outstanding.
    pub responder_resources: u8,
    /// READs and atomics that this side has outstanding at once. In an event, as many as the peer
    /// accepts.
    pub initiator_depth: u8,
    /// Whether the receive queue has end-to-end flow control.
    pub flow_control: bool,
    /// Transport retries, 3 bits. For `cm_connect` only.
    pub retry_count: u8,
    /// RNR retries, 3 bits.
    pub rnr_retry_count: u8,
    /// Whether the QP has a shared receive queue.
    pub srq: bool,
    /// What this side requests from a peer of the same vendor, or grants to it. Not for datagram
    /// endpoints.
    pub ece: Ece,
    /// This side's QP.
    pub qpn: Qpn,
    /// The Q_Key of a datagram QP. For `cm_accept` on a datagram endpoint, and in the event of its
    /// answer.
    pub qkey: QKey,
}

/// How long the other side's communication manager may take, and how often a message is sent. The
/// defaults are the kernel's (`CMA_CM_RESPONSE_TIMEOUT`, `CMA_MAX_CM_RETRIES`): 4.3 s, 15 times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "callers build it")]
pub struct Timeouts {
    /// `4.096 us * 2^code`, five bits.
    pub response_timeout: u8,
    /// Times a message is sent again, four bits.
    pub max_retries: u8,
}

impl Default for Timeouts {
    fn default() -> Self {
        Self { response_timeout: 20, max_retries: 15 }
    }
}

/// Something happened to an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Event {
    /// The endpoint.
    pub id: CmId,
    /// Its cookie.
    pub cookie: u64,
    /// What happened.
    pub kind: EventKind,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[doc(alias = "rdma_cm_event_type")]
#[non_exhaustive]
pub enum EventKind {
    /// A listener got a request (REQ or SIDR_REQ). `new` is the passive endpoint; it has the
    /// listener's sink and cookie until changed, and the receiver of the event must accept, reject
    /// or destroy it.
    #[doc(alias = "RDMA_CM_EVENT_CONNECT_REQUEST")]
    ConnectRequest {
        /// The endpoint created for the request.
        new: CmId,
        /// The peer's parameters. A SIDR_REQ brings only private data.
        param: ConnParam,
    },
    /// The peer accepted (REP). The QP must then be moved to RTR and RTS, and
    /// [`cm_ready`](crate::Engine::cm_ready) called.
    #[doc(alias = "RDMA_CM_EVENT_CONNECT_RESPONSE")]
    ConnectResponse {
        /// The peer's parameters.
        param: ConnParam,
    },
    /// The connection is established: on the passive side, the RTU came, or
    /// [`cm_established`](crate::Engine::cm_established) was called. On a datagram endpoint, the
    /// answer with the peer's QP and Q_Key.
    #[doc(alias = "RDMA_CM_EVENT_ESTABLISHED")]
    Established {
        /// The private data of the RTU, or the contents of the SIDR_REP.
        param: ConnParam,
    },
    /// Nobody answered in time.
    #[doc(alias = "RDMA_CM_EVENT_UNREACHABLE")]
    Unreachable,
    /// The service was not resolved: the peer refused.
    SidrRefused {
        /// The reason. librdmacm reports it as the status of `RDMA_CM_EVENT_UNREACHABLE`.
        status: SidrStatus,
        /// The peer's private data.
        private_data: Vec<u8>,
    },
    /// The peer refused (REJ).
    #[doc(alias = "RDMA_CM_EVENT_REJECTED")]
    Rejected {
        /// The reason.
        reason: RejReason,
        /// Additional information, up to 72 bytes, in the form that belongs to the reason.
        ari: Vec<u8>,
        /// The peer's private data.
        private_data: Vec<u8>,
    },
    /// The peer ended the connection (DREQ), or confirmed that we did (DREP), or did not confirm it
    /// in time. Comes once.
    #[doc(alias = "RDMA_CM_EVENT_DISCONNECTED")]
    Disconnected {
        /// Whether it ended because the peer did not confirm it in time.
        timed_out: bool,
    },
    /// No packet of the connection can be in flight any more: its QP may be reused.
    #[doc(alias = "RDMA_CM_EVENT_TIMEWAIT_EXIT")]
    TimewaitExit,
    /// The address of the endpoint was removed, or the device failed.
    #[doc(alias = "RDMA_CM_EVENT_DEVICE_REMOVAL")]
    DeviceRemoval,
}

/// The receiver of events. It is called with the engine locked, so it must neither wait nor call
/// the engine.
pub trait Sink: Send + Sync + fmt::Debug {
    /// Takes an event.
    fn deliver(&self, event: Event);

    /// Tells the program of the events that were taken. The engine is not locked by this thread.
    fn ring(&self) {}
}

/// A sink that keeps events behind a descriptor that can be polled: it is readable while an event
/// waits, from a moment after the engine is unlocked that left it.
#[derive(Debug)]
pub struct Queue {
    bell: Bell,
    events: Mutex<VecDeque<Event>>,
}

impl Queue {
    /// An empty queue.
    ///
    /// # Errors
    /// [`Kind::NoMemory`](crate::Kind) if there are no descriptors left.
    pub fn new() -> Result<Self> {
        Ok(Self { bell: Bell::new(EventfdFlags::NONBLOCK)?, events: Mutex::default() })
    }

    /// Takes the oldest event, if there is one.
    pub fn pop(&self) -> Option<Event> {
        let event = self.events.lock().pop_front()?;
        self.bell.take_count();
        Some(event)
    }

    /// Takes out the events of an endpoint, and those of the endpoints that were made for its
    /// requests. The engine is locked meanwhile, or others may follow.
    pub fn take_of(&self, id: CmId) -> Vec<Event> {
        let mut events = self.events.lock();
        let mut whose = vec![id];
        let mut taken = Vec::new();
        let mut rest = VecDeque::with_capacity(events.len());
        for event in events.drain(..) {
            if !whose.contains(&event.id) {
                rest.push_back(event);
                continue;
            }
            if let EventKind::ConnectRequest { new, .. } = event.kind {
                whose.push(new);
            }
            self.bell.take_count();
            taken.push(event);
        }
        *events = rest;
        taken
    }
}

impl Sink for Queue {
    fn deliver(&self, event: Event) {
        // The bell has the event no later than the queue, so that whoever takes it finds its count.
        self.bell.add();
        self.events.lock().push_back(event);
    }

    fn ring(&self) {
        self.bell.ring();
    }
}

impl AsFd for Queue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }
}

/// The addresses of an endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Addresses {
    /// Its own, once it is bound.
    pub local: Option<SocketAddr>,
    /// Its peer's address, once it is resolved or came with a request.
    pub remote: Option<SocketAddr>,
}
