//! Completion counters: how many operations succeeded, and how many failed, without a completion
//! for each (`ibv_create_comp_cntr(3)`, `ibv_qp_attach_comp_cntr(3)`).
//!
//! A peer of this host may carry out READs and WRITEs here without this engine, which could not
//! count them. So a QP with a counter for operations of its peer does not allow that
//! ([`QpCntrs::only_here`]).

use iba::{Access, CompCntrOps};
use transport::Ended;

use super::charges::Charge;
use super::uses::{Use, Uses};
use crate::ids::{CompCntrId, CtxId};

/// What a counter adds up for operations that succeed. It always counts errors one by one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "ibv_comp_cntr_type")]
#[expect(clippy::exhaustive_enums, reason = "libibverbs has two")]
pub enum CompCntrType {
    /// Work requests.
    Wrs,
    /// Their bytes, as in `byte_len` of a completion.
    Bytes,
}

/// Which of a counter's two values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "a counter has two values")]
pub enum CompCntrEntry {
    /// For operations that succeeded.
    Comp,
    /// For operations that failed.
    Err,
}

/// A completion counter.
#[derive(Debug)]
pub(crate) struct CompCntr {
    pub(crate) ctx: CtxId,
    kind: CompCntrType,
    comp: u64,
    err: u64,
    /// The sets of operations that it is attached for.
    pub(crate) uses: Uses,
    _charge: Charge,
}

impl CompCntr {
    /// A counter at zero.
    pub(crate) fn new(ctx: CtxId, kind: CompCntrType, charge: Charge) -> Self {
        Self { ctx, kind, comp: 0, err: 0, uses: Uses::default(), _charge: charge }
    }

    /// Counts an operation that ended.
    #[inline]
    pub(crate) fn count(&mut self, ended: Ended) {
        let (value, amount) = match (ended, self.kind) {
            (Ended::InError, _) => (&mut self.err, 1),
            (Ended::Well { .. }, CompCntrType::Wrs) => (&mut self.comp, 1),
            (Ended::Well { bytes }, CompCntrType::Bytes) => (&mut self.comp, bytes.into()),
        };
        *value = value.wrapping_add(amount);
    }

    pub(crate) fn value(&mut self, entry: CompCntrEntry) -> &mut u64 {
        match entry {
            CompCntrEntry::Comp => &mut self.comp,
            CompCntrEntry::Err => &mut self.err,
        }
    }
}

/// The counters of one QP, each for operations that no other one counts.
#[derive(Clone, Debug, Default)]
pub(crate) struct QpCntrs(Vec<(CompCntrOps, CompCntrId, Use)>);

impl QpCntrs {
    /// Adds a counter for operations that no other one counts.
    pub(crate) fn attach(&mut self, ops: CompCntrOps, id: CompCntrId, held: Use) {
        self.0.push((ops, id, held));
    }

    /// The counter of an operation.
    #[inline]
    pub(crate) fn of(&self, op: CompCntrOps) -> Option<CompCntrId> {
        self.0.iter().find(|(ops, ..)| ops.contains(op)).map(|(_, id, _)| *id)
    }

    /// The operations that are counted.
    pub(crate) fn ops(&self) -> CompCntrOps {
        self.0.iter().map(|(ops, ..)| *ops).collect()
    }

    /// Rights of a peer that only this engine may serve, since it counts their use.
    pub(crate) fn only_here(&self) -> Access {
        let ops = self.ops();
        let mut rights = Access::empty();
        rights.set(Access::REMOTE_READ, ops.contains(CompCntrOps::REMOTE_RDMA_READ));
        rights.set(Access::REMOTE_WRITE, ops.contains(CompCntrOps::REMOTE_RDMA_WRITE));
        rights
    }
}
