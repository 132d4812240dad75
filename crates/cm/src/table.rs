//! The connections, and the ways to find one.

use std::collections::{BTreeMap, BTreeSet};

use iba::{Gid, Guid, Qpn, Time};
use wire::cm::CommId;

use crate::CmError;
use crate::conn::Conn;
use crate::param::Local;

/// Connections by our id, by the peer's id, by the peer's QP, and by deadline.
#[derive(Debug)]
pub(crate) struct Table {
    prefix: u32,
    index_bits: u8,
    next: u32,
    conns: BTreeMap<CommId, Conn>,
    /// By the peer's channel adapter and its id, to recognise a REQ that came before.
    by_remote_id: BTreeMap<(Guid, CommId), CommId>,
    /// By the peer's channel adapter and its QP, to recognise a connection that the peer has forgotten.
    by_remote_qpn: BTreeMap<(Guid, Qpn), CommId>,
    /// Requests for services, by the address they came from and the name they have there.
    by_request: BTreeMap<(Gid, CommId), CommId>,
    deadlines: BTreeSet<(Time, CommId)>,
}

impl Table {
    pub(crate) fn new(local: &Local) -> Self {
        Self {
            prefix: local.prefix,
            index_bits: local.index_bits.clamp(1, 31),
            next: local.start,
            conns: BTreeMap::new(),
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
        self.conns.get(&id)
    }

    pub(crate) fn get_mut(&mut self, id: CommId) -> Option<&mut Conn> {
        self.conns.get_mut(&id)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (CommId, &Conn)> {
        self.conns.iter().map(|(id, conn)| (*id, conn))
    }

    /// Adds a connection under the next free id. Ids come round only after all others, so that a message that is late
    /// finds no other connection.
    pub(crate) fn insert(&mut self, conn: Conn) -> Result<CommId, CmError> {
        let mask = (1u32 << self.index_bits) - 1;
        if self.conns.len() >= mask as usize {
            return Err(CmError::NoIds);
        }
        loop {
            let id = self.prefix | self.next & mask;
            self.next = self.next.wrapping_add(1);
            // 0 means "none" in messages.
            if id != 0 && !self.conns.contains_key(&id) {
                self.conns.insert(id, conn);
                return Ok(id);
            }
        }
    }

    /// Forgets a connection.
    pub(crate) fn remove(&mut self, id: CommId) {
        self.set_deadline(id, None);
        self.forget_remote(id);
        self.conns.remove(&id);
    }

    /// Sets when something is due, in place of what was.
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

    pub(crate) fn with_remote_id(&self, guid: Guid, id: CommId) -> Option<CommId> {
        self.by_remote_id.get(&(guid, id)).copied()
    }

    pub(crate) fn with_remote_qpn(&self, guid: Guid, qpn: Qpn) -> Option<CommId> {
        self.by_remote_qpn.get(&(guid, qpn)).copied()
    }

    pub(crate) fn with_request(&self, from: Gid, id: CommId) -> Option<CommId> {
        self.by_request.get(&(from, id)).copied()
    }

    /// Enters what is known of a connection's other end.
    pub(crate) fn remember_remote(&mut self, id: CommId) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        let remote = conn.remote;
        conn.is_known_by_id = true;
        conn.is_known_by_qpn = true;
        self.by_remote_id.insert((remote.guid, remote.id), id);
        self.by_remote_qpn.insert((remote.guid, remote.qpn), id);
    }

    /// Enters a request for a service.
    pub(crate) fn remember_request(&mut self, id: CommId) {
        let Some(conn) = self.conns.get(&id) else { return };
        self.by_request.insert((conn.peer.remote, conn.remote.id), id);
    }

    /// The peer's QP may be used in another connection.
    pub(crate) fn forget_remote_qpn(&mut self, id: CommId) {
        let Some(conn) = self.conns.get_mut(&id) else { return };
        if std::mem::take(&mut conn.is_known_by_qpn) {
            self.by_remote_qpn.remove(&(conn.remote.guid, conn.remote.qpn));
        }
    }

    /// The peer may use its id anew.
    pub(crate) fn forget_remote(&mut self, id: CommId) {
        self.forget_remote_qpn(id);
        let Some(conn) = self.conns.get_mut(&id) else { return };
        if std::mem::take(&mut conn.is_known_by_id) {
            self.by_remote_id.remove(&(conn.remote.guid, conn.remote.id));
        }
        let request = (conn.peer.remote, conn.remote.id);
        if self.by_request.get(&request) == Some(&id) {
            self.by_request.remove(&request);
        }
    }
}
