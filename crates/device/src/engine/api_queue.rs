//! Completion channels, completion queues and shared receive queues.

use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use iba::QpState;
use transport::PostError;
use transport::wr::RecvWr;

use super::Engine;
use crate::ids::{ChannelId, CqId, CtxId, PdId, SrqId};
use crate::objects::cq::{Armed, Cq, Moderation, Wc};
use crate::objects::events::EventQueue;
use crate::objects::uses::Uses;
use crate::objects::{Channel, Srq};
use crate::refusal::{Result, refuse};

impl Engine {
    /// Creates a completion channel.
    #[doc(alias = "ibv_create_comp_channel")]
    pub fn create_channel(&mut self, ctx: CtxId) -> Result<ChannelId> {
        let events = EventQueue::new()?;
        Ok(self
            .common
            .objects
            .channels
            .insert(Channel { ctx, events, uses: Uses::default() })
            .into())
    }

    /// Destroys a channel that no CQ uses.
    pub fn destroy_channel(&mut self, id: ChannelId) -> Result<()> {
        if self.failure().is_some() {
            return Ok(());
        }
        let Some(channel) = self.common.objects.channels.get(id.index()) else {
            refuse!(Invalid, "there is no completion channel {}", id.handle());
        };
        let uses = channel.uses.count();
        if uses > 0 {
            refuse!(Busy, "destroy_comp_channel: {uses} CQs use the channel");
        }
        self.common.objects.channels.remove(id.index());
        Ok(())
    }

    /// The descriptor that is readable while a completion event waits. One read of eight bytes
    /// takes one event, which [`Engine::take_cq_event`] then returns.
    pub fn channel_fd(&self, id: ChannelId) -> Option<BorrowedFd<'_>> {
        Some(self.common.objects.channels.get(id.index())?.events.as_fd())
    }

    /// The CQ of the oldest event of a channel, and its cookie.
    pub fn take_cq_event(&mut self, id: ChannelId) -> Option<(CqId, u64)> {
        self.next_cq_event(id, EventQueue::pop)
    }

    /// As [`Engine::take_cq_event`], for a caller that has not read from the descriptor.
    pub fn take_cq_event_unread(&mut self, id: ChannelId) -> Option<(CqId, u64)> {
        self.next_cq_event(id, EventQueue::take)
    }

    fn next_cq_event(
        &mut self,
        id: ChannelId,
        next: impl FnOnce(&mut EventQueue<CqId>) -> Option<CqId>,
    ) -> Option<(CqId, u64)> {
        let cq = next(&mut self.common.objects.channels.get_mut(id.index())?.events)?;
        Some((cq, self.common.objects.cqs.get(cq.index())?.cookie))
    }

    /// Raises an event for a CQ that holds completions, unless one waits on its channel: for a
    /// caller that took one of several completions, and knows that another thread waits.
    pub fn repeat_cq_event(&mut self, id: CqId) {
        let Some(cq) = self.common.objects.cqs.get(id.index()).filter(|cq| !cq.is_empty()) else {
            return;
        };
        if let Some(channel) =
            cq.channel.and_then(|c| self.common.objects.channels.get_mut(c.index()))
            && channel.events.is_empty()
        {
            channel.events.push(id, &mut self.common.objects.bells);
        }
    }

    /// Creates a CQ of at least `entries` entries.
    #[doc(alias = "ibv_create_cq")]
    pub fn create_cq(
        &mut self,
        ctx: CtxId,
        entries: u32,
        channel: Option<ChannelId>,
        comp_vector: u32,
        cookie: u64,
    ) -> Result<CqId> {
        let charge = self.common.charges.object("create_cq")?;
        let attr = &self.common.nic.attr;
        if entries == 0 || entries > attr.max_cqe {
            refuse!(Invalid, "create_cq: {entries} entries; 1 to {} are possible", attr.max_cqe);
        }
        if comp_vector >= attr.num_comp_vectors {
            refuse!(
                Invalid,
                "create_cq: vector {comp_vector}; there are {}",
                attr.num_comp_vectors
            );
        }
        if self.common.objects.cqs.len() >= attr.max_cq as usize {
            refuse!(NoMemory, "create_cq: max_cq is {}", attr.max_cq);
        }
        let mut cq = Cq::new(ctx, channel, cookie, entries, charge);
        if let Some(channel) = channel {
            match self.common.objects.channels.get(channel.index()) {
                Some(channel) if channel.ctx == ctx => cq.channel_use = Some(channel.uses.take()),
                _ => refuse!(Invalid, "create_cq: the channel belongs to another context"),
            }
        }
        Ok(self.common.objects.cqs.insert(cq).into())
    }

    /// From now on, each completion has its exact time. Without this, the completion of a small
    /// message may have the time of the previous call, as reading the clock takes longer than many
    /// steps of its processing.
    #[doc(alias = "IBV_WC_EX_WITH_COMPLETION_TIMESTAMP")]
    pub fn stamp_completions(&mut self) {
        self.common.stamps = true;
    }

    /// Changes how many entries a CQ has, but not to fewer than it holds.
    #[doc(alias = "ibv_resize_cq")]
    pub fn resize_cq(&mut self, id: CqId, entries: u32) -> Result<()> {
        let max = self.common.nic.attr.max_cqe;
        let cq = self.cq(id)?;
        if entries == 0 || entries > max || (entries as usize) < cq.len() {
            let held = cq.len();
            refuse!(Invalid, "resize_cq: {entries} entries; {held} are held, {max} are possible");
        }
        cq.capacity = entries;
        Ok(())
    }

    /// Moderates the events of a CQ: one comes with `count` completions, or `period` microseconds
    /// after the first of them. If either is 0, every event comes at once, which is the default.
    /// Completions are not held back, only their events. One event that is already held back may
    /// still follow the old rule.
    #[doc(alias = "ibv_modify_cq")]
    pub fn moderate_cq(&mut self, id: CqId, count: u16, period: u16) -> Result<()> {
        let (most, longest) = (
            self.common.nic.attr.max_cq_moderation_count,
            self.common.nic.attr.max_cq_moderation_period,
        );
        if most == 0 {
            refuse!(NotSupported, "modify_cq: a NIC of this preset does not moderate events");
        }
        if count > most || period > longest {
            refuse!(
                Invalid,
                "modify_cq: {count} completions or {period} us; {most} and {longest} are possible"
            );
        }
        let is_off = count == 0 || period == 0;
        // The period begins with a completion.
        self.common.stamps |= !is_off;
        self.cq(id)?.moderation = (!is_off).then(|| Moderation {
            count: u32::from(count),
            period: Duration::from_micros(u64::from(period)),
        });
        Ok(())
    }

    /// Destroys a CQ that no queue uses.
    #[doc(alias = "ibv_destroy_cq")]
    pub fn destroy_cq(&mut self, id: CqId) -> Result<()> {
        if self.failure().is_some() {
            return Ok(());
        }
        let uses = self.cq(id)?.uses.count();
        if uses > 0 {
            refuse!(Busy, "destroy_cq: {uses} queues complete here");
        }
        let cq = self.common.objects.cqs.remove(id.index());
        self.common.objects.due.moderated.retain(|(_, moderated)| *moderated != id);
        if let Some(channel) =
            cq.channel.and_then(|c| self.common.objects.channels.get_mut(c.index()))
        {
            channel.events.remove(|event| *event == id);
        }
        self.drop_async_events(cq.ctx, super::EventSource::Cq(id));
        Ok(())
    }

    pub(super) fn cq(&mut self, id: CqId) -> Result<&mut Cq> {
        match self.common.objects.cqs.get_mut(id.index()) {
            Some(cq) => Ok(cq),
            None => refuse!(Invalid, "there is no CQ {}", id.handle()),
        }
    }

    /// Requests one event at the next completion, or at the next solicited one.
    #[doc(alias = "ibv_req_notify_cq")]
    pub fn req_notify_cq(&mut self, id: CqId, solicited_only: bool) -> Result<()> {
        let cq = self.cq(id)?;
        // A later request for solicited completions only does not weaken an earlier one for any
        // completion (IBA 11.4.2.2).
        cq.armed = match (cq.armed, solicited_only) {
            (Armed::Any, _) | (_, false) => Armed::Any,
            _ => Armed::Solicited,
        };
        Ok(())
    }

    /// Takes the oldest completion of a CQ.
    #[inline]
    pub fn pop_wc(&mut self, id: CqId) -> Option<Wc> {
        self.take_wc(id, |wc| *wc)
    }

    /// The same, but `read` reads it in place, as it is large and was written a moment ago.
    #[inline]
    pub fn take_wc<R>(&mut self, id: CqId, read: impl FnOnce(&Wc) -> R) -> Option<R> {
        self.common.objects.cqs.get_mut(id.index())?.pop(read)
    }

    /// Whether a CQ holds nothing.
    #[inline]
    pub fn cq_is_empty(&self, id: CqId) -> bool {
        self.common.objects.cqs.get(id.index()).is_none_or(Cq::is_empty)
    }

    /// Whether a CQ overran, or the device failed: it can be polled until it is empty, and then
    /// only fails.
    pub fn cq_is_broken(&self, id: CqId) -> bool {
        self.failure().is_some()
            || self.common.objects.cqs.get(id.index()).is_some_and(|cq| cq.overrun)
    }

    /// Creates a shared receive queue.
    #[doc(alias = "ibv_create_srq")]
    pub fn create_srq(
        &mut self,
        pd: PdId,
        max_wr: u32,
        max_sge: u32,
        limit: u32,
        cookie: u64,
    ) -> Result<SrqId> {
        let charge = self.common.charges.object("create_srq")?;
        let attr = &self.common.nic.attr;
        if max_wr == 0 || max_wr > attr.max_srq_wr || max_sge > attr.max_srq_sge {
            refuse!(
                Invalid,
                "create_srq: {max_wr} requests of {max_sge} elements; {} of {} are possible",
                attr.max_srq_wr,
                attr.max_srq_sge
            );
        }
        if self.common.objects.srqs.len() >= attr.max_srq as usize {
            refuse!(NoMemory, "create_srq: max_srq is {}", attr.max_srq);
        }
        let of = self.pd(pd)?;
        let (ctx, holds) = (of.ctx, vec![of.uses.take()]);
        let queue = std::collections::VecDeque::new();
        let (uses, xrc, tm) = (Uses::default(), None, None);
        let _charge = charge;
        let srq =
            Srq { ctx, pd, cookie, max_wr, max_sge, limit, uses, xrc, tm, queue, holds, _charge };
        Ok(self.common.objects.srqs.insert(srq).into())
    }

    pub(super) fn srq(&mut self, id: SrqId) -> Result<&mut Srq> {
        match self.common.objects.srqs.get_mut(id.index()) {
            Some(srq) => Ok(srq),
            None => refuse!(Invalid, "there is no SRQ {}", id.handle()),
        }
    }

    /// Changes a shared receive queue: its size, its limit, or both.
    #[doc(alias = "ibv_modify_srq")]
    pub fn modify_srq(&mut self, id: SrqId, max_wr: Option<u32>, limit: Option<u32>) -> Result<()> {
        let most = self.common.nic.attr.max_srq_wr;
        let srq = self.srq(id)?;
        let size = max_wr.unwrap_or(srq.max_wr);
        if size == 0 || size > most || (size as usize) < srq.queue.len() {
            let held = srq.queue.len();
            refuse!(Invalid, "modify_srq: {size} requests; {held} are held, {most} are possible");
        }
        if limit.is_some_and(|limit| limit > size) {
            refuse!(Invalid, "modify_srq: a limit above {size} requests");
        }
        srq.max_wr = size;
        srq.limit = limit.unwrap_or(srq.limit);
        Ok(())
    }

    /// Size, elements of each request, and limit of a shared receive queue.
    #[doc(alias = "ibv_query_srq")]
    pub fn query_srq(&mut self, id: SrqId) -> Result<(u32, u32, u32)> {
        self.srq(id).map(|srq| (srq.max_wr, srq.max_sge, srq.limit))
    }

    /// Destroys a shared receive queue that no QP uses.
    #[doc(alias = "ibv_destroy_srq")]
    pub fn destroy_srq(&mut self, id: SrqId) -> Result<()> {
        if self.failure().is_some() {
            return Ok(());
        }
        let uses = self.srq(id)?.uses.count();
        if uses > 0 {
            refuse!(Busy, "destroy_srq: {uses} QPs receive from this queue");
        }
        let srq = self.common.objects.srqs.remove(id.index());
        self.drop_async_events(srq.ctx, super::EventSource::Srq(id));
        self.common.trace_emptied_srq(id, &self.clock);
        Ok(())
    }

    /// Posts a receive to a shared queue.
    #[doc(alias = "ibv_post_srq_recv")]
    pub fn post_srq_recv(&mut self, id: SrqId, wr: RecvWr) -> core::result::Result<(), PostError> {
        if self.is_dead() {
            return Err(PostError::Dead);
        }
        let Some(srq) = self.common.objects.srqs.get_mut(id.index()) else {
            return Err(PostError::State(QpState::Reset));
        };
        if srq.queue.len() >= srq.max_wr as usize {
            return Err(PostError::Full(srq.max_wr));
        }
        if wr.sges.len() > srq.max_sge as usize {
            return Err(PostError::Sges { count: wr.sges.len(), max: srq.max_sge });
        }
        srq.queue.push_back(wr);
        if !self.common.is_plain() {
            self.common.trace_shared_receive(id, &self.clock);
        }
        Ok(())
    }
}
