//! Advice on memory regions: faulting pages in before they are used.

use iba::{Access, LKey};
use transport::wr::Sge;

use super::Engine;
use crate::config::Preset;
use crate::ids::{MrId, PdId};
use crate::memory::import::Remapped;
use crate::memory::odp::Odp;
use crate::refusal::{Result, refuse};

/// The advice to the NIC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "ib_uverbs_advise_mr_advice")]
#[non_exhaustive]
pub enum MrAdvice {
    /// The pages will be read.
    Prefetch,
    /// The pages will be written.
    PrefetchWrite,
    /// Only maps pages that are already in memory; faults nothing in.
    PrefetchNoFault,
}

impl Engine {
    /// Faults in the pages of a list before they are used. That is done when this returns, with or
    /// without `IBV_ADVISE_MR_FLAG_FLUSH`. The errors are those of mlx5, or of rxe for its preset
    /// (`docs/semantics.md` 2.5).
    #[doc(alias = "ibv_advise_mr")]
    pub fn advise_mr(&mut self, pd: PdId, advice: MrAdvice, sges: &[Sge]) -> Result<()> {
        if !self.common.nic.config.has_odp() {
            let name = &self.common.nic.config.name;
            refuse!(NotSupported, "advise_mr: {name} has no on-demand paging");
        }
        self.pd(pd)?;
        // Nothing is faulted in unless everything can be.
        let mut found = Vec::with_capacity(sges.len());
        for sge in sges {
            found.push((self.check_advice(pd, advice, sge)?, sge.addr, u64::from(sge.length)));
        }
        if advice != MrAdvice::PrefetchNoFault {
            for (id, addr, length) in found {
                self.prefetch(id, addr, length)?;
            }
        }
        Ok(())
    }

    fn check_advice(&self, pd: PdId, advice: MrAdvice, sge: &Sge) -> Result<MrId> {
        let Sge { lkey: LKey(key), addr, length } = *sge;
        let is_rxe = self.common.nic.config.preset == Preset::Rxe;
        let paged = self
            .common
            .memory
            .mrs
            .id_of(key)
            .and_then(|id| Some((id, self.common.memory.mrs.get(id)?)));
        let Some((id, mr)) = paged.filter(|(_, mr)| mr.odp.is_some() || mr.import.is_some()) else {
            if is_rxe {
                refuse!(Invalid, "advise_mr: {key:#x} is not the key of a region paged on demand");
            }
            if self.common.memory.mrs.windows.has(key) {
                refuse!(Invalid, "advise_mr: {key:#x} is the key of a memory window");
            }
            refuse!(NotFound, "advise_mr: {key:#x} is not the key of a region paged on demand");
        };
        if mr.pd != pd {
            if is_rxe {
                refuse!(Invalid, "advise_mr: region {key:#x} belongs to another protection domain");
            }
            refuse!(
                NotPermitted,
                "advise_mr: region {key:#x} belongs to another protection domain"
            );
        }
        if advice == MrAdvice::PrefetchWrite && !mr.access.contains(Access::LOCAL_WRITE) {
            refuse!(NotPermitted, "advise_mr: region {key:#x} is read-only");
        }
        let inside = addr
            .checked_sub(mr.iova)
            .and_then(|start| start.checked_add(length.into()))
            .is_some_and(|end| end <= mr.length);
        if !inside {
            refuse!(BadAddress, "advise_mr: {length:#x} bytes at {addr:#x} leave region {key:#x}");
        }
        Ok(id)
    }

    fn prefetch(&mut self, id: MrId, addr: u64, length: u64) -> Result<()> {
        let Some(mr) = self.common.memory.mrs.get_mut(id) else { return Ok(()) };
        let fault = |odp: &mut Odp| (odp.prefetch(addr, length), true);
        if let Some((brought, gone)) = mr.page_in(addr, length, fault) {
            self.common.counters.first.page_prefetch += brought;
            self.common.counters.first.page_invalidations += gone;
            return Ok(());
        }
        let Some(import) = mr.import.clone() else { return Ok(()) };
        match import.remap(&mr.umem, &self.common.memory.faults) {
            Remapped::Here(umem) => {
                self.common.counters.first.page_prefetch += 1;
                self.common.replace_memory(id, umem);
            }
            Remapped::Current => {}
            // It is being faulted in, and the next access checks for itself.
            Remapped::NotYet => import.forget(),
            Remapped::Refused => {
                refuse!(
                    BadAddress,
                    "advise_mr: the exporter refuses to map the region's memory now"
                )
            }
            Remapped::Gone => {
                self.common.revoke(id);
                refuse!(BadAddress, "advise_mr: the region's memory was revoked");
            }
        }
        Ok(())
    }
}
