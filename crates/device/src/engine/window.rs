//! The calls on memory windows.

use super::Engine;
use crate::config::Preset;
use crate::ids::{MrId, MwId, PdId};
use crate::memory::window::MwType;
use crate::refusal::{Kind, Refusal, Result, refuse};

impl Engine {
    /// Creates a window that exposes nothing yet, and returns its key.
    #[doc(alias = "ibv_alloc_mw")]
    pub fn alloc_mw(&mut self, pd: PdId, mw_type: MwType) -> Result<(MwId, u32)> {
        let charge = self.common.charges.object("alloc_mw")?;
        if self.common.memory.mrs.windows.len() >= self.common.nic.attr.max_mw as usize {
            refuse!(NoMemory, "alloc_mw: max_mw is {}", self.common.nic.attr.max_mw);
        }
        let pd_use = self.pd(pd)?.uses.take();
        Ok(self.common.memory.mrs.windows.add(pd, pd_use, mw_type, charge))
    }

    /// Frees a window, bound or not.
    #[doc(alias = "ibv_dealloc_mw")]
    pub fn dealloc_mw(&mut self, id: MwId) -> Result<()> {
        if !self.common.memory.mrs.windows.remove(id) {
            refuse!(Invalid, "dealloc_mw: there is no window {}", id.handle());
        }
        Ok(())
    }

    /// Refuses a change of a region while a window is bound to it (`docs/semantics.md` 2.7).
    pub(super) fn check_unshown(&self, call: &str, mr: MrId) -> Result<()> {
        if self.common.memory.mrs.windows.shows(mr) {
            // `rxe_dereg_mr` returns EINVAL; NICs report it as busy, as the specification does.
            let is_rxe = self.common.nic.config.preset == Preset::Rxe;
            let kind = if is_rxe { Kind::Invalid } else { Kind::Busy };
            let what = format!("{call}: a memory window is bound to region {}", mr.handle());
            return Err(Refusal::new(kind, what));
        }
        Ok(())
    }
}
