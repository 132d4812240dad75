//! Completion counters: how many operations ended well, and how many in error, without a completion
//! for each (`ibv_create_comp_cntr(3)`, `ibv_qp_attach_comp_cntr(3)`).
//!
//! A peer of this host may carry out READs and WRITEs here without this engine, which could not
//! count them. So a QP with a counter for what its peer does is not open to that
//! ([`QpCntrs::only_here`]).

use iba::{Access, CompCntrOps, QpState};
use transport::Ended;

use super::Engine;
use super::core::Core;
use crate::ids::{CompCntrId, CtxId, QpId};
use crate::refusal::{Result, refuse};

/// What a counter adds up of operations that end well. Those in error it always counts one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "ibv_comp_cntr_type")]
#[expect(clippy::exhaustive_enums, reason = "libibverbs has two")]
pub enum CompCntrType {
    /// Work requests.
    Wrs,
    /// Their bytes, as `byte_len` of a completion has them.
    Bytes,
}

/// Which of a counter's two values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "a counter has two values")]
pub enum CompCntrEntry {
    /// Of what ended well.
    Comp,
    /// Of what ended in error.
    Err,
}

/// A completion counter.
#[derive(Debug)]
pub(crate) struct CompCntr {
    pub(crate) ctx: CtxId,
    kind: CompCntrType,
    comp: u64,
    err: u64,
    /// For how many sets of operations it is attached.
    uses: u32,
}

impl CompCntr {
    fn value(&mut self, entry: CompCntrEntry) -> &mut u64 {
        match entry {
            CompCntrEntry::Comp => &mut self.comp,
            CompCntrEntry::Err => &mut self.err,
        }
    }
}

/// The counters of one QP, each for operations that no other of them counts.
#[derive(Clone, Debug, Default)]
pub(crate) struct QpCntrs(Vec<(CompCntrOps, CompCntrId)>);

impl QpCntrs {
    fn ops(&self) -> CompCntrOps {
        self.0.iter().map(|(ops, _)| *ops).collect()
    }

    /// Rights of a peer that only this engine can serve, since it counts them.
    pub(crate) fn only_here(&self) -> Access {
        let ops = self.ops();
        let mut rights = Access::empty();
        rights.set(Access::REMOTE_READ, ops.contains(CompCntrOps::REMOTE_RDMA_READ));
        rights.set(Access::REMOTE_WRITE, ops.contains(CompCntrOps::REMOTE_RDMA_WRITE));
        rights
    }
}

impl Engine {
    /// Creates a counter at zero.
    ///
    /// # Errors
    ///
    /// [`Kind::NoMemory`](crate::Kind::NoMemory) when the device has
    /// [`max_comp_cntr`](crate::DeviceAttr::max_comp_cntr) of them.
    #[doc(alias = "ibv_create_comp_cntr")]
    pub fn create_comp_cntr(&mut self, ctx: CtxId, kind: CompCntrType) -> Result<CompCntrId> {
        let max = self.core.attr.max_comp_cntr;
        if self.core.comp_cntrs.len() >= max as usize {
            refuse!(NoMemory, "create_comp_cntr: max_comp_cntr is {max}");
        }
        let cntr = CompCntr { ctx, kind, comp: 0, err: 0, uses: 0 };
        Ok(self.core.comp_cntrs.insert(cntr).into())
    }

    /// Destroys a counter that is attached to no QP.
    #[doc(alias = "ibv_destroy_comp_cntr")]
    pub fn destroy_comp_cntr(&mut self, id: CompCntrId) -> Result<()> {
        if self.failure().is_some() {
            return Ok(());
        }
        let uses = self.comp_cntr(id)?.uses;
        if uses > 0 {
            refuse!(
                Busy,
                "destroy_comp_cntr: it is attached to {uses} QPs, and detached by destroying those"
            );
        }
        self.core.comp_cntrs.remove(id.index());
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

    /// A value. [`Hca::poll_any`](crate::Hca::poll_any) first lets it become that of now.
    #[doc(alias = "ibv_read_comp_cntr")]
    #[doc(alias = "ibv_read_err_comp_cntr")]
    pub fn read_comp_cntr(&mut self, id: CompCntrId, entry: CompCntrEntry) -> Result<u64> {
        Ok(*self.comp_cntr(id)?.value(entry))
    }

    /// Has a counter count operations of a QP that nobody else counts, from now until the QP is
    /// destroyed. The checks come in the order of the kernel's `QP_ATTACH_COMP_CNTR`.
    #[doc(alias = "ibv_qp_attach_comp_cntr")]
    pub fn attach_comp_cntr(&mut self, qp: QpId, id: CompCntrId, ops: CompCntrOps) -> Result<()> {
        let unknown = ops.difference(CompCntrOps::KNOWN);
        if !unknown.is_empty() {
            refuse!(
                NotSupported,
                "attach_comp_cntr: there are no operations {:#x}",
                unknown.bits()
            );
        }
        if ops.is_empty() {
            refuse!(Invalid, "attach_comp_cntr: for no operation at all");
        }
        let ctx = self.comp_cntr(id)?.ctx;
        let Some(entry) = self.qps.get_mut(qp) else {
            refuse!(Invalid, "there is no QP {}", qp.handle());
        };
        if entry.facts.ctx != ctx {
            refuse!(Invalid, "attach_comp_cntr: the counter is of another context than the QP");
        }
        let taken = entry.facts.cntrs.ops().intersection(ops);
        if !taken.is_empty() {
            refuse!(
                Busy,
                "attach_comp_cntr: another counter of the QP counts operations {:#x}",
                taken.bits()
            );
        }
        let state = entry.qp.state();
        if !matches!(state, QpState::Reset | QpState::Init) {
            refuse!(Invalid, "attach_comp_cntr: the QP is in {state:?}, and not in RESET or INIT");
        }
        entry.facts.cntrs.0.push((ops, id));
        self.comp_cntr(id)?.uses += 1;
        Ok(())
    }

    /// Takes the counters off a QP that goes away.
    pub(crate) fn detach_comp_cntrs(&mut self, cntrs: &QpCntrs) {
        for (_, id) in &cntrs.0 {
            if let Some(cntr) = self.core.comp_cntrs.get_mut(id.index()) {
                cntr.uses -= 1;
            }
        }
    }

    fn comp_cntr(&mut self, id: CompCntrId) -> Result<&mut CompCntr> {
        match self.core.comp_cntrs.get_mut(id.index()) {
            Some(cntr) => Ok(cntr),
            None => refuse!(Invalid, "there is no completion counter {}", id.handle()),
        }
    }
}

impl Core {
    /// Counts an operation of a QP that ended.
    #[inline]
    pub(crate) fn count_ended(&mut self, cntrs: &QpCntrs, op: CompCntrOps, ended: Ended) {
        let Some((_, id)) = cntrs.0.iter().find(|(ops, _)| ops.contains(op)) else { return };
        let Some(cntr) = self.comp_cntrs.get_mut(id.index()) else { return };
        let (value, amount) = match (ended, cntr.kind) {
            (Ended::InError, _) => (&mut cntr.err, 1),
            (Ended::Well { .. }, CompCntrType::Wrs) => (&mut cntr.comp, 1),
            (Ended::Well { bytes }, CompCntrType::Bytes) => (&mut cntr.comp, bytes.into()),
        };
        *value = value.wrapping_add(amount);
    }
}
