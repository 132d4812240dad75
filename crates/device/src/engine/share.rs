//! Objects that a program holds more than once: imported ones, and domains under a parent domain.

use super::{Engine, MrInfo};
use crate::ids::{CtxId, DmId, MrId, PdId};
use crate::refusal::{Result, refuse};

impl Engine {
    /// Counts a parent domain over a protection domain, which then cannot be freed before it.
    #[doc(alias = "ibv_alloc_parent_domain")]
    pub fn hold_pd(&mut self, pd: PdId) -> Result<()> {
        self.pd(pd)?.handles += 1;
        Ok(())
    }

    /// Undoes [`Engine::hold_pd`].
    pub fn release_pd(&mut self, pd: PdId) {
        if let Ok(pd) = self.pd(pd) {
            pd.handles = pd.handles.saturating_sub(1);
        }
    }

    /// The protection domain of a context with this handle.
    #[doc(alias = "ibv_import_pd")]
    pub fn find_pd(&self, ctx: CtxId, handle: u32) -> Result<PdId> {
        match self.common.objects.pds.get(handle as usize) {
            Some(pd) if pd.ctx == ctx => Ok(PdId(handle)),
            _ => refuse!(NotFound, "import_pd: the context has no protection domain {handle}"),
        }
    }

    /// The region of a context with this handle, and its length.
    #[doc(alias = "ibv_import_mr")]
    pub fn find_mr(&self, ctx: CtxId, handle: u32) -> Result<(MrInfo, u64)> {
        let id = MrId(handle);
        let is_of_ctx =
            |pd: PdId| self.common.objects.pds.get(pd.index()).is_some_and(|pd| pd.ctx == ctx);
        match self.common.memory.mrs.get(id) {
            Some(mr) if is_of_ctx(mr.pd) => {
                Ok((MrInfo { id, lkey: mr.key, rkey: mr.key }, mr.length))
            }
            _ => refuse!(NotFound, "import_mr: the context has no region {handle}"),
        }
    }

    /// The device memory of a context with this handle.
    #[doc(alias = "ibv_import_dm")]
    pub fn find_dm(&self, ctx: CtxId, handle: u32) -> Result<DmId> {
        match self.common.memory.dms.get(handle as usize) {
            Some(dm) if dm.ctx == ctx => Ok(DmId(handle)),
            _ => refuse!(NotFound, "import_dm: the context has no device memory {handle}"),
        }
    }
}
