//! Queue pairs.

use iba::{AttrMask, Mtu, QpAttr, QpCap, QpState, QpType, Qpn, WcFlags};
use transport::wr::Request;
use transport::wr::{RecvWr, SendWr};
use transport::{Early, PathCaps, PostError, Qp, QpInit, RateLimit};

use super::Engine;
use super::common::Common;
use super::env::QpEnv;
use crate::attr::DeviceAttr;
use crate::carrier::Route;
use crate::carrier::shm::UnderWay;
use crate::carrier::shm::peers::RingPosition;
use crate::config::Preset;
use crate::engine::Turn;
use crate::ids::{CqId, CtxId, PdId, QpId, SrqId, XrcdId};
use crate::memory::mr::Mr;
use crate::objects::EventSource;
use crate::objects::comp_cntr::QpCntrs;
use crate::objects::uses::Use;
use crate::qp::QpContext;
use crate::qp::QpEntry;
use crate::qp::Role;
use crate::refusal::{Result, refuse};
use crate::thresholds::ACK_POLICY;

/// The parameters of a new QP.
#[derive(Clone, Debug)]
#[doc(alias = "ibv_qp_init_attr")]
#[expect(clippy::exhaustive_structs, reason = "callers build it")]
pub struct QpSpec {
    /// The protection domain.
    pub pd: PdId,
    /// The service.
    pub qp_type: QpType,
    /// Where sends complete.
    pub send_cq: CqId,
    /// Where receives complete.
    pub recv_cq: CqId,
    /// The shared receive queue, if the QP has none of its own.
    pub srq: Option<SrqId>,
    /// The XRC domain of an XRC_RECV QP, which has none of the above.
    pub xrcd: Option<XrcdId>,
    /// The capacities.
    pub cap: QpCap,
    /// Whether every send completes, flagged or not.
    pub sq_sig_all: bool,
    /// Returned in events.
    pub cookie: u64,
}

/// A context that is being closed.
#[derive(Debug)]
pub(crate) struct Closing {
    pub(crate) ctx: CtxId,
    pub(crate) mrs: Vec<Mr>,
    pub(crate) under_way: UnderWay,
}

/// Bytes of an element of a request. The space of the elements can hold data instead, as in the
/// work queues of NICs and of rxe: programs that ask for no inline bytes send some all the same
/// (`rdma_xclient`).
const SGE_BYTES: u32 = 16;

impl QpSpec {
    /// An XRC_RECV QP.
    pub fn xrc_target(xrcd: XrcdId, cookie: u64) -> Self {
        Self {
            pd: PdId::NONE,
            qp_type: QpType::XrcRecv,
            send_cq: CqId::NONE,
            recv_cq: CqId::NONE,
            srq: None,
            xrcd: Some(xrcd),
            cap: QpCap::default(),
            sq_sig_all: false,
            cookie,
        }
    }
}

impl Engine {
    /// Creates a QP in the RESET state.
    #[doc(alias = "ibv_create_qp")]
    pub fn create_qp(&mut self, spec: &QpSpec) -> Result<(QpId, Qpn)> {
        self.check_spec(spec)?;
        let ctx = match spec.xrcd {
            Some(xrcd) => self.xrcd(xrcd)?.ctx,
            None => self.pd(spec.pd)?.ctx,
        };
        // Receives of a tag list complete on its own CQ.
        let recv_cq = match spec.srq {
            Some(srq) => self.srq(srq)?.tm.as_ref().map_or(spec.recv_cq, |tm| tm.cq),
            None => spec.recv_cq,
        };
        let mut holds = match spec.xrcd {
            Some(xrcd) => vec![self.xrcd(xrcd)?.uses.take()],
            None => {
                let (send_cq, pd) = (self.cq(spec.send_cq)?.uses.take(), self.pd(spec.pd)?);
                vec![pd.uses.take(), send_cq, self.cq(recv_cq)?.uses.take()]
            }
        };
        if let Some(srq) = spec.srq {
            holds.push(self.srq(srq)?.uses.take());
        }
        let is_raw = spec.qp_type == QpType::RawPacket;
        if is_raw {
            self.open_sender()?;
        }
        let made = self.add_qp(spec, ctx, recv_cq, None, holds);
        if is_raw && made.is_err() {
            self.close_sender();
        }
        made
    }

    /// Adds a QP to the table. It uses the objects in `holds` for as long as it exists.
    pub(super) fn add_qp(
        &mut self,
        spec: &QpSpec,
        ctx: CtxId,
        recv_cq: CqId,
        role: Option<Role>,
        holds: Vec<Use>,
    ) -> Result<(QpId, Qpn)> {
        let charge = self.common.charges.object("create_qp")?;
        let Some((id, qpn)) = self.qps.reserve() else {
            refuse!(NoMemory, "create_qp: max_qp is {}", self.common.nic.attr.max_qp);
        };
        // An XRC_SEND QP has no receive queue, and an XRC_RECV QP takes from many.
        let is_xrc = matches!(spec.qp_type, QpType::XrcSend | QpType::XrcRecv);
        let takes_none = spec.srq.is_some() || is_xrc;
        let cap = spec.cap;
        let mut qp = Qp::new(QpInit {
            qpn,
            qp_type: spec.qp_type,
            sq_sig_all: spec.sq_sig_all,
            cap: QpCap {
                max_send_wr: cap.max_send_wr,
                max_recv_wr: if takes_none { 0 } else { cap.max_recv_wr },
                max_send_sge: cap.max_send_sge,
                max_recv_sge: cap.max_recv_sge,
                max_inline_data: cap.max_inline_data.max(cap.max_send_sge * SGE_BYTES),
            },
            has_srq: takes_none,
        });
        qp.set_congestion_control(self.common.nic.config.ecn);
        let srq = spec.srq.and_then(|srq| self.common.objects.srqs.get(srq.index()));
        let context = QpContext {
            id,
            qpn,
            qp_type: spec.qp_type,
            ctx,
            pd: spec.pd,
            srq_pd: srq.map(|srq| srq.pd),
            has_tags: srq.is_some_and(|srq| srq.tm.is_some()),
            send_cq: spec.send_cq,
            recv_cq,
            srq: spec.srq,
            xrcd: spec.xrcd,
            cookie: spec.cookie,
            cntrs: QpCntrs::default(),
            others: Vec::new(),
            dest_qpn: Qpn::new(0),
            port: 0,
            av: iba::Av::default(),
            path_mtu: self.common.nic.port.active_mtu(),
            route: Route::default(),
            ordinal: self.qps.next_ordinal(),
            wr_id: 0,
            wr_behind: 1,
            ring_position: RingPosition::default(),
            peer_is_behind: false,
            _holds: holds,
            role: role.map(Box::new),
            starved_since: None,
            early: Early::default(),
            _charge: charge,
            has_received: false,
            is_noted: false,
            ended: None,
            // The kernel's rxe sets this flag for every receive, with or without a GRH
            // (rxe_resp.c).
            recv_flags: match self.common.nic.config.preset {
                Preset::Rxe => WcFlags::GRH,
                _ => WcFlags::empty(),
            },
        };
        self.qps.insert(id, QpEntry { qp, context, queued: false, deadline: None });
        Ok((id, qpn))
    }

    fn check_spec(&mut self, spec: &QpSpec) -> Result<()> {
        let attr = &self.common.nic.attr;
        let cap = &spec.cap;
        if cap.max_send_wr > attr.max_qp_wr || cap.max_recv_wr > attr.max_qp_wr {
            refuse!(
                Invalid,
                "create_qp: {} sends and {} receives; max_qp_wr is {}",
                cap.max_send_wr,
                cap.max_recv_wr,
                attr.max_qp_wr
            );
        }
        if cap.max_send_sge > attr.max_sge || cap.max_recv_sge > attr.max_sge {
            refuse!(
                Invalid,
                "create_qp: {} and {} elements; max_sge is {}",
                cap.max_send_sge,
                cap.max_recv_sge,
                attr.max_sge
            );
        }
        if cap.max_inline_data > attr.max_inline {
            refuse!(
                Invalid,
                "create_qp: {} inline bytes; {} are possible",
                cap.max_inline_data,
                attr.max_inline
            );
        }
        if self.qps.len() >= attr.max_qp as usize {
            refuse!(NoMemory, "create_qp: max_qp is {}", attr.max_qp);
        }
        self.check_contexts(spec)?;
        match spec.xrcd {
            Some(xrcd) if spec.qp_type == QpType::XrcRecv => {
                self.xrcd(xrcd)?;
            }
            None if spec.qp_type != QpType::XrcRecv => {
                self.cq(spec.send_cq)?;
                self.cq(spec.recv_cq)?;
            }
            _ => refuse!(Invalid, "create_qp: only an XRC_RECV QP has an XRC domain"),
        }
        if let Some(srq) = spec.srq
            && (spec.qp_type == QpType::XrcSend || self.srq(srq)?.xrc.is_some())
        {
            refuse!(Invalid, "create_qp: an XRC SRQ is named by packets, not by QPs");
        }
        // The queue's own READs are in the QP's send queue (rdma-core,
        // `Documentation/tag_matching.md`).
        if let Some(srq) = spec.srq
            && self.srq(srq)?.tm.is_some()
            && (spec.qp_type != QpType::Rc || spec.cap.max_send_wr > 0)
        {
            refuse!(
                Invalid,
                "create_qp: a {} QP with {} sends; over an SRQ with tag matching it must be RC, without sends",
                spec.qp_type,
                spec.cap.max_send_wr
            );
        }
        Ok(())
    }

    /// Refuses queues of another context than that of the protection domain: the kernel looks them
    /// up in a single file (`uobj_get_obj_read` in `create_qp`).
    fn check_contexts(&mut self, spec: &QpSpec) -> Result<()> {
        if spec.xrcd.is_some() {
            return Ok(());
        }
        let ctx = self.pd(spec.pd)?.ctx;
        let cqs = [self.cq(spec.send_cq)?.ctx, self.cq(spec.recv_cq)?.ctx];
        let srq = spec.srq.map(|srq| self.srq(srq).map(|srq| srq.ctx)).transpose()?;
        if cqs.into_iter().chain(srq).any(|other| other != ctx) {
            refuse!(Invalid, "create_qp: a CQ or the SRQ belongs to another context than the PD");
        }
        Ok(())
    }

    /// See [`crate::Hca::modify_qp`], which waits for what this returns.
    pub(crate) fn modify_qp(
        &mut self,
        id: QpId,
        attr: &QpAttr,
        mask: AttrMask,
    ) -> Result<UnderWay> {
        self.check_attr(attr, mask)?;
        self.carry_out_held();
        if mask.contains(AttrMask::STATE) && matches!(attr.state, QpState::Reset | QpState::Err) {
            self.settle(id);
        }
        let Self { common, qps, .. } = self;
        let Some(entry) = qps.get_mut(id) else {
            refuse!(Invalid, "there is no QP {}", id.handle());
        };
        if entry.context.is_rss() {
            refuse!(
                NotSupported,
                "modify_qp: QP {} spreads frames over work queues; these have states, and the QP has none",
                entry.context.qpn
            );
        }
        let result = entry.qp.modify(&mut QpEnv::new(common, &mut entry.context), attr, mask);
        if let Err(error) = result {
            refuse!(Invalid, "modify_qp: QP {}: {error}", entry.context.qpn);
        }
        let context = &mut entry.context;
        context.follow(&entry.qp.query(), common.nic.port.active_mtu());
        let state = entry.qp.state();
        if !state.receives() {
            context.early = Early::default();
        }
        if state == QpState::Reset {
            common.trace_emptied(context.qpn, "reset", &self.clock);
            context.route = Route::default();
            context.ended = None;
            let (qpn, send, recv) = (context.qpn, context.send_cq, context.recv_cq);
            common.clean_cqs(qpn, send, recv);
        } else if state == QpState::Rtr || mask.contains(AttrMask::AV) {
            if context.qp_type.is_connected() {
                context.route = common.route(&context.av, context.dest_qpn);
                if context.route.is_udp() {
                    common.out.udp.use_it();
                }
                tracing::debug!(
                    target: "peerdma::path",
                    qpn = %context.qpn, peer = %context.dest_qpn, dgid = ?context.av.dgid,
                    route = ?context.route, "{}", context.route.why(common.nic.port.gids.contains(&context.av.dgid))
                );
                if let Some(vf) = context.route.peer() {
                    common.out.shm.prepare(vf);
                }
                if common.out.udp.is_deaf() && context.route.is_udp() {
                    tracing::warn!(
                        target: "peerdma::udp", qpn = %context.qpn,
                        "UDP port {} was taken when the NIC was opened: answers of other hosts arrive if its holder runs \
                         peerdma, but not if it is the kernel's rxe or another program",
                        common.nic.config.udp_port
                    );
                }
            }
            entry.qp.set_path(common.path_caps(context.route, context.path_mtu));
            entry.qp.set_ack_policy(&ACK_POLICY);
        }
        let under_way = self.publish_qp(id);
        self.make_ready(id);
        self.progress(Turn::Call);
        Ok(under_way)
    }

    fn check_attr(&self, attr: &QpAttr, mask: AttrMask) -> Result<()> {
        let ports = self.common.nic.attr.phys_port_cnt;
        if mask.contains(AttrMask::PORT) && !(1..=ports).contains(&attr.port_num.into()) {
            refuse!(Invalid, "modify_qp: port {}; the device has {ports}", attr.port_num);
        }
        if mask.contains(AttrMask::PKEY_INDEX) && attr.pkey_index >= self.common.nic.attr.max_pkeys
        {
            refuse!(Invalid, "modify_qp: partition key index {}", attr.pkey_index);
        }
        // As `mlx5_ib_modify_qp` does for both, and rxe for the first.
        let limits = [
            (
                AttrMask::MAX_QP_RD_ATOMIC,
                attr.max_rd_atomic,
                self.common.nic.attr.max_qp_init_rd_atom,
            ),
            (
                AttrMask::MAX_DEST_RD_ATOMIC,
                attr.max_dest_rd_atomic,
                self.common.nic.attr.max_qp_rd_atom,
            ),
        ];
        for (bit, wanted, limit) in limits {
            if mask.contains(bit) && u32::from(wanted) > limit {
                refuse!(
                    Invalid,
                    "modify_qp: {wanted} READs and atomics at once; the device has {limit}"
                );
            }
        }
        if mask.contains(AttrMask::AV) {
            self.check_av(&attr.av)?;
        }
        if mask.contains(AttrMask::RATE_LIMIT) {
            self.check_rate("modify_qp", attr.rate_limit)?;
        }
        Ok(())
    }

    /// Sets how fast a QP sends, with the shape of its bursts. It must be in RTS, and RC or
    /// RAW_PACKET.
    ///
    /// Refused as [`NotSupported`](crate::Kind::NotSupported) by a NIC that does not pace packets,
    /// otherwise as [`Invalid`](crate::Kind::Invalid).
    #[doc(alias = "ibv_modify_qp_rate_limit")]
    pub fn modify_qp_rate_limit(&mut self, id: QpId, limit: RateLimit) -> Result<()> {
        const WHO: &str = "modify_qp_rate_limit";
        self.check_rate(WHO, limit.kbps)?;
        // As `mlx5_ib_modify_qp` does.
        if limit.kbps == 0 && (limit.max_burst > 0 || limit.typical_packet > 0) {
            refuse!(Invalid, "{WHO}: a burst or packet size without a rate: {limit:?}");
        }
        let Some(entry) = self.qps.get_mut(id).filter(|entry| !entry.context.is_rss()) else {
            refuse!(Invalid, "{WHO}: there is no QP {} that sends", id.handle());
        };
        if let Err(error) = entry.qp.modify_rate_limit(limit) {
            refuse!(Invalid, "{WHO}: QP {}: {error}", entry.context.qpn);
        }
        self.make_ready(id);
        self.progress(Turn::Call);
        Ok(())
    }

    fn check_rate(&self, who: &str, kbps: u32) -> Result<()> {
        let DeviceAttr { min_rate_limit: min, max_rate_limit: max, .. } = self.common.nic.attr;
        if max == 0 {
            refuse!(NotSupported, "{who}: a NIC of this preset does not pace packets");
        }
        if kbps > 0 && !(min..=max).contains(&kbps) {
            refuse!(Invalid, "{who}: {kbps} kbit/s; {min} to {max} are possible");
        }
        Ok(())
    }

    /// Refuses a port that the device does not have.
    pub fn check_port(&self, call: &str, port: u32) -> Result<()> {
        match self.common.nic.attr.phys_port_cnt {
            ports if (1..=ports).contains(&port) => Ok(()),
            1 => refuse!(Invalid, "{call}: port {port}; the device has port 1"),
            ports => refuse!(Invalid, "{call}: port {port}; the device has ports 1 to {ports}"),
        }
    }

    /// Checks that an address vector fits RoCE: global, from a GID of the port.
    pub fn check_av(&self, av: &iba::Av) -> Result<()> {
        if !av.is_global {
            refuse!(Invalid, "address vector without a GRH: RoCE needs is_global = 1 and a dgid");
        }
        let gids = self.common.nic.port.gids.len();
        if usize::from(av.sgid_index) >= gids {
            refuse!(Invalid, "sgid_index {}; the port has {gids} GIDs", av.sgid_index);
        }
        self.check_port("address vector", av.port_num.into())
    }

    /// The state and attributes of a QP.
    #[doc(alias = "ibv_query_qp")]
    pub fn query_qp(&self, id: QpId) -> Result<QpAttr> {
        match self.qps.get(id) {
            Some(entry) if entry.context.is_rss() => refuse!(
                NotSupported,
                "query_qp: QP {} spreads frames over work queues, and has no state",
                entry.context.qpn
            ),
            Some(entry) => Ok(entry.qp.query()),
            None => refuse!(Invalid, "there is no QP {}", id.handle()),
        }
    }

    /// See [`crate::Hca::destroy_qp`], which waits for what this returns.
    pub(crate) fn destroy_qp(&mut self, id: QpId) -> Result<UnderWay> {
        if self.failure().is_some() {
            return Ok(self.all_copies());
        }
        let groups = self.groups_of(id);
        if groups > 0 {
            refuse!(
                Busy,
                "destroy_qp: QP {} is attached to {groups} multicast groups",
                id.handle()
            );
        }
        let flows = self.flows_of(id);
        if flows > 0 {
            refuse!(Busy, "destroy_qp: {flows} flow steering rules lead to QP {}", id.handle());
        }
        self.carry_out_held();
        self.settle(id);
        let Some(entry) = self.qps.remove(id) else {
            refuse!(Invalid, "there is no QP {}", id.handle());
        };
        let under_way = self.publish_qp(id);
        let context = entry.context;
        self.common.trace_emptied(context.qpn, "destroyed", &self.clock);
        self.common.clean_cqs(context.qpn, context.send_cq, context.recv_cq);
        self.common.memory.mrs.windows.forget_qp(context.qpn);
        match context.role.as_deref() {
            Some(role) => self.release_role(role),
            None if context.qp_type == QpType::RawPacket => self.close_sender(),
            None => {}
        }
        self.drop_async_events(context.ctx, EventSource::Qp(id));
        Ok(under_way)
    }

    /// Adds a send of a list to a QP's queue. [`Engine::kick`] sends the list.
    #[inline]
    pub fn queue_send<R: Request>(
        &mut self,
        id: QpId,
        request: R,
    ) -> core::result::Result<(), R::Error> {
        if self.is_dead() {
            return Err(PostError::Dead.into());
        }
        let Some(entry) = self.qps.get_mut(id) else {
            return Err(PostError::State(QpState::Reset).into());
        };
        entry.qp.post_send_with(|to| request.fill(to))?;
        if !self.common.is_plain() {
            self.common.trace_posted(entry, 1, &self.clock);
        }
        Ok(())
    }

    /// Adds sends to a QP's queue, all or none, and sends them.
    #[doc(alias = "ibv_wr_complete")]
    pub fn post_sends(
        &mut self,
        id: QpId,
        mut wrs: impl ExactSizeIterator<Item = SendWr>,
    ) -> core::result::Result<(), PostError> {
        if wrs.len() == 1
            && let Some(wr) = wrs.next()
        {
            return self.post_send(id, wr);
        }
        if self.is_dead() {
            return Err(PostError::Dead);
        }
        let Some(entry) = self.qps.get_mut(id) else {
            return Err(PostError::State(QpState::Reset));
        };
        let count = wrs.len();
        entry.qp.post_sends(wrs)?;
        if !self.common.is_plain() {
            self.common.trace_posted(entry, count, &self.clock);
        }
        self.kick(id);
        Ok(())
    }

    /// Adds a receive to a QP's queue. In ERR it is flushed at once, as nothing else may ever drive
    /// the QP (IBA 10.3.1), and a program that drains its queue waits for that.
    ///
    /// Returns whether it may have left something to be done: a receive alone does not, and a
    /// packet that waits for one is looked at soon.
    pub(crate) fn post_recv(
        &mut self,
        id: QpId,
        wr: RecvWr,
    ) -> core::result::Result<bool, PostError> {
        self.post_recv_with(id, |to| {
            *to = wr;
            Ok(())
        })
    }

    /// As [`Engine::post_recv`], with a request that is written in place
    /// ([`transport::Qp::post_recv_with`]).
    #[inline]
    pub(crate) fn post_recv_with<X: From<PostError>>(
        &mut self,
        id: QpId,
        fill: impl FnOnce(&mut RecvWr) -> core::result::Result<(), X>,
    ) -> core::result::Result<bool, X> {
        if self.is_dead() {
            return Err(PostError::Dead.into());
        }
        let Some(entry) = self.qps.get_mut(id) else {
            return Err(PostError::State(QpState::Reset).into());
        };
        entry.qp.post_recv_with(fill)?;
        let is_plain = self.common.is_plain();
        if !is_plain && let Some(wr) = entry.qp.last_receive() {
            let posted = (wr.wr_id, wr.room());
            self.common.trace_receive(&entry.context, posted, &self.clock);
        }
        let is_flushed = entry.qp.state() == QpState::Err;
        if is_flushed {
            self.flush_posted(id);
        }
        Ok(is_flushed || !is_plain)
    }

    #[cold]
    fn flush_posted(&mut self, id: QpId) {
        self.kick(id);
    }

    /// Sends what a QP has to send.
    pub fn kick(&mut self, id: QpId) {
        if self.is_dead() {
            return;
        }
        if self.serve(id) {
            self.after_transmit();
        }
    }

    /// Sends what a request that was just posted makes.
    pub(super) fn kick_posted(&mut self, id: QpId) {
        if self.serve(id) {
            self.after_post(id);
        }
    }

    /// Lets a QP send, unless it must wait for others.
    fn serve(&mut self, id: QpId) -> bool {
        let Self { qps, schedule, .. } = self;
        if let Some(entry) = qps.get_mut(id)
            && schedule.is_full_for(entry)
        {
            schedule.wait_for_room(entry);
            return false;
        }
        self.common.now = self.clock.now();
        self.transmit(id);
        self.join_delayed_acks();
        true
    }

    /// Begins to close a context: destroys what its program left behind, in an order that leaves no
    /// use counted, except the memory that copies in progress may access.
    pub(crate) fn begin_close(&mut self, ctx: CtxId) -> Closing {
        if self.failure().is_some() {
            return Closing { ctx, mrs: Vec::new(), under_way: self.all_copies() };
        }
        let mut under_way = UnderWay::default();
        self.qps.forget_handles(ctx);
        self.drop_flows(ctx);
        let (spreading, tables) = self.rss_of(ctx);
        for id in spreading {
            if let Ok(more) = self.destroy_qp(id) {
                under_way.join(more);
            }
        }
        for id in tables {
            let _ = self.destroy_rwq_table(id);
        }
        let qps: Vec<QpId> =
            self.qps.iter().filter(|q| q.context.ctx == ctx).map(|q| q.context.id).collect();
        for id in qps {
            self.leave_groups(id);
            if let Ok(more) = self.destroy_qp(id) {
                under_way.join(more);
            }
        }
        let srqs: Vec<usize> =
            self.common.objects.srqs.iter().filter(|(_, s)| s.ctx == ctx).map(|(i, _)| i).collect();
        for index in srqs {
            let _ = self.destroy_srq(index.into());
        }
        let cqs: Vec<usize> =
            self.common.objects.cqs.iter().filter(|(_, c)| c.ctx == ctx).map(|(i, _)| i).collect();
        for index in cqs {
            let _ = self.destroy_cq(index.into());
        }
        self.common.objects.channels.retain(|_, channel| channel.ctx != ctx);
        let pds: Vec<PdId> = self
            .common
            .objects
            .pds
            .iter()
            .filter(|(_, p)| p.ctx == ctx)
            .map(|(i, _)| i.into())
            .collect();
        for id in self.common.memory.mrs.windows.ids_in(&pds) {
            let _ = self.dealloc_mw(id);
        }
        let mut mrs = Vec::new();
        for id in self.common.memory.mrs.ids_in(&pds) {
            if let Ok((mr, more)) = self.take_mr(id) {
                mrs.push(mr);
                under_way.join(more);
            }
        }
        Closing { ctx, mrs, under_way }
    }

    /// Closes a context once no peer copies any more.
    pub(crate) fn finish_close(&mut self, ctx: CtxId, mrs: Vec<Mr>) {
        if self.failure().is_some() {
            self.common.objects.ctxs.try_remove(ctx.index());
            return;
        }
        for mr in mrs {
            let _ = self.finish_dereg(mr);
        }
        self.common.objects.pds.retain(|_, pd| pd.ctx != ctx);
        self.common.objects.xrcds.retain(|_, xrcd| xrcd.ctx != ctx);
        self.common.objects.comp_cntrs.retain(|_, cntr| cntr.ctx != ctx);
        let dms: Vec<usize> =
            self.common.memory.dms.iter().filter(|(_, d)| d.ctx == ctx).map(|(i, _)| i).collect();
        for index in dms {
            let _ = self.take_dm(index.into());
        }
        self.common.objects.ctxs.try_remove(ctx.index());
    }

    /// Drops events about an object that is being destroyed.
    pub(super) fn drop_async_events(&mut self, ctx: CtxId, gone: EventSource) {
        if let Some(ctx) = self.common.objects.ctxs.get_mut(ctx.index()) {
            ctx.events.remove(|event| event.source == gone);
        }
    }
}

impl Common {
    /// The path capabilities of a carrier.
    fn path_caps(&self, route: Route, path_mtu: Mtu) -> PathCaps {
        // A record takes at most half of its ring. If packets are recorded or tampered with, each
        // is as on a wire.
        match route.segment(self.nic.config.ring_size) {
            None => PathCaps::wire(path_mtu),
            Some(_) if !self.is_plain() => PathCaps::memory(path_mtu, path_mtu.bytes()),
            Some(segment) => PathCaps::memory(path_mtu, segment),
        }
    }
}
