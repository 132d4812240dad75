//! Completion counters.

use std::sync::Arc;

use device::ids::CompCntrId;
use device::{CompCntrEntry, CompCntrType};

use crate::arm::On;
use crate::{Context, Result};

/// How many operations succeeded and how many failed, without a completion for each. Clones are the
/// same one.
///
/// [`Qp::attach_comp_cntr`](crate::Qp::attach_comp_cntr) determines what it counts; one counter can
/// count for many QPs.
#[derive(Clone, Debug)]
#[doc(alias = "ibv_comp_cntr")]
pub struct CompCntr(Arc<Counter>);

#[derive(Debug)]
struct Counter {
    on: On<CompCntrId>,
    context: Context,
}

impl Drop for Counter {
    fn drop(&mut self) {
        // Every QP that it is attached to holds it, so none is left.
        let _ = self.on.lock().destroy_comp_cntr(self.on.id);
    }
}

impl Context {
    /// Creates a completion counter at zero.
    ///
    /// # Errors
    ///
    /// [`Kind::NotSupported`](crate::Kind::NotSupported) for a NIC of a library.
    #[doc(alias = "ibv_create_comp_cntr")]
    pub fn create_comp_cntr(&self, kind: CompCntrType) -> Result<CompCntr> {
        CompCntr::new(self, kind)
    }
}

impl CompCntr {
    pub(crate) fn new(context: &Context, kind: CompCntrType) -> Result<Self> {
        let soft = context.arm().soft("create_comp_cntr")?;
        let id = soft.alive()?.create_comp_cntr(soft.id, kind)?;
        Ok(Self(Arc::new(Counter { on: soft.with(id), context: context.clone() })))
    }

    pub(crate) fn context(&self) -> &Context {
        &self.0.context
    }

    pub(crate) fn id(&self) -> CompCntrId {
        self.0.on.id
    }

    /// The current value. Reading makes progress, so a program may repeat it until a value is
    /// reached.
    #[doc(alias = "ibv_read_comp_cntr")]
    pub fn read(&self, entry: CompCntrEntry) -> Result<u64> {
        drop(self.0.on.alive()?);
        self.0.on.hca.poll_any().read_comp_cntr(self.0.on.id, entry)
    }

    /// Sets a value.
    #[doc(alias = "ibv_set_comp_cntr")]
    pub fn set(&self, entry: CompCntrEntry, value: u64) -> Result<()> {
        self.0.on.alive()?.set_comp_cntr(self.0.on.id, entry, value)
    }

    /// Adds to a value, which wraps to zero after 2^64 - 1.
    #[doc(alias = "ibv_inc_comp_cntr")]
    pub fn inc(&self, entry: CompCntrEntry, amount: u64) -> Result<()> {
        self.0.on.alive()?.inc_comp_cntr(self.0.on.id, entry, amount)
    }
}
