//! Queue pairs.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use device::ids::{PdId, QpId};
use iba::{Access, AttrMask, CompCntrOps, Gid, Psn, QpAttr, QpCap, QpState, QpType, Qpn};
pub use transport::PostError;
use transport::wr::RecvWr;

use crate::arm::{Arm, On, other_device, refused};
use crate::connect::{self, Connect};
use crate::post::Posting;
use crate::request::Origin;
use crate::{
    CompCntr, ConnectOptions, Context, Cq, Endpoint, Kind, Pd, Refusal, Result, SendRequest, Slice,
    Srq,
};

/// The parameters of a new QP. Start from [`QpSpec::rc`], [`QpSpec::uc`] or [`QpSpec::ud`] and
/// change what differs.
#[derive(Clone, Debug)]
#[doc(alias = "ibv_qp_init_attr")]
#[expect(clippy::exhaustive_structs, reason = "programs change its fields")]
pub struct QpSpec {
    /// The service.
    pub qp_type: QpType,
    /// Where sends complete.
    pub send_cq: Cq,
    /// Where receives complete.
    pub recv_cq: Cq,
    /// The shared receive queue, if the QP has none of its own.
    pub srq: Option<Srq>,
    /// The capacities.
    pub cap: QpCap,
    /// Whether every send completes, flagged or not.
    pub sq_sig_all: bool,
    /// What the peer may do.
    pub access: Access,
}

impl QpSpec {
    /// A reliable connection that completes on `cq`, grants its peer every remote access, and has
    /// room for 128 requests of four elements each way.
    pub fn rc(cq: &Cq) -> Self {
        Self {
            qp_type: QpType::Rc,
            send_cq: cq.clone(),
            recv_cq: cq.clone(),
            srq: None,
            cap: QpCap {
                max_send_wr: 128,
                max_recv_wr: 128,
                max_send_sge: 4,
                max_recv_sge: 4,
                max_inline_data: 64,
            },
            sq_sig_all: false,
            access: Access::LOCAL_WRITE | Access::REMOTE,
        }
    }

    /// The same for an unreliable connection.
    pub fn uc(cq: &Cq) -> Self {
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        Self { qp_type: QpType::Uc, access, ..Self::rc(cq) }
    }

    /// The sending half of an extended reliable connection. Each of its requests names a shared
    /// queue of the peer ([`SendRequest::to_srq`]). It receives nothing:
    /// [`Xrcd::create_recv_qp`](crate::Xrcd::create_recv_qp) makes the other half.
    #[doc(alias = "IBV_QPT_XRC_SEND")]
    pub fn xrc_send(cq: &Cq) -> Self {
        let usual = Self::rc(cq);
        let cap = QpCap { max_recv_wr: 0, max_recv_sge: 0, ..usual.cap };
        Self { qp_type: QpType::XrcSend, access: Access::empty(), cap, ..usual }
    }

    /// The same for datagrams.
    pub fn ud(cq: &Cq) -> Self {
        Self { qp_type: QpType::Ud, access: Access::empty(), ..Self::rc(cq) }
    }
}

/// A queue pair. Clones are the same one.
#[derive(Clone, Debug)]
#[doc(alias = "ibv_qp")]
pub struct Qp(Arc<Pair>);

#[derive(Debug)]
struct Pair {
    arm: Arm<On<QpId>, sysverbs::Qp>,
    qpn: Qpn,
    spec: QpSpec,
    /// The start of its sequence numbers, in the lower 24 bits.
    psn: AtomicU32,
    /// Counters that it is attached to, which it must not outlive.
    cntrs: Mutex<Vec<CompCntr>>,
    pd: Pd,
}

impl Drop for Pair {
    fn drop(&mut self) {
        if let Arm::Soft(on) = &self.arm {
            // Fails only for a QP that does not exist.
            let _ = on.hca.destroy_qp(on.id);
        }
    }
}

impl Connect for Pair {
    fn context(&self) -> &Context {
        self.pd.context()
    }

    fn qp_type(&self) -> QpType {
        self.spec.qp_type
    }

    fn number(&self) -> Qpn {
        self.qpn
    }

    fn psn(&self) -> Psn {
        Psn::new(self.psn.load(Ordering::Relaxed))
    }

    fn modify(&self, attr: &QpAttr, mask: AttrMask) -> Result<()> {
        match &self.arm {
            Arm::Soft(on) => on.hca.modify_qp(on.id, attr, mask),
            Arm::Hard(qp) => qp.modify(attr, mask).map_err(refused),
        }
    }
}

/// How far the sequence numbers of two connections of a QP are apart, at least.
const FURTHER: u32 = 1 << 22;

impl Pd {
    /// Creates a QP, in INIT.
    ///
    /// # Errors
    ///
    /// [`Kind::Invalid`] for queues of another device, an SRQ that the QP cannot have, and an
    /// XRC_RECV QP, which an XRC domain creates; otherwise the device's.
    #[doc(alias = "ibv_create_qp")]
    pub fn create_qp(&self, spec: &QpSpec) -> Result<Qp> {
        Qp::new(self, spec)
    }
}

impl Qp {
    pub(crate) fn new(pd: &Pd, spec: &QpSpec) -> Result<Self> {
        let same = |other: &Context, object| pd.context().check_same(other, "create_qp", object);
        same(spec.send_cq.context(), "queue for sends")?;
        same(spec.recv_cq.context(), "queue for receives")?;
        spec.srq.as_ref().map_or(Ok(()), |srq| same(srq.pd().context(), "SRQ"))?;
        check_type(spec)?;
        let (arm, qpn) = match pd.arm() {
            Arm::Soft(on) => {
                let (on, qpn) = create_soft(on, spec)?;
                (Arm::Soft(on), qpn)
            }
            Arm::Hard(pd) => {
                let qp = create_hard(pd, spec)?;
                let qpn = qp.qpn();
                (Arm::Hard(qp), qpn)
            }
        };
        // Any start is valid; one that differs between QPs reveals mistakes sooner.
        let psn = AtomicU32::new(qpn.value().wrapping_mul(0x9e37_79b1) >> 4);
        let (pd, spec, cntrs) = (pd.clone(), spec.clone(), Mutex::default());
        let pair = Pair { arm, qpn, spec, psn, cntrs, pd };
        let qp = Self(Arc::new(pair));
        connect::to_init(&*qp.0, qp.0.spec.access)?;
        Ok(qp)
    }

    /// Its number.
    pub fn qpn(&self) -> Qpn {
        self.0.qpn
    }

    /// The protection domain it is in.
    pub fn pd(&self) -> &Pd {
        &self.0.pd
    }

    pub(crate) fn arm(&self) -> &Arm<On<QpId>, sysverbs::Qp> {
        &self.0.arm
    }

    pub(crate) fn spec(&self) -> &QpSpec {
        &self.0.spec
    }

    /// Where a peer reaches it, at the port's [default GID](Context::default_gid).
    ///
    /// # Errors
    ///
    /// [`Kind::NotFound`] if the port has none.
    pub fn endpoint(&self) -> Result<Endpoint> {
        connect::endpoint(&*self.0)
    }

    /// Changes state or attributes, as selected by the mask.
    #[doc(alias = "ibv_modify_qp")]
    pub fn modify(&self, attr: &QpAttr, mask: AttrMask) -> Result<()> {
        Connect::modify(&*self.0, attr, mask)
    }

    /// Moves it to the error state in the program's stead, for a reason that
    /// [`soft::explain`](crate::soft::explain) gives.
    pub(crate) fn end(&self, why: &'static str) {
        if let Arm::Soft(on) = &self.0.arm {
            on.lock().note_end(on.id, why);
        }
        // A QP in RESET refuses, and has nothing to flush.
        let attr = QpAttr { state: QpState::Err, ..QpAttr::default() };
        let _ = self.modify(&attr, AttrMask::STATE);
    }

    /// Its state and attributes.
    #[doc(alias = "ibv_query_qp")]
    pub fn query(&self) -> Result<QpAttr> {
        match &self.0.arm {
            Arm::Soft(on) => on.alive()?.query_qp(on.id),
            Arm::Hard(qp) => qp.query().map_err(refused),
        }
    }

    /// Takes the QP back to what it was when it was created, so that it can be connected again, to
    /// the same peer or another. That is the way out of ERR.
    ///
    /// What was posted and has not completed is gone, without a completion; a program that must
    /// know waits for what is flushed in ERR first. Its completions that were not taken may be
    /// gone, too. Its [`endpoint`](Self::endpoint) is another afterwards, with the same number:
    /// packets of the last connection do not fit into the next one. Counters stay.
    ///
    /// # Errors
    ///
    /// Those of [`modify`](Self::modify).
    pub fn reset(&self) -> Result<()> {
        let attr = QpAttr { state: QpState::Reset, ..QpAttr::default() };
        self.modify(&attr, AttrMask::STATE)?;
        // ORDERING: it is a number; the endpoint that a peer gets is read after this.
        self.0.psn.fetch_add(FURTHER, Ordering::Relaxed);
        connect::to_init(&*self.0, self.0.spec.access)
    }

    /// Where a peer reaches it by another GID of the port's table.
    ///
    /// # Errors
    ///
    /// [`Kind::NotFound`] if there is none at this index.
    pub fn endpoint_at(&self, gid_index: u8) -> Result<Endpoint> {
        connect::endpoint_at(&*self.0, gid_index)
    }

    /// Connects a QP that has one peer to it, as [`ConnectOptions::default`] says, and makes it
    /// ready to send. Both sides call this, in either order.
    ///
    /// # Errors
    ///
    /// [`Kind::Invalid`] for a QP of datagrams, or one that is connected already.
    pub fn connect(&self, peer: &Endpoint) -> Result<()> {
        self.connect_with(peer, &ConnectOptions::default())
    }

    /// The same with other parameters.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect), and for parameters that the device refuses.
    pub fn connect_with(&self, peer: &Endpoint, options: &ConnectOptions) -> Result<()> {
        connect::connect(&*self.0, peer, options)
    }

    /// Makes a counter count these operations of the QP, from now until the QP is dropped. Possible
    /// only before the QP is connected.
    ///
    /// # Errors
    ///
    /// [`Kind::Busy`](crate::Kind::Busy) if another counter counts one of them,
    /// [`Kind::Invalid`](crate::Kind::Invalid) for a QP that is connected, a counter of another
    /// context, or no operation.
    #[doc(alias = "ibv_qp_attach_comp_cntr")]
    pub fn attach_comp_cntr(&self, cntr: &CompCntr, ops: CompCntrOps) -> Result<()> {
        self.0.pd.context().check_same(cntr.context(), "attach_comp_cntr", "counter")?;
        let mut held = self.0.cntrs.lock().unwrap_or_else(PoisonError::into_inner);
        match (&self.0.arm, cntr.arm()) {
            (Arm::Soft(on), Arm::Soft(of)) => on.alive()?.attach_comp_cntr(on.id, of.id, ops)?,
            (Arm::Hard(qp), Arm::Hard(of)) => qp.attach_comp_cntr(of, ops).map_err(refused)?,
            _ => return Err(other_device("attach_comp_cntr", "counter")),
        }
        held.push(cntr.clone());
        Ok(())
    }

    /// Makes a datagram QP ready to send and receive.
    pub fn to_rts(&self) -> Result<()> {
        let mut attr = QpAttr { state: QpState::Rtr, sq_psn: self.0.psn(), ..QpAttr::default() };
        self.modify(&attr, AttrMask::STATE)?;
        attr.state = QpState::Rts;
        self.modify(&attr, AttrMask::STATE | AttrMask::SQ_PSN)
    }

    /// Receives datagrams to a group, too ([`Group`](crate::cm::Group)).
    pub(crate) fn attach_mcast(&self, group: Gid) -> Result<()> {
        match &self.0.arm {
            Arm::Soft(on) => on.alive()?.attach_mcast(on.id, group),
            Arm::Hard(qp) => qp.attach_mcast(group).map_err(refused),
        }
    }

    pub(crate) fn detach_mcast(&self, group: Gid) -> Result<()> {
        match &self.0.arm {
            Arm::Soft(on) => on.alive()?.detach_mcast(on.id, group),
            Arm::Hard(qp) => qp.detach_mcast(group).map_err(refused),
        }
    }

    /// Posts a send.
    ///
    /// # Errors
    ///
    /// What the QP cannot do, and [`PostError::Full`] if the queue has no more room.
    #[doc(alias = "ibv_post_send")]
    #[inline]
    pub fn post_send(&self, request: &SendRequest<'_>) -> std::result::Result<(), PostError> {
        self.posting().send(request, self.pd())
    }

    /// Its send queue, for some requests.
    #[inline]
    pub(crate) fn posting(&self) -> Posting<'_> {
        match &self.0.arm {
            Arm::Soft(on) => Posting::Soft(on.lock_to_post(), on.id),
            Arm::Hard(qp) => Posting::Hard(qp),
        }
    }

    /// The library's `struct ibv_qp`, for calls that this crate does not have; `None` for the
    /// software device. It exists as long as this QP.
    pub fn library_qp(&self) -> Option<*mut c_void> {
        match &self.0.arm {
            Arm::Soft(_) => None,
            Arm::Hard(qp) => Some(qp.raw().cast()),
        }
    }

    /// Posts a receive into `local`.
    ///
    /// # Errors
    ///
    /// As for [`post_send`](Self::post_send).
    #[doc(alias = "ibv_post_recv")]
    pub fn post_recv(&self, wr_id: u64, local: &[Slice<'_>]) -> std::result::Result<(), PostError> {
        let fill = |to: &mut RecvWr| {
            to.wr_id = wr_id;
            Origin::put(&mut to.sges, local).check(&self.0.pd)
        };
        match &self.0.arm {
            Arm::Soft(on) => on.lock_to_post().post_recv_with(on.id, fill),
            Arm::Hard(qp) => {
                let mut wr = RecvWr::EMPTY;
                fill(&mut wr)?;
                qp.post_recv(&wr)
            }
        }
    }
}

/// Refuses what no QP is, before a provider is asked.
fn check_type(spec: &QpSpec) -> Result<()> {
    let refused = |what| Err(Refusal::new(Kind::Invalid, format!("create_qp: {what}")));
    match (spec.qp_type, &spec.srq) {
        (QpType::XrcRecv, _) => refused("an XRC domain creates its XRC_RECV QPs"),
        (QpType::XrcSend, Some(_)) => refused("an XRC_SEND QP receives nothing, and has no SRQ"),
        (_, Some(srq)) if srq.is_xrc() => refused("requests name an XRC SRQ, and QPs do not"),
        _ => Ok(()),
    }
}

fn create_soft(on: &On<PdId>, spec: &QpSpec) -> Result<(On<QpId>, Qpn)> {
    let other = || other_device("create_qp", "queue");
    let srq = |srq: &Srq| srq.in_arm().same_soft().map(|on| on.id).ok_or_else(other);
    let (id, qpn) = on.alive()?.create_qp(&device::QpSpec {
        pd: on.id,
        qp_type: spec.qp_type,
        send_cq: spec.send_cq.soft_id().ok_or_else(other)?,
        recv_cq: spec.recv_cq.soft_id().ok_or_else(other)?,
        srq: spec.srq.as_ref().map(srq).transpose()?,
        xrcd: None,
        cap: spec.cap,
        sq_sig_all: spec.sq_sig_all,
        cookie: 0,
    })?;
    Ok((on.with(id), qpn))
}

fn create_hard(pd: &sysverbs::Pd, spec: &QpSpec) -> Result<sysverbs::Qp> {
    let other = || other_device("create_qp", "queue");
    let srq = |srq: &Srq| srq.in_arm().same_hard().cloned().ok_or_else(other);
    let init = sysverbs::QpInit {
        qp_type: spec.qp_type,
        send_cq: spec.send_cq.hard().ok_or_else(other)?.clone(),
        recv_cq: spec.recv_cq.hard().ok_or_else(other)?.clone(),
        srq: spec.srq.as_ref().map(srq).transpose()?,
        cap: spec.cap,
        sq_sig_all: spec.sq_sig_all,
    };
    pd.create_qp(&init).map_err(refused)
}
