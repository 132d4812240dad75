//! The calls on completion counters.

use iba::{CompCntrOps, QpState};
use transport::Ended;

use super::Engine;
use super::common::Common;
use crate::ids::{CompCntrId, CtxId, QpId};
use crate::objects::comp_cntr::{CompCntr, CompCntrEntry, CompCntrType, QpCntrs};
use crate::refusal::{Result, refuse};

impl Engine {
    /// Creates a counter at zero.
    ///
    /// # Errors
    ///
    /// [`Kind::NoMemory`](crate::Kind::NoMemory) if there are
    /// [`max_comp_cntr`](crate::DeviceAttr::max_comp_cntr) already.
    #[doc(alias = "ibv_create_comp_cntr")]
    pub fn create_comp_cntr(&mut self, ctx: CtxId, kind: CompCntrType) -> Result<CompCntrId> {
        let charge = self.common.charges.object("create_comp_cntr")?;
        let max = self.common.nic.attr.max_comp_cntr;
        if self.common.objects.comp_cntrs.len() >= max as usize {
            refuse!(NoMemory, "create_comp_cntr: max_comp_cntr is {max}");
        }
        Ok(self.common.objects.comp_cntrs.insert(CompCntr::new(ctx, kind, charge)).into())
    }

    /// Destroys a counter that is not attached to a QP.
    #[doc(alias = "ibv_destroy_comp_cntr")]
    pub fn destroy_comp_cntr(&mut self, id: CompCntrId) -> Result<()> {
        if self.failure().is_some() {
            return Ok(());
        }
        let uses = self.comp_cntr(id)?.uses.count();
        if uses > 0 {
            refuse!(
                Busy,
                "destroy_comp_cntr: it is attached to {uses} QPs; destroying those detaches it"
            );
        }
        self.common.objects.comp_cntrs.remove(id.index());
        Ok(())
    }

    /// Sets a value.
    #[doc(alias = "ibv_set_comp_cntr")]
    #[doc(alias = "ibv_set_err_comp_cntr")]
    pub fn set_comp_cntr(
        &mut self,
        id: CompCntrId,
        entry: CompCntrEntry,
        value: u64,
    ) -> Result<()> {
        *self.comp_cntr(id)?.value(entry) = value;
        Ok(())
    }

    /// Adds to a value, which wraps to zero after 2^64 - 1.
    #[doc(alias = "ibv_inc_comp_cntr")]
    #[doc(alias = "ibv_inc_err_comp_cntr")]
    pub fn inc_comp_cntr(
        &mut self,
        id: CompCntrId,
        entry: CompCntrEntry,
        amount: u64,
    ) -> Result<()> {
        let value = self.comp_cntr(id)?.value(entry);
        *value = value.wrapping_add(amount);
        Ok(())
    }

    /// A value. [`Hca::poll_any`](crate::Hca::poll_any) updates it first.
    #[doc(alias = "ibv_read_comp_cntr")]
    #[doc(alias = "ibv_read_err_comp_cntr")]
    pub fn read_comp_cntr(&mut self, id: CompCntrId, entry: CompCntrEntry) -> Result<u64> {
        Ok(*self.comp_cntr(id)?.value(entry))
    }

    /// Lets a counter count operations of a QP that no other counter counts, from now until the QP
    /// is destroyed. The checks come in the order of the kernel's `QP_ATTACH_COMP_CNTR`.
    #[doc(alias = "ibv_qp_attach_comp_cntr")]
    pub fn attach_comp_cntr(&mut self, qp: QpId, id: CompCntrId, ops: CompCntrOps) -> Result<()> {
        let unknown = ops.difference(CompCntrOps::KNOWN);
        if !unknown.is_empty() {
            refuse!(NotSupported, "attach_comp_cntr: unknown operations {:#x}", unknown.bits());
        }
        if ops.is_empty() {
            refuse!(Invalid, "attach_comp_cntr: no operations are given");
        }
        let cntr = self.comp_cntr(id)?;
        let (ctx, held) = (cntr.ctx, cntr.uses.take());
        let Some(entry) = self.qps.get_mut(qp) else {
            refuse!(Invalid, "there is no QP {}", qp.handle());
        };
        if entry.context.ctx != ctx {
            refuse!(
                Invalid,
                "attach_comp_cntr: the counter belongs to another context than the QP"
            );
        }
        let taken = entry.context.cntrs.ops().intersection(ops);
        if !taken.is_empty() {
            refuse!(
                Busy,
                "attach_comp_cntr: another counter of the QP counts operations {:#x}",
                taken.bits()
            );
        }
        let state = entry.qp.state();
        if !matches!(state, QpState::Reset | QpState::Init) {
            refuse!(Invalid, "attach_comp_cntr: the QP is in {state:?}, not in RESET or INIT");
        }
        entry.context.cntrs.attach(ops, id, held);
        // Somebody waits for the counter.
        entry.qp.set_counted(true);
        Ok(())
    }

    fn comp_cntr(&mut self, id: CompCntrId) -> Result<&mut CompCntr> {
        match self.common.objects.comp_cntrs.get_mut(id.index()) {
            Some(cntr) => Ok(cntr),
            None => refuse!(Invalid, "there is no completion counter {}", id.handle()),
        }
    }
}

impl Common {
    /// Counts an operation of a QP that ended.
    #[inline]
    pub(super) fn count_ended(&mut self, cntrs: &QpCntrs, op: CompCntrOps, ended: Ended) {
        let cntr = cntrs.of(op).and_then(|id| self.objects.comp_cntrs.get_mut(id.index()));
        if let Some(cntr) = cntr {
            cntr.count(ended);
        }
    }
}
