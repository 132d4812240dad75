//! Extended reliable connections (IBA annex A14): one queue pair of the receiving side serves many
//! shared receive queues, of which each packet names one.
//!
//! An XRC_RECV QP has no protection domain and no completion queue of its own: it uses those of the
//! shared queue that a packet names. So they are set for every request that arrives, before the QP
//! sees it.

use std::os::fd::BorrowedFd;

use iba::{QpType, Qpn};
use wire::Headers;

use super::Engine;
use super::common::Common;
use crate::ids::{CqId, CtxId, PdId, QpId, SrqId, XrcdId};
use crate::objects::EventSource;
use crate::objects::uses::Uses;
use crate::objects::xrc::{SrqXrc, Xrcd};
use crate::qp::{Handle, QpContext};
use crate::refusal::{Kind, Refusal, Result, refuse};

impl Engine {
    /// Opens an XRC domain: that of a file, or a new anonymous one.
    #[doc(alias = "ibv_open_xrcd")]
    pub fn open_xrcd(
        &mut self,
        ctx: CtxId,
        file: Option<BorrowedFd<'_>>,
        create: bool,
        exclusive: bool,
    ) -> Result<XrcdId> {
        let charge = self.common.charges.object("open_xrcd")?;
        let file = match file {
            None if !create => refuse!(Invalid, "open_xrcd: neither a file nor O_CREAT"),
            None => None,
            Some(fd) => {
                let stat = rustix::fs::fstat(fd)
                    .map_err(|error| Refusal::new(Kind::BadFd, format!("open_xrcd: {error}")))?;
                Some((stat.st_dev, stat.st_ino))
            }
        };
        let same = |(_, xrcd): &(usize, &Xrcd)| file.is_some() && xrcd.file == file;
        let known = self.common.objects.xrcds.iter().find(same).map(|(index, _)| index);
        match known {
            Some(_) if exclusive => refuse!(Invalid, "open_xrcd: O_EXCL, and the domain exists"),
            Some(index) => {
                self.common.objects.xrcds[index].opens.push(charge);
                Ok(index.into())
            }
            None if !create => refuse!(NotFound, "open_xrcd: no domain of this file, nor O_CREAT"),
            None => Ok(self
                .common
                .objects
                .xrcds
                .insert(Xrcd { ctx, file, opens: vec![charge], uses: Uses::default() })
                .into()),
        }
    }

    /// Closes an XRC domain. The last close is refused unless the domain is empty.
    #[doc(alias = "ibv_close_xrcd")]
    pub fn close_xrcd(&mut self, id: XrcdId) -> Result<()> {
        let xrcd = self.xrcd(id)?;
        let uses = xrcd.uses.count();
        if xrcd.opens.len() == 1 && uses > 0 {
            refuse!(Busy, "close_xrcd: {uses} objects still use this domain");
        }
        xrcd.opens.pop();
        if xrcd.opens.is_empty() {
            self.common.objects.xrcds.remove(id.index());
        }
        Ok(())
    }

    pub(super) fn xrcd(&mut self, id: XrcdId) -> Result<&mut Xrcd> {
        match self.common.objects.xrcds.get_mut(id.index()) {
            Some(xrcd) => Ok(xrcd),
            None => refuse!(Invalid, "there is no XRC domain {}", id.handle()),
        }
    }

    /// Opens an XRC_RECV QP of a domain again, for a context that also gets its events.
    #[doc(alias = "ibv_open_qp")]
    pub fn open_qp(&mut self, ctx: CtxId, xrcd: XrcdId, qpn: Qpn, cookie: u64) -> Result<QpId> {
        let charge = self.common.charges.object("open_qp")?;
        self.xrcd(xrcd)?;
        match self.qps.by_number(qpn) {
            Some(entry) if entry.context.xrcd == Some(xrcd) => {
                entry.context.others.push(Handle { ctx, cookie, charge });
                Ok(entry.context.id)
            }
            _ => refuse!(Invalid, "open_qp: there is no QP {qpn} in the XRC domain"),
        }
    }

    /// Closes the handle of a QP with this cookie. Returns whether it was the last one, so that the
    /// QP must be destroyed.
    pub fn close_qp(&mut self, id: QpId, cookie: u64) -> bool {
        let Some(entry) = self.qps.get_mut(id) else { return true };
        let context = &mut entry.context;
        let ctx = if context.cookie == cookie {
            let Some(other) = context.others.pop() else { return true };
            let ctx = context.ctx;
            (context.ctx, context.cookie) = (other.ctx, other.cookie);
            context._charge = other.charge;
            ctx
        } else {
            let Some(at) = context.others.iter().position(|other| other.cookie == cookie) else {
                return true;
            };
            context.others.remove(at).ctx
        };
        if let Some(ctx) = self.common.objects.ctxs.get_mut(ctx.index()) {
            let source = EventSource::Qp(id);
            ctx.events.remove(|event| event.source == source && event.cookie == cookie);
        }
        false
    }

    /// Turns a shared queue into an XRC SRQ, whose receives complete on `cq`.
    #[doc(alias = "ibv_create_srq_ex")]
    pub fn make_srq_xrc(&mut self, srq: SrqId, xrcd: XrcdId, cq: CqId) -> Result<()> {
        let ctx = self.srq(srq)?.ctx;
        if self.xrcd(xrcd)?.ctx != ctx || self.cq(cq)?.ctx != ctx {
            refuse!(Invalid, "create_srq_ex: the XRC domain or the CQ belongs to another context");
        }
        let holds = [self.cq(cq)?.uses.take(), self.xrcd(xrcd)?.uses.take()];
        let srq = self.srq(srq)?;
        srq.xrc = Some(SrqXrc { xrcd, cq });
        srq.holds.extend(holds);
        Ok(())
    }

    /// The number by which senders name a shared queue.
    #[doc(alias = "ibv_get_srq_num")]
    pub fn srq_number(&mut self, srq: SrqId) -> Result<u32> {
        match self.srq(srq)?.xrc {
            Some(_) => Ok(srq.handle()),
            None => refuse!(Invalid, "get_srq_num: the queue is not an XRC SRQ"),
        }
    }
}

impl Common {
    /// Points an XRC_RECV QP at the shared queue that a request names. Returns false if there is
    /// none in its domain.
    pub(super) fn select_srq(&self, context: &mut QpContext, headers: &Headers) -> bool {
        if context.qp_type != QpType::XrcRecv {
            return true;
        }
        let named = headers.xrceth().and_then(|xrceth| {
            let id = SrqId(xrceth.srqn.value());
            let srq = self.objects.srqs.get(id.index())?;
            let xrc = srq.xrc.filter(|xrc| Some(xrc.xrcd) == context.xrcd)?;
            Some((id, srq.pd, xrc.cq))
        });
        let Some((srq, pd, cq)) = named else {
            let srqn = headers.xrceth().map(|xrceth| xrceth.srqn);
            tracing::debug!(target: "peerdma::drop", qpn = %context.qpn, ?srqn, "no such XRC SRQ");
            return false;
        };
        (context.srq, context.pd, context.recv_cq) = (Some(srq), pd, cq);
        true
    }

    /// The protection domain of the bytes of an answer: the one in which the request was checked,
    /// which an XRC_RECV QP may have left since.
    pub(super) fn answering_pd(&self, context: &QpContext, rkey: iba::RKey) -> PdId {
        if context.qp_type != QpType::XrcRecv {
            return context.pd;
        }
        self.memory.mrs.pd_of(rkey).unwrap_or(context.pd)
    }
}
