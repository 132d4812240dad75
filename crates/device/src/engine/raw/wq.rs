//! Work queues, indirection tables, and the QPs that spread frames over them.
//!
//! A work queue is a QP without a send queue: it is in the table of QPs, so that no QP has its
//! number, and its receives are posted, filled and flushed like those of any QP.

use iba::{AttrMask, QpAttr, QpCap, QpState, QpType, Qpn};
use transport::PostError;
use transport::wr::RecvWr;

use super::Engine;
use crate::engine::api_qp::QpSpec;
use crate::engine::env::QpEnv;
use crate::ids::{CqId, CtxId, PdId, QpId, RwqTableId, WqId};
use crate::objects::flows::RwqTable;
use crate::objects::uses::{Use, Uses};
use crate::qp::Role;
use crate::refusal::{Result, refuse};
use crate::rss::RxHash;

/// The state of a work queue, with the values of `enum ibv_wq_state`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "ibv_wq_state")]
#[expect(clippy::exhaustive_enums, reason = "the three of libibverbs")]
#[repr(u8)]
pub enum WqState {
    /// Nothing is accepted; frames are dropped.
    Reset = 0,
    /// Ready.
    Rdy = 1,
    /// Everything is flushed.
    Err = 2,
}

impl WqState {
    /// The state that `value` encodes, if any.
    pub fn from_code(value: u32) -> Option<Self> {
        [Self::Reset, Self::Rdy, Self::Err].into_iter().find(|state| *state as u32 == value)
    }
}

impl Engine {
    /// Creates a work queue in RESET, and returns its number.
    #[doc(alias = "ibv_create_wq")]
    pub fn create_wq(
        &mut self,
        pd: PdId,
        cq: CqId,
        max_wr: u32,
        max_sge: u32,
    ) -> Result<(WqId, Qpn)> {
        let attr = &self.common.nic.attr;
        if !attr.has_raw_packets {
            refuse!(NotSupported, "create_wq: a NIC of this preset has no work queues");
        }
        if max_wr == 0 || max_wr > attr.max_qp_wr || max_sge > attr.max_sge {
            refuse!(
                Invalid,
                "create_wq: {max_wr} requests of {max_sge} elements; {} of {} are possible",
                attr.max_qp_wr,
                attr.max_sge
            );
        }
        let ctx = self.pd(pd)?.ctx;
        if self.cq(cq)?.ctx != ctx {
            refuse!(Invalid, "create_wq: the CQ belongs to another context than the PD");
        }
        let cap = QpCap { max_recv_wr: max_wr, max_recv_sge: max_sge, ..QpCap::default() };
        let spec = receiving(pd, cq, cap, 0);
        let holds = vec![self.pd(pd)?.uses.take(), self.cq(cq)?.uses.take()];
        let role = Role::Wq { uses: Uses::default() };
        let (id, number) = self.add_qp(&spec, ctx, cq, Some(role), holds)?;
        Ok((WqId(id), number))
    }

    /// Moves a work queue to another state. Entering ERR flushes its receives; entering RESET drops
    /// them.
    ///
    /// Refused as [`Invalid`](crate::Kind::Invalid) if it is in another state than the caller
    /// claims, or cannot go from there: RESET leads to RDY, RDY to ERR and RESET, ERR to RESET, and
    /// each to itself.
    #[doc(alias = "ibv_modify_wq")]
    pub fn modify_wq(
        &mut self,
        id: WqId,
        claimed: Option<WqState>,
        to: Option<WqState>,
    ) -> Result<WqState> {
        let from = self.wq_state(id)?;
        if claimed.is_some_and(|claimed| claimed != from) {
            refuse!(Invalid, "modify_wq: the work queue is in {from:?}, not in {claimed:?}");
        }
        let to = to.unwrap_or(from);
        let states: &[QpState] = match (from, to) {
            (from, to) if from == to && to != WqState::Reset => &[],
            (_, WqState::Reset) => &[QpState::Reset],
            (WqState::Reset, WqState::Rdy) => &[QpState::Init, QpState::Rtr],
            (WqState::Rdy, WqState::Err) => &[QpState::Err],
            _ => refuse!(Invalid, "modify_wq: no work queue goes from {from:?} to {to:?}"),
        };
        let Self { common, qps, .. } = self;
        let Some(entry) = qps.get_mut(id.0) else { return Ok(from) };
        for state in states {
            let attr = QpAttr { state: *state, port_num: 1, ..QpAttr::default() };
            let is_init = *state == QpState::Init;
            let mask = AttrMask::STATE | if is_init { AttrMask::PORT } else { AttrMask::empty() };
            let moved = entry.qp.modify(&mut QpEnv::new(common, &mut entry.context), &attr, mask);
            moved.expect("the table of raw packet QPs has these transitions");
        }
        if to == WqState::Reset {
            common.clean_cqs(entry.context.qpn, entry.context.recv_cq, entry.context.recv_cq);
        }
        Ok(to)
    }

    /// The state of a work queue; one whose receive failed is in ERR.
    #[doc(alias = "ibv_wq_state")]
    pub fn wq_state(&self, id: WqId) -> Result<WqState> {
        let Some(entry) = self.qps.get(id.0).filter(|entry| entry.context.is_wq()) else {
            refuse!(Invalid, "there is no work queue {}", id.handle());
        };
        Ok(match entry.qp.state() {
            QpState::Reset => WqState::Reset,
            QpState::Err => WqState::Err,
            _ => WqState::Rdy,
        })
    }

    /// Destroys a work queue that no indirection table names.
    #[doc(alias = "ibv_destroy_wq")]
    pub fn destroy_wq(&mut self, id: WqId) -> Result<()> {
        if self.failure().is_some() {
            return Ok(());
        }
        let entry = self.qps.get(id.0);
        let Some(Role::Wq { uses }) = entry.and_then(|entry| entry.context.role.as_deref()) else {
            refuse!(Invalid, "destroy_wq: there is no work queue {}", id.handle());
        };
        if uses.count() > 0 {
            let uses = uses.count();
            refuse!(Busy, "destroy_wq: {uses} entries of indirection tables name it");
        }
        // No peer ever copies to one.
        let _ = self.destroy_qp(id.0)?;
        Ok(())
    }

    /// Adds a receive to a work queue. In ERR it is accepted, and [`Engine::kick_wq`] flushes it.
    #[doc(alias = "ibv_post_wq_recv")]
    pub fn post_wq_recv(&mut self, id: WqId, wr: RecvWr) -> core::result::Result<(), PostError> {
        self.post_recv(id.0, wr).map(drop)
    }

    /// Flushes what was posted to a work queue in ERR.
    pub fn kick_wq(&mut self, id: WqId) {
        if self.qps.get(id.0).is_some_and(|entry| entry.qp.state() == QpState::Err) {
            self.kick(id.0);
        }
    }

    /// Creates a table of work queues. Their number is a power of two; a queue may be in it several
    /// times.
    #[doc(alias = "ibv_create_rwq_ind_table")]
    pub fn create_rwq_table(&mut self, ctx: CtxId, queues: &[WqId]) -> Result<RwqTableId> {
        let charge = self.common.charges.object("create_rwq_ind_table")?;
        let most = self.common.nic.attr.max_rwq_table_size;
        if !self.common.nic.attr.has_raw_packets {
            refuse!(NotSupported, "create_rwq_ind_table: a NIC of this preset has no work queues");
        }
        if !queues.len().is_power_of_two() || queues.len() > most as usize {
            let count = queues.len();
            refuse!(
                Invalid,
                "create_rwq_ind_table: {count} entries; it must be a power of two up to {most}"
            );
        }
        if self.common.objects.rwq_tables.len() >= self.common.nic.attr.max_rwq_tables as usize {
            refuse!(
                NoMemory,
                "create_rwq_ind_table: the device has {}",
                self.common.nic.attr.max_rwq_tables
            );
        }
        for id in queues {
            let entry = self.qps.get(id.0).filter(|entry| entry.context.is_wq());
            if entry.is_none_or(|entry| entry.context.ctx != ctx) {
                refuse!(
                    Invalid,
                    "create_rwq_ind_table: there is no work queue {} in this context",
                    id.handle()
                );
            }
        }
        let queues: Vec<QpId> = queues.iter().map(|id| id.0).collect();
        let holds = queues.iter().filter_map(|id| self.wq_use(*id)).collect();
        let table = RwqTable { ctx, queues, _holds: holds, uses: Uses::default(), _charge: charge };
        Ok(self.common.objects.rwq_tables.insert(table).into())
    }

    /// Destroys a table that no QP uses.
    #[doc(alias = "ibv_destroy_rwq_ind_table")]
    pub fn destroy_rwq_table(&mut self, id: RwqTableId) -> Result<()> {
        if self.failure().is_some() {
            return Ok(());
        }
        match self.common.objects.rwq_tables.get(id.index()).map(|table| table.uses.count()) {
            None => refuse!(Invalid, "there is no indirection table {}", id.handle()),
            Some(0) => {}
            Some(uses) => refuse!(Busy, "destroy_rwq_ind_table: {uses} QPs use it"),
        }
        self.common.objects.rwq_tables.remove(id.index());
        Ok(())
    }

    /// A use of a work queue.
    fn wq_use(&self, id: QpId) -> Option<Use> {
        match self.qps.get(id)?.context.role.as_deref()? {
            Role::Wq { uses } => Some(uses.take()),
            Role::Rss { .. } => None,
        }
    }

    /// Creates a QP that spreads the frames of its rules over the work queues of a table. It has no
    /// queues and no state of its own.
    #[doc(alias = "rx_hash_conf")]
    pub fn create_rss_qp(
        &mut self,
        pd: PdId,
        table: RwqTableId,
        hash: RxHash,
        cookie: u64,
    ) -> Result<(QpId, Qpn)> {
        hash.check()?;
        let ctx = self.pd(pd)?.ctx;
        let found = self.common.objects.rwq_tables.get(table.index());
        let Some(found) = found.filter(|found| found.ctx == ctx) else {
            refuse!(
                Invalid,
                "create_qp: there is no indirection table {} in this context",
                table.handle()
            );
        };
        let table_use = found.uses.take();
        let holds = vec![self.pd(pd)?.uses.take(), table_use];
        self.open_sender()?;
        let spec = receiving(pd, CqId::NONE, QpCap::default(), cookie);
        let made = self.add_qp(&spec, ctx, CqId::NONE, Some(Role::Rss { table, hash }), holds);
        if made.is_err() {
            self.close_sender();
        }
        made
    }

    /// Undoes what [`Engine::create_rss_qp`] opened.
    pub(crate) fn release_role(&mut self, role: &Role) {
        if let Role::Rss { .. } = role {
            self.close_sender();
        }
    }

    /// The QPs of a context that spread frames over work queues, and its tables.
    pub(crate) fn rss_of(&self, ctx: CtxId) -> (Vec<QpId>, Vec<RwqTableId>) {
        let qps =
            self.qps.iter().filter(|entry| entry.context.ctx == ctx && entry.context.is_rss());
        let tables = self.common.objects.rwq_tables.iter().filter(|(_, table)| table.ctx == ctx);
        (qps.map(|entry| entry.context.id).collect(), tables.map(|(id, _)| id.into()).collect())
    }
}

/// A raw packet QP that sends nothing.
fn receiving(pd: PdId, recv_cq: CqId, cap: QpCap, cookie: u64) -> QpSpec {
    QpSpec {
        pd,
        qp_type: QpType::RawPacket,
        send_cq: CqId::NONE,
        recv_cq,
        srq: None,
        xrcd: None,
        cap,
        sq_sig_all: false,
        cookie,
    }
}
