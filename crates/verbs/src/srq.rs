//! Shared receive queues.

use std::sync::Arc;

use device::ids::{PdId, SrqId};
use iba::Srqn;
use sysverbs::QueueId;
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
    /// What events name it by.
    id: QueueId,
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
        let (arm, id) = match self.arm() {
            Arm::Soft(on) => {
                let id = QueueId::new();
                let srq = on.alive()?.create_srq(on.id, max_wr, max_sge, 0, id.value())?;
                (Arm::Soft(on.with(srq)), id)
            }
            Arm::Hard(pd) => {
                let srq = pd.create_srq(max_wr, max_sge).map_err(refused)?;
                let id = srq.id();
                (Arm::Hard(srq), id)
            }
        };
        Ok(Srq(Arc::new(Shared { arm, id, xrc: None, pd: self.clone() })))
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
        let (arm, id) = match self.arm() {
            Arm::Soft(on) => {
                let (srq, id) = create_soft_xrc(on, xrcd, cq, max_wr, max_sge)?;
                (Arm::Soft(srq), id)
            }
            Arm::Hard(pd) => {
                let other = || other_device(CALL, "XRC domain");
                let domain = xrcd.arm().same_hard().ok_or_else(other)?;
                let cq = cq.hard().ok_or_else(other)?;
                let srq = pd.create_xrc_srq(domain, cq, max_wr, max_sge).map_err(refused)?;
                let id = srq.id();
                (Arm::Hard(srq), id)
            }
        };
        let xrc = Some((xrcd.clone(), cq.clone()));
        Ok(Srq(Arc::new(Shared { arm, id, xrc, pd: self.clone() })))
    }
}

fn create_soft_xrc(
    on: &On<PdId>,
    xrcd: &Xrcd,
    cq: &Cq,
    max_wr: u32,
    max_sge: u32,
) -> Result<(On<SrqId>, QueueId)> {
    let other = || other_device("create_srq_ex", "XRC domain");
    let (domain, cq) =
        (xrcd.arm().same_soft().ok_or_else(other)?.id, cq.soft_id().ok_or_else(other)?);
    let mut engine = on.alive()?;
    let id = QueueId::new();
    let srq = engine.create_srq(on.id, max_wr, max_sge, 0, id.value())?;
    if let Err(refusal) = engine.make_srq_xrc(srq, domain, cq) {
        // Nobody has it yet.
        let _ = engine.destroy_srq(srq);
        return Err(refusal);
    }
    drop(engine);
    Ok((on.with(srq), id))
}

impl Srq {
    /// The protection domain it is in.
    pub fn pd(&self) -> &Pd {
        &self.0.pd
    }

    pub(crate) fn in_arm(&self) -> &Arm<On<SrqId>, sysverbs::Srq> {
        &self.0.arm
    }

    pub(crate) fn queue_id(&self) -> QueueId {
        self.0.id
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

    /// Asks for one asynchronous event,
    /// [`EventType::SrqLimitReached`](crate::EventType::SrqLimitReached), when fewer than `limit`
    /// receives are left. It is raised when a receive is taken; a NIC may raise it at once if there
    /// are fewer already. After the event the queue must be armed again. A limit of 0 disarms it.
    ///
    /// # Errors
    ///
    /// [`Kind::Invalid`] for a limit that is larger than the queue.
    #[doc(alias("ibv_modify_srq", "IBV_SRQ_LIMIT", "srq_limit"))]
    pub fn arm(&self, limit: u32) -> Result<()> {
        match &self.0.arm {
            Arm::Soft(on) => on.alive()?.modify_srq(on.id, None, Some(limit)),
            Arm::Hard(srq) => srq.arm(limit).map_err(refused),
        }
    }

    /// Gives it room for `max_wr` receives. What is posted stays.
    ///
    /// # Errors
    ///
    /// [`Kind::Invalid`] if more are posted, if the device has no such queue, or if a library's NIC
    /// cannot resize any; otherwise the device's.
    #[doc(alias("ibv_modify_srq", "IBV_SRQ_MAX_WR"))]
    pub fn resize(&self, max_wr: u32) -> Result<()> {
        match &self.0.arm {
            Arm::Soft(on) => on.alive()?.modify_srq(on.id, Some(max_wr), None),
            Arm::Hard(srq) => srq.resize(max_wr).map_err(refused),
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
