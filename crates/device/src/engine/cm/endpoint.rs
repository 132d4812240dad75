//! One endpoint.

use std::collections::btree_map::Entry;
use std::net::SocketAddr;
use std::sync::Arc;

use ::cm::ListenId;
use iba::{Psn, Qpn};
use wire::cm::CommId;

use super::CmService;
use crate::cm::{Event, EventKind, Path, Sink, Spec, Timeouts};
use crate::ids::CmId;
use crate::random::random;
use crate::refusal::{Result, refuse};

/// What an endpoint is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Nothing yet.
    Idle,
    Listener(ListenId),
    /// An end of a connection, or of a request for a service.
    Conn(CommId),
    /// What it was is over.
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
    /// The first PSN that the peer is to send. It is fixed from the start, since a passive side
    /// brings its QP up before it accepts (the kernel's `seq_num`).
    pub(super) rq_psn: Psn,
    /// Whether its end was reported.
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

    /// Hands an event to the endpoint's sink.
    pub(super) fn tell(&self, id: CmId, kind: EventKind) {
        tracing::debug!(target: "peerdma::cm", id = id.handle(), ?kind, "event");
        self.sink.deliver(Event { id, cookie: self.cookie, kind });
    }
}

impl CmService {
    pub(super) fn get(&self, id: CmId) -> Result<&Endpoint> {
        match self.endpoints.get(&id) {
            Some(endpoint) => Ok(endpoint),
            None => refuse!(NotFound, "there is no endpoint {}", id.handle()),
        }
    }

    pub(super) fn get_mut(&mut self, id: CmId) -> Result<&mut Endpoint> {
        match self.endpoints.get_mut(&id) {
            Some(endpoint) => Ok(endpoint),
            None => refuse!(NotFound, "there is no endpoint {}", id.handle()),
        }
    }

    /// The connection of an endpoint.
    pub(super) fn conn(&self, id: CmId, call: &str) -> Result<CommId> {
        match self.get(id)?.role {
            Role::Conn(conn) => Ok(conn),
            role => refuse!(Invalid, "{call}: endpoint {} is no connection: {role:?}", id.handle()),
        }
    }

    /// Adds an endpoint. Numbers come round only after all others.
    pub(super) fn insert(&mut self, endpoint: Endpoint) -> Result<CmId> {
        if self.endpoints.len() >= super::MAX_ENDPOINTS {
            refuse!(NoMemory, "this process has {} endpoints", super::MAX_ENDPOINTS);
        }
        loop {
            let id = CmId(self.next_id);
            self.next_id = self.next_id.wrapping_add(1);
            if let Entry::Vacant(free) = self.endpoints.entry(id) {
                free.insert(endpoint);
                return Ok(id);
            }
        }
    }
}
