//! Bringing in memory that an access found absent: pages of a region paged on demand, and buffers that their exporter moved.

use umem::Umem;

use super::core::Core;
use super::import::Remapped;
use super::peer::PeerRegion;
use crate::ids::MrId;

impl Core {
    /// Sees to it that `length` bytes at `addr` of the region with this key are there. False: not at this moment, and the
    /// access is tried again later. True for a region that will never be there again, too: it is dead now, which the
    /// access finds when it is tried again.
    pub(crate) fn bring_in(&mut self, key: u32, addr: u64, length: u64) -> bool {
        let named = self.mrs.id_of(key).map(|id| (id, addr));
        let Some((id, addr)) = named.or_else(|| self.mrs.windows.behind(key, addr)) else {
            return true;
        };
        let Some(mr) = self.mrs.get_mut(id) else { return true };
        if let Some(odp) = &mut mr.odp {
            let faulted = odp.fault(addr, length, self.now, self.config.fault_us);
            self.counters.page_faults += faulted.faults;
            return faulted.is_done;
        }
        if mr.peer.as_ref().is_some_and(PeerRegion::is_lost) {
            self.revoke(id);
            return true;
        }
        let Some(import) = mr.import.clone() else {
            // Of the two ends of a copy it is the other one that is absent.
            return true;
        };
        match import.remap(&mr.umem, &self.faults) {
            Remapped::Here(umem) => {
                self.counters.page_faults += 1;
                self.replace_memory(id, umem);
                true
            }
            Remapped::Current => true,
            Remapped::NotYet => false,
            Remapped::Gone => {
                self.revoke(id);
                true
            }
        }
    }

    /// The memory of a region was taken away for good.
    pub(crate) fn revoke(&mut self, id: MrId) {
        let Some(mr) = self.mrs.get_mut(id) else { return };
        if !std::mem::replace(&mut mr.is_revoked, true) {
            tracing::info!(
                target: "peerdma::peer-memory",
                "region {} (key {:#x}) lost its memory: {} took it away; the key is dead",
                id.handle(),
                mr.key,
                mr.peer.as_ref().map_or("the exporter of its dma-buf", PeerRegion::client)
            );
        }
        if let Some(table) = &self.table {
            table.withdraw(id);
        }
    }

    /// Puts a region on the memory where its buffer is now, and tells peers. Those that use the old place are stopped by
    /// the buffer's gate.
    pub(crate) fn replace_memory(&mut self, id: MrId, umem: Umem) {
        let Some(mr) = self.mrs.get_mut(id) else { return };
        mr.umem = umem;
        let Some(table) = &self.table else { return };
        table.withdraw(id);
        table.publish_again(id, mr);
    }
}
