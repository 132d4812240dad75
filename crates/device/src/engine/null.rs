//! The calls on the null region.

use super::Engine;
use crate::ids::PdId;
use crate::memory::NULL_KEY;
use crate::refusal::{Result, refuse};

impl Engine {
    /// Returns a handle of the null region: its key.
    #[doc(alias = "ibv_alloc_null_mr")]
    pub fn alloc_null_mr(&mut self, pd: PdId) -> Result<u32> {
        self.pd(pd)?;
        self.common.memory.mrs.make_null()?;
        self.pd(pd)?.handles += 1;
        Ok(NULL_KEY)
    }

    /// Frees a handle of the null region.
    pub fn free_null_mr(&mut self, pd: PdId) -> Result<()> {
        let uses = &mut self.pd(pd)?.handles;
        let Some(left) = uses.checked_sub(1) else {
            refuse!(Invalid, "dereg_mr: the protection domain has no null region");
        };
        *uses = left;
        Ok(())
    }
}
