//! What peers may access without our engine: publishes it, and withdraws it.

use iba::{Access, QpType};
use umem::Backing;

use super::Engine;
use crate::carrier::shm::UnderWay;
use crate::carrier::shm::table::{Table, qp_word};
use crate::ids::{MrId, QpId};
use crate::memory::mr::{Mr, MrKind};
use crate::qp::vf_of;

impl Engine {
    /// Publishes, or withdraws, the right of a QP's peer to use it without our engine. Copies in
    /// progress may still use the earlier state.
    pub(super) fn publish_qp(&mut self, id: QpId) -> UnderWay {
        let Some(table) = self.table() else { return UnderWay::default() };
        let word = self.qps.get(id).and_then(|entry| {
            // Operations within the process ask the table, too.
            let route = entry.context.route;
            let shared = route.peer().is_some() || route.is_loopback();
            // The permissions of an XRC_RECV QP depend on the queue that a packet names.
            let is_fixed = entry.context.qp_type != QpType::XrcRecv;
            let open = shared && is_fixed && entry.qp.state().receives();
            open.then(|| {
                let attr = entry.qp.query();
                let mut access = attr.access_flags.difference(entry.context.cntrs.only_here());
                // The responder has no room for an answer, and refuses each request for one.
                if attr.max_dest_rd_atomic == 0 {
                    access -= Access::REMOTE_READ | Access::REMOTE_ATOMIC;
                }
                qp_word(entry.context.dest_qpn, access, entry.context.pd)
            })
        });
        // What a QP of this process does is over when the engine is free.
        let is_elsewhere = |peer| vf_of(peer) != self.common.nic.vf;
        match table.set_qp(id, word).filter(|peer| is_elsewhere(*peer)) {
            Some(_) => self.all_copies(),
            None => UnderWay::default(),
        }
    }

    /// Withdraws everything that peers may access without our engine.
    pub(crate) fn withdraw_everything(&mut self) {
        let Some(table) = self.table() else { return };
        for id in self.common.memory.mrs.ids() {
            table.withdraw(id);
        }
        for entry in self.qps.iter() {
            table.set_qp(entry.context.id, None);
        }
    }

    /// All copies of peers that are in progress now.
    pub(crate) fn all_copies(&self) -> UnderWay {
        self.receivers.shm.copies(|held| !held.is_free())
    }

    /// Whether any of these copies is still in progress. A peer that has died makes none.
    pub(crate) fn goes_on(&self, under_way: &mut UnderWay) -> bool {
        self.receivers.shm.goes_on(under_way)
    }

    fn table(&self) -> Option<&Table> {
        self.common.out.shm.table()
    }

    /// Publishes a region to peers that may access it without our engine, and logs what its memory
    /// is and how they reach it.
    pub(super) fn publish_mr(&mut self, id: MrId) {
        let Some(mr) = self.common.memory.mrs.get(id) else { return };
        let (key, length, memory) = (format_args!("{:#x}", mr.key), mr.length, memory(mr));
        if !mr.access.intersects(Access::REMOTE) {
            tracing::debug!(
                target: "peerdma::path", key, length, memory, "a region that no peer may access"
            );
        } else if let Some(reason) = self.only_by_ring(id, mr) {
            tracing::info!(
                target: "peerdma::path", key, length, memory,
                "operations on this region go through the ring: {reason}"
            );
        } else if let Some(table) = self.table() {
            table.publish(id, mr);
            let how = match mr.umem.backing() {
                Backing::File { .. } => "by a mapping of its file, without a system call",
                _ => "by process_vm_writev; atomics go through the ring",
            };
            tracing::debug!(
                target: "peerdma::path", key, length, memory,
                "processes of this user with ptrace permission reach this region directly: {how}"
            );
        }
    }

    /// Why no peer may access a region without our engine.
    pub(super) fn only_by_ring(&self, id: MrId, mr: &Mr) -> Option<&'static str> {
        if self.table().is_none() {
            return Some("the configuration forbids it");
        }
        Table::obstacle(id, mr)
    }

    /// Withdraws a region from such peers.
    pub(super) fn withdraw_mr(&mut self, id: MrId) -> UnderWay {
        let (Some(mr), Some(table)) = (self.common.memory.mrs.get(id), self.table()) else {
            return UnderWay::default();
        };
        table.withdraw(id);
        self.receivers.shm.copies(|held| held.is_for(mr.key))
    }
}

/// What the memory of a region is, in words.
pub(super) fn memory(mr: &Mr) -> &'static str {
    match (mr.kind, mr.umem.backing()) {
        (MrKind::Dm(_), _) => "device memory of the NIC",
        (MrKind::Peer, _) => "memory of a peer device, by its address",
        (MrKind::Dmabuf, Backing::DmaBuf { .. }) => "a dma-buf of the kernel",
        (MrKind::Dmabuf, _) => "a dma-buf",
        (MrKind::User, _) if mr.odp.is_some() => "memory that is paged on demand",
        (MrKind::User, Backing::File { .. }) => "a file that peers can map",
        (MrKind::User, _) => "ordinary memory",
    }
}
