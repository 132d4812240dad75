//! The connections, and the tables to find one.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

use iba::{Guid, Qpn, Time};
use rustc_hash::FxHashMap;
use wire::cm::CommId;

use crate::CmError;
use crate::conn::Conn;
use crate::param::{Local, Origin};

/// Connections by our id, by the peer's id, by the peer's QP, and by deadline.
#[derive(Debug)]
pub(crate) struct Table {
    prefix: u32,
    index_bits: u8,
    next: u32,
    /// The ids are ours, so that no peer can choose such as collide.
    conns: FxHashMap<CommId, Box<Conn>>,
    // A sender may lie about itself, so its message is compared only with that sender's own
    // connections. Otherwise a sender that names another's id or QP would end the other's
    // connection, or prevent one.
    /// By the peer's channel adapter and its id, to recognise a duplicate of a REQ.
    by_remote_id: BTreeMap<(Origin, Guid, CommId), CommId>,
    /// By the peer's channel adapter and its QP, to recognise a connection that the peer has
    /// forgotten.
    by_remote_qpn: BTreeMap<(Origin, Guid, Qpn), CommId>,
    /// Requests for services, by their sender and its id for them.
    by_request: BTreeMap<(Origin, CommId), CommId>,
    deadlines: BTreeSet<(Time, CommId)>,
}

impl Table {
    pub(crate) fn new(local: &Local) -> Self {
        Self {
            prefix: local.prefix,
            index_bits: local.index_bits.clamp(1, 31),
            next: local.start,
            conns: FxHashMap::default(),
            by_remote_id: BTreeMap::new(),
            by_remote_qpn: BTreeMap::new(),
            by_request: BTreeMap::new(),
            deadlines: BTreeSet::new(),
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.conns.len()
    }

    pub(crate) fn get(&self, id: CommId) -> Option<&Conn> {
        self.conns.get(&id).map(Box::as_ref)
    }

    pub(crate) fn get_mut(&mut self, id: CommId) -> Option<&mut Conn> {
        self.conns.get_mut(&id).map(Box::as_mut)
    }

    /// In no order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (CommId, &Conn)> {
        self.conns.iter().map(|(id, conn)| (*id, &**conn))
    }

    /// Adds a connection under the next free id. An id is reused only after all others, so that a
    /// late message finds no other connection.
    pub(crate) fn insert(&mut self, conn: Conn) -> Result<CommId, CmError> {
        let mask = (1u32 << self.index_bits) - 1;
        if self.conns.len() >= mask as usize {
            return Err(CmError::NoIds);
        }
        loop {
            let id = self.prefix | self.next & mask;
            self.next = self.next.wrapping_add(1);
            // 0 means "none" in messages.
            if id != 0
                && let Entry::Vacant(free) = self.conns.entry(id)
            {
                free.insert(Box::new(conn));
                return Ok(id);
            }
        }
    }

    /// Removes a connection.
    pub(crate) fn remove(&mut self, id: CommId) {
        self.set_deadline(id, None);
        self.forget_remote(id);
        self.conns.remove(&id);
    }

    /// Sets when something is due, replacing the earlier deadline.
    pub(crate) fn set_deadline(&mut self, id: CommId, at: Option<Time>) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        if let Some(old) = conn.deadline {
            self.deadlines.remove(&(old, id));
        }
        conn.deadline = at;
        self.deadlines.extend(at.map(|at| (at, id)));
    }

    pub(crate) fn first_deadline(&self) -> Option<(Time, CommId)> {
        self.deadlines.first().copied()
    }

    pub(crate) fn with_remote_id(&self, from: Origin, guid: Guid, id: CommId) -> Option<CommId> {
        self.by_remote_id.get(&(from, guid, id)).copied()
    }

    pub(crate) fn with_remote_qpn(&self, from: Origin, guid: Guid, qpn: Qpn) -> Option<CommId> {
        self.by_remote_qpn.get(&(from, guid, qpn)).copied()
    }

    pub(crate) fn with_request(&self, from: Origin, id: CommId) -> Option<CommId> {
        self.by_request.get(&(from, id)).copied()
    }

    /// Enters what is known about a connection's other end, under its sender.
    pub(crate) fn remember_remote(&mut self, id: CommId, from: Origin) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let remote = conn.remote;
        conn.known_by_id = Some(from);
        conn.known_by_qpn = Some(from);
        self.by_remote_id.insert((from, remote.guid, remote.id), id);
        self.by_remote_qpn.insert((from, remote.guid, remote.qpn), id);
    }

    /// Enters a request for a service.
    pub(crate) fn remember_request(&mut self, id: CommId) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let from = conn.peer.origin();
        conn.known_by_request = Some(from);
        self.by_request.insert((from, conn.remote.id), id);
    }

    /// Allows the peer's QP in another connection.
    pub(crate) fn forget_remote_qpn(&mut self, id: CommId) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        if let Some(from) = conn.known_by_qpn.take() {
            self.by_remote_qpn.remove(&(from, conn.remote.guid, conn.remote.qpn));
        }
    }

    /// Allows the peer to reuse its id.
    pub(crate) fn forget_remote(&mut self, id: CommId) {
        self.forget_remote_qpn(id);
        let Some(conn) = self.conns.get_mut(&id) else { return };
        if let Some(from) = conn.known_by_id.take() {
            self.by_remote_id.remove(&(from, conn.remote.guid, conn.remote.id));
        }
        if let Some(from) = conn.known_by_request.take() {
            self.by_request.remove(&(from, conn.remote.id));
        }
    }
}
