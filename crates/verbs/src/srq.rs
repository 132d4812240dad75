//! Shared receive queues.

use std::sync::Arc;

use device::ids::{PdId, SrqId};
use iba::Srqn;
use transport::PostError;

use crate::arm::{Arm, On, other_device, refused};
use crate::post::receive;
use crate::{Cq, Kind, Pd, Refusal, Result, Slice, Xrcd};

/// A shared receive queue. Clones are the same one.
#[derive(Clone, Debug)]
#[doc(alias = "ibv_srq")]
pub struct Srq(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    arm: Arm<On<SrqId>, sysverbs::Srq>,
    /// Of an XRC SRQ: its domain, and where its receives complete.
    xrc: Option<(Xrcd, Cq)>,
    pd: Pd,
}

impl Drop for Shared {
    fn drop(&mut self) {
        if let Arm::Soft(on) = &self.arm {
            // Every QP that receives from it holds it, so none is left.
            let _ = on.lock().destroy_srq(on.id);
        }
    }
}

impl Pd {
    /// Creates a shared receive queue of `max_wr` requests with `max_sge` elements each, for QPs
    /// that are created with it ([`QpSpec::srq`](crate::QpSpec::srq)).
    #[doc(alias = "ibv_create_srq")]
    pub fn create_srq(&self, max_wr: u32, max_sge: u32) -> Result<Srq> {
        let arm = match self.arm() {
            Arm::Soft(on) => {
                let id = on.alive()?.create_srq(on.id, max_wr, max_sge, 0, 0)?;
                Arm::Soft(on.with(id))
            }
            Arm::Hard(pd) => Arm::Hard(pd.create_srq(max_wr, max_sge).map_err(refused)?),
        };
        Ok(Srq(Arc::new(Shared { arm, xrc: None, pd: self.clone() })))
    }

    /// Creates a shared receive queue in an XRC domain. Requests name it
    /// ([`SendRequest::to_srq`](crate::SendRequest::to_srq)), and its receives complete on `cq`.
    ///
    /// # Errors
    ///
    /// [`Kind::Invalid`] if the domain or the queue is of another device.
    #[doc(alias("ibv_create_srq_ex", "IBV_SRQT_XRC"))]
    pub fn create_xrc_srq(&self, xrcd: &Xrcd, cq: &Cq, max_wr: u32, max_sge: u32) -> Result<Srq> {
        const CALL: &str = "create_srq_ex";
        self.context().check_same(xrcd.context(), CALL, "XRC domain")?;
        self.context().check_same(cq.context(), CALL, "queue for receives")?;
        let arm = match self.arm() {
            Arm::Soft(on) => Arm::Soft(create_soft_xrc(on, xrcd, cq, max_wr, max_sge)?),
            Arm::Hard(pd) => {
                let other = || other_device(CALL, "XRC domain");
                let domain = xrcd.arm().same_hard().ok_or_else(other)?;
                let cq = cq.hard().ok_or_else(other)?;
                Arm::Hard(pd.create_xrc_srq(domain, cq, max_wr, max_sge).map_err(refused)?)
            }
        };
        let xrc = Some((xrcd.clone(), cq.clone()));
        Ok(Srq(Arc::new(Shared { arm, xrc, pd: self.clone() })))
    }
}

fn create_soft_xrc(
    on: &On<PdId>,
    xrcd: &Xrcd,
    cq: &Cq,
    max_wr: u32,
    max_sge: u32,
) -> Result<On<SrqId>> {
    let other = || other_device("create_srq_ex", "XRC domain");
    let (domain, cq) =
        (xrcd.arm().same_soft().ok_or_else(other)?.id, cq.soft_id().ok_or_else(other)?);
    let mut engine = on.alive()?;
    let id = engine.create_srq(on.id, max_wr, max_sge, 0, 0)?;
    if let Err(refusal) = engine.make_srq_xrc(id, domain, cq) {
        // Nobody has it yet.
        let _ = engine.destroy_srq(id);
        return Err(refusal);
    }
    drop(engine);
    Ok(on.with(id))
}

impl Srq {
    /// The protection domain it is in.
    pub fn pd(&self) -> &Pd {
        &self.0.pd
    }

    pub(crate) fn arm(&self) -> &Arm<On<SrqId>, sysverbs::Srq> {
        &self.0.arm
    }

    /// Whether requests name it, and not QPs.
    pub(crate) fn is_xrc(&self) -> bool {
        self.0.xrc.is_some()
    }

    /// The number by which requests name a queue of an XRC domain.
    ///
    /// # Errors
    ///
    /// [`Kind::Invalid`] for any other queue.
    #[doc(alias = "ibv_get_srq_num")]
    pub fn number(&self) -> Result<Srqn> {
        if !self.is_xrc() {
            return Err(Refusal::new(Kind::Invalid, "get_srq_num: the queue is not an XRC SRQ"));
        }
        match &self.0.arm {
            Arm::Soft(on) => on.alive()?.srq_number(on.id).map(Srqn::new),
            Arm::Hard(srq) => srq.number().map_err(refused),
        }
    }

    /// Posts a receive into `local`.
    ///
    /// # Errors
    ///
    /// [`PostError::Full`] if the queue has no more room, or what it cannot take.
    #[doc(alias = "ibv_post_srq_recv")]
    pub fn post_recv(&self, wr_id: u64, local: &[Slice<'_>]) -> std::result::Result<(), PostError> {
        let wr = receive(wr_id, local, &self.0.pd)?;
        match &self.0.arm {
            Arm::Soft(on) => on.lock_to_post().post_srq_recv(on.id, wr),
            Arm::Hard(srq) => srq.post_recv(&wr),
        }
    }
}
