//! Queue pairs.

use iba::{AttrMask, Mtu, QpAttr, QpState, QpType, Qpn};
use transport::wr::{RecvWr, SendWr};
use transport::{PathCaps, PostError, Qp, QpCap, QpInit};

use super::Engine;
use super::core::EventSource;
use super::env::{QpEnv, QpFacts, Route};
use super::qp::QpEntry;
use crate::ids::{CqId, CtxId, PdId, QpId, SrqId};
use crate::refusal::{Result, refuse};

/// What a QP is made with.
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
    /// The capacities.
    pub cap: Cap,
    /// Whether every send completes, flagged or not.
    pub sq_sig_all: bool,
    /// Given back in events.
    pub cookie: u64,
}

/// The capacities of a QP.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[doc(alias = "ibv_qp_cap")]
#[expect(clippy::exhaustive_structs, reason = "the five capacities of IBA")]
pub struct Cap {
    /// Sends that can be outstanding.
    pub max_send_wr: u32,
    /// Receives that can be outstanding.
    pub max_recv_wr: u32,
    /// Elements of a send.
    pub max_send_sge: u32,
    /// Elements of a receive.
    pub max_recv_sge: u32,
    /// Bytes of inline data.
    pub max_inline_data: u32,
}

/// Bytes of one packet on the ring between two processes: large enough to amortise a record, small enough that the
/// receiver copies while the sender fills the next.
const SHM_SEGMENT: u32 = 32 << 10;
/// Bytes of one packet within a process, where it is a reference.
const LOOPBACK_SEGMENT: u32 = 1 << 20;

impl Engine {
    /// Creates a QP in the RESET state.
    #[doc(alias = "ibv_create_qp")]
    pub fn create_qp(&mut self, spec: &QpSpec) -> Result<(QpId, Qpn)> {
        self.check_spec(spec)?;
        let ctx = self.pd(spec.pd)?.ctx;
        let Some((id, qpn)) = self.qps.reserve() else {
            refuse!(NoMemory, "create_qp: max_qp is {}", self.core.attr.max_qp);
        };
        self.pd(spec.pd)?.uses += 1;
        self.cq(spec.send_cq)?.uses += 1;
        self.cq(spec.recv_cq)?.uses += 1;
        if let Some(srq) = spec.srq {
            self.srq(srq)?.uses += 1;
        }
        let cap = spec.cap;
        let qp = Qp::new(QpInit {
            qpn,
            qp_type: spec.qp_type,
            sq_sig_all: spec.sq_sig_all,
            cap: QpCap {
                max_send_wr: cap.max_send_wr,
                max_recv_wr: if spec.srq.is_some() { 0 } else { cap.max_recv_wr },
                max_send_sge: cap.max_send_sge,
                max_recv_sge: cap.max_recv_sge,
                max_inline: cap.max_inline_data,
            },
            has_srq: spec.srq.is_some(),
        });
        let facts = QpFacts {
            id,
            qpn,
            qp_type: spec.qp_type,
            ctx,
            pd: spec.pd,
            send_cq: spec.send_cq,
            recv_cq: spec.recv_cq,
            srq: spec.srq,
            cookie: spec.cookie,
            dest_qpn: Qpn::new(0),
            av: iba::Av::default(),
            path_mtu: self.core.port.active_mtu(),
            route: Route::None,
            ring_position: 0,
            peer_is_behind: false,
            starved_since: None,
        };
        self.qps.insert(id, QpEntry { qp, facts, queued: false, deadline: None });
        Ok((id, qpn))
    }

    fn check_spec(&mut self, spec: &QpSpec) -> Result<()> {
        let attr = &self.core.attr;
        if !matches!(spec.qp_type, QpType::Rc | QpType::Uc | QpType::Ud) {
            refuse!(NotSupported, "create_qp: no QPs of type {}", spec.qp_type);
        }
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
        self.cq(spec.send_cq)?;
        self.cq(spec.recv_cq)?;
        if let Some(srq) = spec.srq {
            self.srq(srq)?;
        }
        Ok(())
    }

    /// Moves a QP to another state, or changes what its state allows.
    #[doc(alias = "ibv_modify_qp")]
    pub fn modify_qp(&mut self, id: QpId, attr: &QpAttr, mask: AttrMask) -> Result<()> {
        self.check_attr(attr, mask)?;
        if mask.contains(AttrMask::STATE) && matches!(attr.state, QpState::Reset | QpState::Err) {
            self.settle(id);
        }
        let Self { core, qps, .. } = self;
        let Some(entry) = qps.get_mut(id) else {
            refuse!(Invalid, "there is no QP {}", id.handle());
        };
        let result = entry.qp.modify(&mut QpEnv::new(core, &mut entry.facts), attr, mask);
        if let Err(error) = result {
            refuse!(Invalid, "modify_qp: QP {}: {error}", entry.facts.qpn);
        }
        let facts = &mut entry.facts;
        if mask.contains(AttrMask::DEST_QPN) {
            facts.dest_qpn = attr.dest_qpn;
        }
        if mask.contains(AttrMask::PATH_MTU) {
            facts.path_mtu = attr.path_mtu;
        }
        if mask.contains(AttrMask::AV) {
            facts.av = attr.av;
        }
        let state = entry.qp.state();
        if state == QpState::Reset {
            facts.route = Route::None;
            let (qpn, send, recv) = (facts.qpn, facts.send_cq, facts.recv_cq);
            core.clean_cqs(qpn, send, recv);
        } else if state == QpState::Rtr || mask.contains(AttrMask::AV) {
            if facts.qp_type.is_connected() {
                facts.route = core.route(&facts.av, facts.dest_qpn);
                tracing::debug!(
                    target: "peerdma::path",
                    qpn = %facts.qpn, peer = %facts.dest_qpn, dgid = ?facts.av.dgid,
                    route = ?facts.route, "{}", core.why(&facts.av, facts.route)
                );
                if let Route::Shm(vf) = facts.route {
                    core.peers.prepare(vf);
                }
            }
            let path_mtu = if facts.qp_type == QpType::Ud {
                facts.path_mtu = core.port.active_mtu();
                facts.path_mtu
            } else {
                facts.path_mtu
            };
            entry.qp.set_path(path_caps(facts.route, path_mtu, core.config.ring_size));
        }
        self.publish_qp(id);
        self.make_ready(id);
        self.progress();
        Ok(())
    }

    fn check_attr(&self, attr: &QpAttr, mask: AttrMask) -> Result<()> {
        let ports = self.core.attr.phys_port_cnt;
        if mask.contains(AttrMask::PORT) && !(1..=ports).contains(&attr.port_num) {
            refuse!(Invalid, "modify_qp: port {}; the device has {ports}", attr.port_num);
        }
        if mask.contains(AttrMask::PKEY_INDEX) && attr.pkey_index >= self.core.attr.max_pkeys {
            refuse!(Invalid, "modify_qp: partition key index {}", attr.pkey_index);
        }
        if mask.contains(AttrMask::AV) {
            self.check_av(&attr.av)?;
        }
        Ok(())
    }

    /// Checks an address vector as RoCE demands it: global, from a GID the port has.
    pub fn check_av(&self, av: &iba::Av) -> Result<()> {
        if !av.is_global {
            refuse!(Invalid, "address vector without a GRH: RoCE needs is_global = 1 and a dgid");
        }
        let gids = self.core.port.gids.len();
        if usize::from(av.sgid_index) >= gids {
            refuse!(Invalid, "sgid_index {}; the port has {gids} GIDs", av.sgid_index);
        }
        if av.port_num != 1 {
            refuse!(Invalid, "address vector for port {}; the device has 1", av.port_num);
        }
        Ok(())
    }

    /// The state and attributes of a QP.
    #[doc(alias = "ibv_query_qp")]
    pub fn query_qp(&self, id: QpId) -> Result<QpAttr> {
        match self.qps.get(id) {
            Some(entry) => Ok(entry.qp.query()),
            None => refuse!(Invalid, "there is no QP {}", id.handle()),
        }
    }

    /// Destroys a QP. What it had outstanding is gone, its completions with it.
    #[doc(alias = "ibv_destroy_qp")]
    pub fn destroy_qp(&mut self, id: QpId) -> Result<()> {
        self.settle(id);
        let Some(entry) = self.qps.remove(id) else {
            refuse!(Invalid, "there is no QP {}", id.handle());
        };
        self.publish_qp(id);
        let facts = entry.facts;
        self.core.clean_cqs(facts.qpn, facts.send_cq, facts.recv_cq);
        self.cq(facts.send_cq)?.uses -= 1;
        self.cq(facts.recv_cq)?.uses -= 1;
        if let Some(srq) = facts.srq {
            self.srq(srq)?.uses -= 1;
        }
        self.pd(facts.pd)?.uses -= 1;
        self.drop_async_events(facts.ctx, EventSource::Qp(id));
        Ok(())
    }

    /// Puts a send on a QP's queue. [`Engine::kick`] sets it going, once for a whole list.
    #[doc(alias = "ibv_post_send")]
    #[inline]
    pub fn post_send(&mut self, id: QpId, wr: SendWr) -> core::result::Result<(), PostError> {
        match self.qps.get_mut(id) {
            Some(entry) => entry.qp.post_send(wr),
            None => Err(PostError::State(QpState::Reset)),
        }
    }

    /// Puts a receive on a QP's queue.
    #[doc(alias = "ibv_post_recv")]
    #[inline]
    pub fn post_recv(&mut self, id: QpId, wr: RecvWr) -> core::result::Result<(), PostError> {
        match self.qps.get_mut(id) {
            Some(entry) => entry.qp.post_recv(wr),
            None => Err(PostError::State(QpState::Reset)),
        }
    }

    /// Sends what a QP has to send.
    pub fn kick(&mut self, id: QpId) {
        self.core.now = self.clock.now();
        self.transmit(id);
        self.after_transmit();
    }

    /// Destroys whatever of a context its program left behind, in an order that leaves no use counted.
    pub(crate) fn destroy_left_over(&mut self, ctx: CtxId) {
        let qps: Vec<QpId> =
            self.qps.iter().filter(|q| q.facts.ctx == ctx).map(|q| q.facts.id).collect();
        for id in qps {
            let _ = self.destroy_qp(id);
        }
        let srqs: Vec<usize> =
            self.core.srqs.iter().filter(|(_, s)| s.ctx == ctx).map(|(i, _)| i).collect();
        for index in srqs {
            let _ = self.destroy_srq(index.into());
        }
        let cqs: Vec<usize> =
            self.core.cqs.iter().filter(|(_, c)| c.ctx == ctx).map(|(i, _)| i).collect();
        for index in cqs {
            let _ = self.destroy_cq(index.into());
        }
        self.core.channels.retain(|_, channel| channel.ctx != ctx);
        let pds: Vec<PdId> =
            self.core.pds.iter().filter(|(_, p)| p.ctx == ctx).map(|(i, _)| i.into()).collect();
        for id in self.core.mrs.ids_in(&pds) {
            let _ = self.dereg_mr(id);
        }
        self.core.pds.retain(|_, pd| pd.ctx != ctx);
        let dms: Vec<usize> =
            self.core.dms.iter().filter(|(_, d)| d.ctx == ctx).map(|(i, _)| i).collect();
        for index in dms {
            let _ = self.free_dm(index.into());
        }
    }

    /// Forgets events about an object that goes away.
    pub(crate) fn drop_async_events(&mut self, ctx: CtxId, gone: EventSource) {
        if let Some(ctx) = self.core.ctxs.get_mut(ctx.index()) {
            ctx.events.remove(|event| event.source == gone);
        }
    }
}

/// What a carrier lets a packet carry.
pub(crate) fn path_caps(route: Route, path_mtu: Mtu, ring_size: u64) -> PathCaps {
    match route {
        // A record takes at most half of its ring.
        Route::Shm(_) => PathCaps::memory(path_mtu, SHM_SEGMENT.min(ring_size as u32 / 4)),
        Route::Loopback => PathCaps::memory(path_mtu, LOOPBACK_SEGMENT),
        Route::Udp | Route::None => PathCaps::wire(path_mtu),
    }
}
