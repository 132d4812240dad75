//! Queue pairs, shared receive queues and address handles.

use std::ffi::c_void;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use device::ids::{PdId, QpId, SrqId};
use iba::{Access, AttrMask, Av, CompCntrOps, Gid, Psn, QKey, QpAttr, QpCap, QpState, QpType, Qpn};
pub use transport::PostError;
use transport::wr::RecvWr;

use crate::arm::{Arm, On, other_device, refused};
use crate::{
    CompCntr, ConnectOptions, Context, Cq, Endpoint, Kind, Pd, Refusal, Result, SendRequest, Slice,
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

/// How far the sequence numbers of two connections of a QP are apart, at least.
const FURTHER: u32 = 1 << 22;

/// The key of datagram QPs that [`Qp::to_rts`] sets up.
pub const DEFAULT_QKEY: u32 = 0x1111_1111;

impl Pd {
    /// Creates a QP, in RESET.
    #[doc(alias = "ibv_create_qp")]
    pub fn create_qp(&self, spec: &QpSpec) -> Result<Qp> {
        Qp::new(self, spec)
    }

    /// Creates a shared receive queue of `max_wr` requests with `max_sge` elements each.
    #[doc(alias = "ibv_create_srq")]
    pub fn create_srq(&self, max_wr: u32, max_sge: u32) -> Result<Srq> {
        Srq::new(self, max_wr, max_sge)
    }
}

impl Qp {
    pub(crate) fn new(pd: &Pd, spec: &QpSpec) -> Result<Self> {
        let same = |other: &Context, object| pd.context().check_same(other, "create_qp", object);
        same(spec.send_cq.context(), "queue for sends")?;
        same(spec.recv_cq.context(), "queue for receives")?;
        spec.srq.as_ref().map_or(Ok(()), |srq| same(srq.0.pd.context(), "SRQ"))?;
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
        qp.to_init()?;
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

    pub(crate) fn spec(&self) -> &QpSpec {
        &self.0.spec
    }

    /// Where a peer reaches it, at the port's [default GID](Context::default_gid).
    ///
    /// # Errors
    ///
    /// [`Kind::NotFound`] if the port has none.
    pub fn endpoint(&self) -> Result<Endpoint> {
        let Some(first) = self.0.pd.context().default_gid() else {
            return Err(Refusal::new(Kind::NotFound, "endpoint: the port has no GID"));
        };
        Ok(Endpoint { gid: first.gid, qpn: self.0.qpn, psn: self.psn() })
    }

    /// Changes state or attributes, as selected by the mask.
    #[doc(alias = "ibv_modify_qp")]
    pub fn modify(&self, attr: &QpAttr, mask: AttrMask) -> Result<()> {
        match &self.0.arm {
            Arm::Soft(on) => on.hca.modify_qp(on.id, attr, mask),
            Arm::Hard(qp) => qp.modify(attr, mask).map_err(refused),
        }
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
        self.to_init()
    }

    /// The first sequence number that it sends.
    fn psn(&self) -> Psn {
        Psn::new(self.0.psn.load(Ordering::Relaxed))
    }

    fn to_init(&self) -> Result<()> {
        let attr = QpAttr {
            state: QpState::Init,
            port_num: 1,
            access_flags: self.0.spec.access,
            qkey: QKey(DEFAULT_QKEY),
            ..QpAttr::default()
        };
        let own =
            if self.0.spec.qp_type == QpType::Ud { AttrMask::QKEY } else { AttrMask::ACCESS_FLAGS };
        self.modify(&attr, AttrMask::STATE | AttrMask::PKEY_INDEX | AttrMask::PORT | own)
    }

    /// Where a peer reaches it by another GID of the port's table.
    ///
    /// # Errors
    ///
    /// [`Kind::NotFound`] if there is none at this index.
    pub fn endpoint_at(&self, gid_index: u8) -> Result<Endpoint> {
        let gids = self.0.pd.context().gids();
        let Some(found) = gids.iter().find(|gid| gid.index == u32::from(gid_index)) else {
            let what = format!("endpoint: the port has no GID of index {gid_index}");
            return Err(Refusal::new(Kind::NotFound, what));
        };
        Ok(Endpoint { gid: found.gid, qpn: self.0.qpn, psn: self.psn() })
    }

    /// Connects an RC or UC QP to its peer, as [`ConnectOptions::default`] says, and makes it ready
    /// to send. Both sides call this, in either order.
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
        use AttrMask as A;
        let context = self.0.pd.context();
        // The GID that `endpoint` gives the peer.
        let usual = context.av_to(peer.gid);
        let reliable = self.0.spec.qp_type == QpType::Rc;
        let mut attr = QpAttr {
            state: QpState::Rtr,
            path_mtu: options.mtu.unwrap_or_else(|| context.port_attr().active_mtu),
            dest_qpn: peer.qpn,
            rq_psn: peer.psn,
            av: Av {
                sgid_index: options.gid_index.unwrap_or(usual.sgid_index),
                hop_limit: options.hop_limit,
                traffic_class: options.traffic_class,
                sl: options.service_level,
                ..usual
            },
            max_dest_rd_atomic: options.responder_resources,
            max_rd_atomic: options.initiator_depth,
            min_rnr_timer: options.min_rnr_timer,
            timeout: options.timeout,
            retry_cnt: options.retry_count,
            rnr_retry: options.rnr_retry_count,
            sq_psn: self.psn(),
            ..QpAttr::default()
        };
        let mut mask = A::STATE | A::AV | A::PATH_MTU | A::DEST_QPN | A::RQ_PSN;
        if reliable {
            mask |= A::MAX_DEST_RD_ATOMIC | A::MIN_RNR_TIMER;
        }
        self.modify(&attr, mask)?;
        attr.state = QpState::Rts;
        mask = A::STATE | A::SQ_PSN;
        if reliable {
            mask |= A::TIMEOUT | A::RETRY_CNT | A::RNR_RETRY | A::MAX_QP_RD_ATOMIC;
        }
        self.modify(&attr, mask)
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
        let on = self.0.arm.soft("attach_comp_cntr")?;
        on.alive()?.attach_comp_cntr(on.id, cntr.id(), ops)?;
        held.push(cntr.clone());
        Ok(())
    }

    /// Makes a datagram QP ready to send and receive.
    pub fn to_rts(&self) -> Result<()> {
        let mut attr = QpAttr { state: QpState::Rtr, sq_psn: self.psn(), ..QpAttr::default() };
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
    #[doc(alias = "ibv_post_send")]
    pub fn post_send(&self, request: &SendRequest) -> std::result::Result<(), PostError> {
        let wr = request.check(self.0.pd.context())?;
        match &self.0.arm {
            Arm::Soft(on) => on.lock().post_send(on.id, wr.clone()),
            Arm::Hard(qp) => {
                let (ah, window) = request.hard();
                qp.post_send(wr, ah, window)
            }
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

    /// [`Qp::post_send`] for a request that nobody needs any more.
    pub(crate) fn post(&self, request: SendRequest) -> std::result::Result<(), PostError> {
        request.check(self.0.pd.context())?;
        match &self.0.arm {
            Arm::Soft(on) => on.lock().post_send(on.id, request.into_wr()),
            Arm::Hard(_) => self.post_send(&request),
        }
    }

    /// Posts a receive into `local`.
    #[doc(alias = "ibv_post_recv")]
    pub fn post_recv(&self, wr_id: u64, local: &[Slice]) -> std::result::Result<(), PostError> {
        let wr = RecvWr { wr_id, sges: local.iter().map(|slice| slice.0).collect() };
        match &self.0.arm {
            Arm::Soft(on) => on.lock().post_recv(on.id, wr),
            Arm::Hard(qp) => qp.post_recv(&wr),
        }
    }
}

/// A shared receive queue. Clones are the same one.
#[derive(Clone, Debug)]
#[doc(alias = "ibv_srq")]
pub struct Srq(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    arm: Arm<On<SrqId>, sysverbs::Srq>,
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

impl Srq {
    fn new(pd: &Pd, max_wr: u32, max_sge: u32) -> Result<Self> {
        let arm = match pd.arm() {
            Arm::Soft(on) => {
                let id = on.alive()?.create_srq(on.id, max_wr, max_sge, 0, 0)?;
                Arm::Soft(on.with(id))
            }
            Arm::Hard(pd) => Arm::Hard(pd.create_srq(max_wr, max_sge).map_err(refused)?),
        };
        Ok(Self(Arc::new(Shared { arm, pd: pd.clone() })))
    }

    /// Posts a receive into `local`.
    #[doc(alias = "ibv_post_srq_recv")]
    pub fn post_recv(&self, wr_id: u64, local: &[Slice]) -> Result<()> {
        let wr = RecvWr { wr_id, sges: local.iter().map(|slice| slice.0).collect() };
        match &self.0.arm {
            Arm::Soft(on) => on.lock().post_srq_recv(on.id, wr),
            Arm::Hard(srq) => srq.post_recv(&wr).map_err(|error| {
                let kind = match error {
                    PostError::Full(_) => Kind::NoMemory,
                    _ => Kind::Invalid,
                };
                Refusal::new(kind, format!("post_srq_recv: {error}"))
            }),
        }
    }
}

fn create_soft(on: &On<PdId>, spec: &QpSpec) -> Result<(On<QpId>, Qpn)> {
    let other = || other_device("create_qp", "queue");
    let srq = |srq: &Srq| srq.0.arm.same_soft().map(|on| on.id).ok_or_else(other);
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
    let srq = |srq: &Srq| srq.0.arm.same_hard().cloned().ok_or_else(other);
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
