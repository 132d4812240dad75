//! Changing a region: other memory, another protection domain, other rights (`docs/semantics.md` 2.7).

use iba::Access;
use umem::Umem;

use super::Engine;
use super::api_mem::{MR_ACCESS, MrInfo};
use super::direct::UnderWay;
use super::mr::MrKind;
use crate::ids::{MrId, PdId};
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

/// A change that was checked, and for which everything that can be refused was had.
#[derive(Debug)]
pub(crate) struct Rereging {
    change: Rereg,
    /// The rights of the region afterwards.
    access: Access,
    /// Whether its pages are counted anew: it is on other memory, or is paged on demand and was not, or the other way round.
    is_anew: bool,
    /// Pages charged for it as it will be, if they are counted anew.
    pinned: u64,
}

impl Engine {
    /// Begins to change a region ([`crate::Hca::rereg_mr`]): checks everything and takes the region back from peers. What is
    /// refused leaves the region as it is.
    pub(crate) fn begin_rereg(&mut self, id: MrId, change: Rereg) -> Result<(Rereging, UnderWay)> {
        let Some(mr) = self.core.mrs.get(id) else {
            refuse!(Invalid, "rereg_mr: there is no region {}", id.handle());
        };
        match mr.kind {
            MrKind::User => {}
            MrKind::Dmabuf => {
                refuse!(NotSupported, "rereg_mr: a dma-buf region cannot be changed")
            }
            MrKind::Peer => {
                refuse!(NotSupported, "rereg_mr: a region of a peer's memory cannot be changed")
            }
            MrKind::Dm(_) => refuse!(Invalid, "rereg_mr: a device-memory region cannot be changed"),
        }
        if change.translation.is_none() && change.pd.is_none() && change.access.is_none() {
            refuse!(Invalid, "rereg_mr: nothing is to change");
        }
        self.check_unshown("rereg_mr", id)?;
        let (old, old_pd, is_writable) = (mr.access, mr.pd, mr.is_writable);
        let access = change.access.unwrap_or(old);
        if change.access.is_some() {
            Self::check_access("rereg_mr", access, MR_ACCESS)?;
        }
        let was_paged = old.contains(Access::ON_DEMAND);
        let is_paged = access.contains(Access::ON_DEMAND);
        let is_anew = change.translation.is_some() || was_paged != is_paged;
        if !is_anew && access.needs_writable() && !is_writable {
            refuse!(
                ReadOnly,
                "rereg_mr: the memory was registered to be read only; {access:?} needs a new translation"
            );
        }
        let (umem, iova) = match &change.translation {
            Some((umem, iova)) => (umem.clone(), *iova),
            None => (mr.umem.clone(), mr.iova),
        };
        if umem.is_empty() || iova.checked_add(umem.len()).is_none() {
            refuse!(Invalid, "rereg_mr: {:#x} bytes at {iova:#x}", umem.len());
        }
        if is_anew && is_paged {
            self.check_odp(umem.addr() as u64, umem.len(), iova, access)?;
        }
        if let Some(pd) = change.pd {
            let ctx = self.pd(old_pd)?.ctx;
            if self.pd(pd)?.ctx != ctx {
                refuse!(Invalid, "rereg_mr: the new PD is of another context");
            }
        }
        // The old pages are charged until they are let go of: the kernel pins the new ones first, too.
        let pinned = if is_anew && !is_paged {
            self.charge_pins("rereg_mr", umem.addr() as u64, umem.len())?
        } else {
            0
        };
        if let Some(pd) = change.pd {
            self.pd(pd)?.uses += 1;
        }
        Ok((Rereging { change, access, is_anew, pinned }, self.withdraw_mr(id)))
    }

    /// Changes a region that [`Engine::begin_rereg`] took back.
    pub(crate) fn finish_rereg(&mut self, id: MrId, begun: Rereging) -> Result<MrInfo> {
        let Rereging { change, access, is_anew, pinned } = begun;
        if let Some(why) = self.failure() {
            refuse!(Io, "rereg_mr: the device failed meanwhile: {why}");
        }
        // The domain that the region is no longer in, or never comes to be in.
        let mut left = change.pd;
        let mr = self.core.mrs.get_mut(id);
        let is_there = mr.is_some();
        if let (Some(mr), Some(pd)) = (mr, change.pd) {
            left = Some(std::mem::replace(&mut mr.pd, pd));
        }
        if let Some(pd) = left {
            self.pd(pd)?.uses -= 1;
        }
        if !is_there {
            self.uncharge_pins(pinned);
            refuse!(Invalid, "rereg_mr: the region was deregistered meanwhile");
        }
        let mr = self.core.mrs.get_mut(id).expect("the region was found above");
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
            key = self.core.mrs.rekey(id).expect("the region was found above");
        }
        self.uncharge_pins(let_go);
        self.publish_mr(id);
        Ok(MrInfo { id, lkey: key, rkey: key })
    }

    /// The rights of a region, if it exists.
    pub fn mr_access(&self, id: MrId) -> Option<Access> {
        self.core.mrs.get(id).map(|mr| mr.access)
    }
}
