//! Changing a region: other memory, another protection domain, other rights (`docs/semantics.md`
//! 2.7).

use iba::Access;
use umem::Umem;

use super::Engine;
use super::api_mem::{MR_ACCESS, MrInfo};
use crate::carrier::shm::UnderWay;
use crate::ids::{MrId, PdId};
use crate::memory::mr::MrKind;
use crate::objects::uses::Use;
use crate::refusal::{Result, refuse};

/// What a re-registration changes.
#[derive(Clone, Debug, Default)]
#[doc(alias = "ibv_rereg_mr")]
#[expect(clippy::exhaustive_structs, reason = "callers fill in what changes")]
pub struct Rereg {
    /// Another range of memory, with its new first address.
    pub translation: Option<(Umem, u64)>,
    /// Another protection domain.
    pub pd: Option<PdId>,
    /// Other rights.
    pub access: Option<Access>,
}

/// A change that was checked, and for which all resources were obtained.
#[derive(Debug)]
pub(crate) struct Rereging {
    change: Rereg,
    /// The rights of the region afterwards.
    access: Access,
    /// Whether its pages are counted again: because its memory changes, or it becomes an on-demand
    /// region, or ceases to be one.
    is_anew: bool,
    /// Pages charged for the region after the change, if they are counted again.
    pinned: u64,
    /// The use of the domain that it moves to.
    pd_use: Option<Use>,
}

impl Engine {
    /// The checks of a change that come before new memory is examined, in the kernel's order: those
    /// of `ib_uverbs_rereg_mr`, then those of `ib_umem_check_rereg`.
    pub fn check_rereg(&mut self, id: MrId, change: &Rereg) -> Result<()> {
        self.checked(id, change).map(drop)
    }

    /// The rights of the region afterwards, and whether its pages are counted again.
    fn checked(&mut self, id: MrId, change: &Rereg) -> Result<(Access, bool)> {
        if change.translation.is_none() && change.pd.is_none() && change.access.is_none() {
            refuse!(Invalid, "rereg_mr: nothing to change");
        }
        let Some(mr) = self.common.memory.mrs.get(id) else {
            refuse!(Invalid, "rereg_mr: there is no region {}", id.handle());
        };
        let (old, old_pd, is_writable) = (mr.access, mr.pd, mr.is_writable);
        let (old_umem, old_iova) = (mr.umem.clone(), mr.iova);
        let (is_dm, is_plain) = (matches!(mr.kind, MrKind::Dm(_)), matches!(mr.kind, MrKind::User));
        if is_dm {
            refuse!(Invalid, "rereg_mr: a device-memory region cannot be changed");
        }
        if let Some(access) = change.access {
            Self::check_access("rereg_mr", access, MR_ACCESS)?;
        }
        if let Some(pd) = change.pd {
            let ctx = self.pd(old_pd)?.ctx;
            if self.pd(pd)?.ctx != ctx {
                refuse!(Invalid, "rereg_mr: the new PD belongs to another context");
            }
        }
        if !is_plain {
            refuse!(NotSupported, "rereg_mr: a region of a dma-buf or a peer cannot be changed");
        }
        self.check_unshown("rereg_mr", id)?;
        let access = change.access.unwrap_or(old);
        let was_paged = old.contains(Access::ON_DEMAND);
        let is_paged = access.contains(Access::ON_DEMAND);
        let is_anew = change.translation.is_some() || was_paged != is_paged;
        if !is_anew && access.needs_writable() && !is_writable {
            refuse!(
                ReadOnly,
                "rereg_mr: the memory was registered read-only; {access:?} needs a new translation"
            );
        }
        let (umem, iova) = change.translation.clone().unwrap_or((old_umem, old_iova));
        if umem.is_empty() || iova.checked_add(umem.len()).is_none() {
            refuse!(Invalid, "rereg_mr: {:#x} bytes at {iova:#x}", umem.len());
        }
        if is_anew && is_paged {
            self.check_odp(umem.addr() as u64, umem.len(), iova, access)?;
        }
        Ok((access, is_anew))
    }

    /// Begins to change a region ([`crate::Hca::rereg_mr`]): checks everything and withdraws the
    /// region from peers. A refusal leaves the region as it is.
    pub(crate) fn begin_rereg(&mut self, id: MrId, change: Rereg) -> Result<(Rereging, UnderWay)> {
        let (access, is_anew) = self.checked(id, &change)?;
        let is_paged = access.contains(Access::ON_DEMAND);
        let umem = match &change.translation {
            Some((umem, _)) => umem.clone(),
            None => self.common.memory.mrs.get(id).expect("it was checked").umem.clone(),
        };
        // The old pages stay charged until they are released: the kernel also pins the new ones
        // first.
        let pinned = if is_anew && !is_paged {
            self.charge_pins("rereg_mr", umem.addr() as u64, umem.len())?
        } else {
            0
        };
        let pd_use = match change.pd {
            Some(pd) => Some(self.pd(pd)?.uses.take()),
            None => None,
        };
        Ok((Rereging { change, access, is_anew, pinned, pd_use }, self.withdraw_mr(id)))
    }

    /// Changes a region that [`Engine::begin_rereg`] withdrew.
    pub(crate) fn finish_rereg(&mut self, id: MrId, begun: Rereging) -> Result<MrInfo> {
        let Rereging { change, access, is_anew, pinned, pd_use } = begun;
        if let Some(why) = self.failure() {
            refuse!(Io, "rereg_mr: the device has failed in the meantime: {why}");
        }
        let Some(mr) = self.common.memory.mrs.get_mut(id) else {
            self.uncharge_pins(pinned);
            refuse!(Invalid, "rereg_mr: the region was deregistered in the meantime");
        };
        if let (Some(pd), Some(pd_use)) = (change.pd, pd_use) {
            (mr.pd, mr.pd_use) = (pd, pd_use);
        }
        mr.access = access;
        let mut let_go = 0;
        if is_anew {
            mr.odp = access.contains(Access::ON_DEMAND).then(Box::default);
            mr.is_writable = access.needs_writable();
            let_go = std::mem::replace(&mut mr.pinned, pinned);
        }
        let mut key = mr.key;
        if let Some((umem, iova)) = change.translation {
            mr.length = umem.len();
            mr.iova = iova;
            mr.umem = umem;
            key = self.common.memory.mrs.rekey(id).expect("the region was found above");
        }
        self.uncharge_pins(let_go);
        self.publish_mr(id);
        Ok(MrInfo { id, lkey: key, rkey: key })
    }

    /// The rights of a region, if it exists.
    pub fn mr_access(&self, id: MrId) -> Option<Access> {
        self.common.memory.mrs.get(id).map(|mr| mr.access)
    }
}
