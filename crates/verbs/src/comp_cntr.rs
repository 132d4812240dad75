//! Completion counters.

use std::sync::Arc;

use device::ids::CompCntrId;
use device::{CompCntrEntry, CompCntrType};

use crate::arm::{Arm, On, refused};
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
    arm: Arm<On<CompCntrId>, sysverbs::CompCntr>,
    context: Context,
}

impl Drop for Counter {
    fn drop(&mut self) {
        if let Arm::Soft(on) = &self.arm {
            // Every QP that it is attached to holds it, so none is left.
            let _ = on.lock().destroy_comp_cntr(on.id);
        }
    }
}

impl Context {
    /// Creates a completion counter at zero.
    ///
    /// # Errors
    ///
    /// [`Kind::NotSupported`](crate::Kind::NotSupported) if the NIC has none, or its library, which
    /// needs the symbols of IBVERBS_1.18.
    #[doc(alias = "ibv_create_comp_cntr")]
    pub fn create_comp_cntr(&self, kind: CompCntrType) -> Result<CompCntr> {
        CompCntr::new(self, kind)
    }
}

impl CompCntr {
    pub(crate) fn new(context: &Context, kind: CompCntrType) -> Result<Self> {
        let arm = match context.arm() {
            Arm::Soft(soft) => {
                let id = soft.alive()?.create_comp_cntr(soft.id, kind)?;
                Arm::Soft(soft.with(id))
            }
            Arm::Hard(hard) => {
                let of_bytes = kind == CompCntrType::Bytes;
                Arm::Hard(hard.create_comp_cntr(of_bytes).map_err(refused)?)
            }
        };
        Ok(Self(Arc::new(Counter { arm, context: context.clone() })))
    }

    pub(crate) fn context(&self) -> &Context {
        &self.0.context
    }

    pub(crate) fn arm(&self) -> &Arm<On<CompCntrId>, sysverbs::CompCntr> {
        &self.0.arm
    }

    /// The current value. Reading makes progress, so a program may repeat it until a value is
    /// reached.
    #[doc(alias = "ibv_read_comp_cntr")]
    #[doc(alias = "ibv_read_err_comp_cntr")]
    pub fn read(&self, entry: CompCntrEntry) -> Result<u64> {
        match self.arm() {
            Arm::Soft(on) => {
                drop(on.alive()?);
                on.hca.poll_any().read_comp_cntr(on.id, entry)
            }
            Arm::Hard(cntr) => cntr.read(is_err(entry)).map_err(refused),
        }
    }

    /// Sets a value.
    #[doc(alias = "ibv_set_comp_cntr")]
    #[doc(alias = "ibv_set_err_comp_cntr")]
    pub fn set(&self, entry: CompCntrEntry, value: u64) -> Result<()> {
        match self.arm() {
            Arm::Soft(on) => on.alive()?.set_comp_cntr(on.id, entry, value),
            Arm::Hard(cntr) => cntr.set(is_err(entry), value).map_err(refused),
        }
    }

    /// Adds to a value, which wraps to zero after 2^64 - 1.
    #[doc(alias = "ibv_inc_comp_cntr")]
    #[doc(alias = "ibv_inc_err_comp_cntr")]
    pub fn inc(&self, entry: CompCntrEntry, amount: u64) -> Result<()> {
        match self.arm() {
            Arm::Soft(on) => on.alive()?.inc_comp_cntr(on.id, entry, amount),
            Arm::Hard(cntr) => cntr.inc(is_err(entry), amount).map_err(refused),
        }
    }
}

fn is_err(entry: CompCntrEntry) -> bool {
    entry == CompCntrEntry::Err
}
