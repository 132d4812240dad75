//! One endpoint.

use std::net::SocketAddr;
use std::sync::Arc;

use ::cm::ListenId;
use iba::{Psn, Qpn};
use wire::cm::CommId;

use crate::ids::CmId;
use crate::objects::bell::Bells;
use crate::random::random;
use crate::rdma_cm::{Event, EventKind, Path, Sink, Spec, Timeouts};

/// The role of an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// None yet.
    Idle,
    Listener(ListenId),
    /// An end of a connection, or of a request for a service.
    Conn(CommId),
    /// Its former role has ended.
    Over,
}

#[derive(Debug)]
pub(super) struct Endpoint {
    pub(super) spec: Spec,
    pub(super) sink: Arc<dyn Sink>,
    pub(super) cookie: u64,
    pub(super) role: Role,
    pub(super) local: Option<SocketAddr>,
    pub(super) remote: Option<SocketAddr>,
    pub(super) path: Option<Path>,
    pub(super) timeouts: Timeouts,
    pub(super) tos: Option<u8>,
    /// The ACK timeout that the program asked for.
    pub(super) ack_timeout: Option<u8>,
    pub(super) local_qpn: Qpn,
    /// The first PSN that the peer must send. It is fixed from the start, since a passive side
    /// brings its QP up before it accepts (the kernel's `seq_num`).
    pub(super) rq_psn: Psn,
    /// Whether its end has been reported.
    pub(super) ended: bool,
}

impl Endpoint {
    pub(super) fn new(spec: Spec, sink: Arc<dyn Sink>) -> Self {
        Self {
            cookie: spec.cookie,
            spec,
            sink,
            role: Role::Idle,
            local: None,
            remote: None,
            path: None,
            timeouts: Timeouts::default(),
            tos: None,
            ack_timeout: None,
            local_qpn: Qpn::default(),
            rq_psn: Psn::new(random() as u32),
            ended: false,
        }
    }

    /// Passes an event to the endpoint's sink.
    pub(super) fn tell(&self, id: CmId, kind: EventKind, bells: &mut Bells) {
        tracing::debug!(target: "peerdma::cm", id = id.handle(), ?kind, "event");
        self.sink.deliver(Event { id, cookie: self.cookie, kind });
        bells.of_sink(&self.sink);
    }
}
