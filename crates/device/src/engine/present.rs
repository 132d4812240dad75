//! Faults in memory that an access found absent: pages of an on-demand region, and buffers that
//! their exporter has moved.

use transport::wr::Sge;
use umem::Umem;

use super::common::Common;
use crate::ids::MrId;
use crate::memory::BroughtIn;
use crate::memory::import::Remapped;
use crate::memory::odp::Odp;
use crate::memory::peer::PeerRegion;

impl Common {
    /// Makes sure that `length` bytes at `addr` of the region with this key are present.
    pub(super) fn bring_in(&mut self, key: u32, addr: u64, length: u64) -> BroughtIn {
        let named = self.memory.mrs.id_of(key).map(|id| (id, addr));
        let Some((id, addr)) = named.or_else(|| self.memory.mrs.windows.behind(key, addr)) else {
            return BroughtIn::Here;
        };
        let latency = self.fault_latency();
        let Some(mr) = self.memory.mrs.get_mut(id) else { return BroughtIn::Here };
        let now = self.now;
        let fault = |odp: &mut Odp| {
            let faulted = odp.fault(addr, length, now, latency);
            (faulted, faulted.is_done)
        };
        if let Some((faulted, gone)) = mr.page_in(addr, length, fault) {
            self.counters.first.page_faults += faulted.faults;
            self.counters.first.page_invalidations += gone;
            if faulted.faults > 0 {
                self.page_faulted();
                self.trace_fault(key, addr, faulted.faults);
            }
            return if faulted.is_done { BroughtIn::Here } else { BroughtIn::NotYet };
        }
        if mr.peer.as_ref().is_some_and(PeerRegion::is_lost) {
            self.revoke(id);
            return BroughtIn::Here;
        }
        let Some(import) = mr.import.clone() else {
            // The absent memory is that of the other end of the copy.
            return BroughtIn::Here;
        };
        match import.remap(&mr.umem, &self.memory.faults) {
            Remapped::Here(umem) => {
                self.counters.first.page_faults += 1;
                self.trace_map_again(key);
                self.replace_memory(id, umem);
                BroughtIn::Here
            }
            Remapped::Current => BroughtIn::Here,
            Remapped::NotYet => BroughtIn::NotYet,
            Remapped::Refused => BroughtIn::Refused,
            Remapped::Gone => {
                self.revoke(id);
                BroughtIn::Here
            }
        }
    }

    /// Faults in the memory of a gather or scatter list.
    pub(super) fn bring_in_list(&mut self, sges: &[Sge]) -> BroughtIn {
        let named = sges.iter().filter(|sge| sge.length > 0);
        named.fold(BroughtIn::Here, |all, sge| {
            all.and(self.bring_in(sge.lkey.0, sge.addr, u64::from(sge.length)))
        })
    }

    /// What to expect of an absent list, as far as its buffers can move. Memory that the fault
    /// thread found is left for the access to take, so that it stays in place until then.
    pub(super) fn outlook(&self, sges: &[Sge]) -> BroughtIn {
        let outlooks = sges.iter().filter(|sge| sge.length > 0).filter_map(|sge| {
            let mr = self.memory.mrs.get(self.memory.mrs.id_of(sge.lkey.0)?)?;
            Some(mr.import.as_ref()?.outlook(&mr.umem))
        });
        outlooks.fold(BroughtIn::Here, BroughtIn::and)
    }

    /// The memory of a region was revoked for good.
    pub(super) fn revoke(&mut self, id: MrId) {
        let Some(mr) = self.memory.mrs.get_mut(id) else { return };
        if !std::mem::replace(&mut mr.is_revoked, true) {
            let why = match (&mr.import, &mr.peer) {
                (Some(import), _) => import.why_gone(),
                (None, Some(peer)) => format!("{} revoked it", peer.client()),
                (None, None) => "it was revoked".to_owned(),
            };
            let (region, key) = (id.handle(), mr.key);
            let words =
                format!("region {region} (key {key:#x}) lost its memory: {why}; the key is dead");
            tracing::info!(target: "peerdma::peer-memory", "{words}");
            self.write_explanation(&words);
            self.trace_revoke(key, &words);
        }
        if let Some(table) = self.out.shm.table() {
            table.withdraw(id);
        }
    }

    /// Points a region at the memory where its buffer is now, and publishes that. The buffer's gate
    /// stops peers that use the old place.
    pub(super) fn replace_memory(&mut self, id: MrId, umem: Umem) {
        let Some(mr) = self.memory.mrs.get_mut(id) else { return };
        mr.umem = umem;
        let Some(table) = self.out.shm.table() else { return };
        table.withdraw(id);
        table.publish_again(id, mr);
    }
}
