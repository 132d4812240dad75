//! Everything of the engine except its QPs: what a QP reaches through its environment.

use std::collections::VecDeque;
use std::mem;

use iba::{Av, EventType, Qpn, WcFlags};
use transport::Time;
use transport::env::Completion;
use transport::wr::RecvWr;
use wire::Headers;
use wire::grh::Grh;

use super::early::EarlyBytes;
use super::failures::Failures;
use crate::carrier::{Route, Senders};
use crate::clock::Clock;
use crate::counters::{Counters, PortCounters};
use crate::ids::{ChannelId, CqId, CtxId, SrqId};
use crate::mad::Arrived;
use crate::memory::Memory;
use crate::objects::charges::Charges;
use crate::objects::cq::Armed;
use crate::objects::{AsyncEvent, EventSource, Objects};
use crate::observe::Observed;
use crate::port::Nic;
use crate::qp::QpTable;

/// The parts of the engine besides QPs and the receiving halves of the carriers.
#[derive(Debug)]
pub(crate) struct Common {
    pub(crate) nic: Nic,
    /// The time of the current call.
    pub(crate) now: Time,
    /// Whether packets arrived after `now` that did not need the time. Only true while they are
    /// handled.
    pub(crate) now_is_stale: bool,
    /// Whether a CQ was created whose completions have timestamps, or whose events are held back.
    /// Otherwise nobody sees how late `now` is.
    pub(crate) stamps: bool,
    pub(crate) objects: Objects,
    /// What its objects are charged to.
    pub(crate) charges: Charges,
    pub(crate) memory: Memory,
    /// The sending halves of the carriers.
    pub(crate) out: Senders,
    /// Packets that wait.
    pub(crate) waiting: Waiting,
    pub(crate) counters: PortCounters,
    /// Why work requests failed.
    pub(crate) failures: Failures,
    /// What sees each packet before and behind the carriers.
    pub(crate) observed: Observed,
}

/// Packets that arrived and wait.
#[derive(Debug, Default)]
pub(crate) struct Waiting {
    /// Datagrams for QP 1, for the communication manager.
    pub(crate) gsi: VecDeque<Arrived>,
    /// How much is kept of packets that overtook a lost one, for that.
    pub(crate) early: EarlyBytes,
}

impl Common {
    /// The carrier for packets to a QP at an address.
    #[inline]
    pub(super) fn route(&self, av: &Av, dest: Qpn) -> Route {
        Route::to(av, dest, &self.nic.port.gids, self.nic.vf, self.nic.config.force_udp)
    }

    /// The global route header that a datagram between two processes of this host would have
    /// carried.
    pub(super) fn grh(&self, av: &Av, headers: &Headers, length: u32) -> [u8; 40] {
        let payload =
            8 + headers.len() as u32 + length.next_multiple_of(4) + wire::icrc::LEN as u32;
        let (src, dst) = (self.nic.port.sgid(av.sgid_index).to_ip(), av.dgid.to_ip());
        Grh::new(src, dst, av.traffic_class, av.hop_limit_on_wire(), payload as u16)
            .map_or([0; 40], |grh| grh.to_bytes())
    }

    /// The counters of the port of a QP of this process.
    #[inline]
    pub(super) fn counters_at(&mut self, qps: &mut QpTable, qpn: Qpn) -> &mut Counters {
        let port = if self.counters.are_of_one() { 1 } else { qps.port_of(qpn) };
        self.counters.of(port)
    }

    /// Reads the clock, if packets have arrived since.
    #[inline]
    pub(super) fn catch_up(&mut self, clock: &Clock) {
        if mem::take(&mut self.now_is_stale) {
            self.now = clock.now();
        }
    }

    /// Puts a completion on a CQ, with these flags.
    #[inline]
    pub(super) fn complete_on(
        &mut self,
        id: CqId,
        qpn: Qpn,
        completion: &Completion,
        flags: WcFlags,
    ) {
        let now = self.now.as_nanos();
        let Some(cq) = self.objects.cqs.get_mut(id.index()) else { return };
        let was_overrun = cq.overrun;
        if cq.push(completion, flags, qpn, now) {
            if cq.armed != Armed::No {
                self.notify_cq(id, completion.solicited);
            }
        } else if !was_overrun {
            let (ctx, cookie) = (cq.ctx, cq.cookie);
            self.raise(ctx, EventType::CqErr, EventSource::Cq(id), cookie);
            self.note_overrun(id);
        }
    }

    /// Notifies the channel of a CQ of a completion, if the CQ is armed for it.
    fn notify_cq(&mut self, id: CqId, solicited: bool) {
        let Some(cq) = self.objects.cqs.get_mut(id.index()) else { return };
        let fire = match cq.armed {
            Armed::No => false,
            Armed::Solicited => solicited,
            Armed::Any => true,
        };
        if !fire {
            return;
        }
        match cq.holds_back(self.now) {
            None => self.report_cq(id),
            Some(at) => self.objects.due.moderated.extend(at.map(|at| (at, id))),
        }
    }

    /// Notifies the channel of a CQ, which then must be armed again.
    fn report_cq(&mut self, id: CqId) {
        let Some(cq) = self.objects.cqs.get_mut(id.index()) else { return };
        cq.armed = Armed::No;
        cq.held = 0;
        if cq.report_at.take().is_some() {
            self.objects.due.moderated.retain(|(_, moderated)| *moderated != id);
        }
        if let Some(channel) =
            cq.channel.and_then(|c: ChannelId| self.objects.channels.get_mut(c.index()))
        {
            channel.events.push(id, &mut self.objects.bells);
        }
    }

    /// Reports the CQs whose events were held back for the longest time allowed.
    pub(super) fn report_overdue(&mut self) -> bool {
        let now = self.now;
        if self.objects.due.moderated.iter().all(|(at, _)| *at > now) {
            return false;
        }
        let due = self.objects.due.moderated.extract_if(.., |(at, _)| *at <= now);
        for id in due.map(|(_, id)| id).collect::<Vec<_>>() {
            self.report_cq(id);
        }
        true
    }

    /// Raises an asynchronous event in one context.
    pub(super) fn raise(&mut self, ctx: CtxId, event: EventType, source: EventSource, cookie: u64) {
        tracing::debug!(target: "peerdma::event", ?event, ?source, "asynchronous event");
        self.trace_event(event);
        if let Some(ctx) = self.objects.ctxs.get_mut(ctx.index()) {
            ctx.events.push(AsyncEvent { event, source, cookie }, &mut self.objects.bells);
        }
    }

    /// Raises an asynchronous event of each port in every context.
    pub(super) fn raise_port(&mut self, event: EventType) {
        self.trace_event(event);
        for (_, ctx) in &mut self.objects.ctxs {
            for port in 1..=self.nic.attr.phys_port_cnt {
                let source = EventSource::Port(port);
                let event = AsyncEvent { event, source, cookie: 0 };
                ctx.events.push(event, &mut self.objects.bells);
            }
        }
    }

    /// In a forked child, gives every event queue a descriptor of its own, at the same number.
    pub(super) fn detach_event_queues(&mut self) {
        self.objects.ctxs.iter_mut().for_each(|(_, ctx)| ctx.events.detach());
        self.objects.channels.iter_mut().for_each(|(_, channel)| channel.events.detach());
    }

    /// Removes the completions that a QP left on its CQs.
    pub(super) fn clean_cqs(&mut self, qpn: Qpn, send: CqId, recv: CqId) {
        for id in [send, recv] {
            if let Some(cq) = self.objects.cqs.get_mut(id.index()) {
                cq.clean(qpn);
            }
        }
    }

    /// Takes the next receive of a shared queue, and raises its limit event when the level falls
    /// below it.
    pub(super) fn take_srq(&mut self, id: SrqId) -> Option<RecvWr> {
        let srq = self.objects.srqs.get_mut(id.index())?;
        let wr = srq.queue.pop_front()?;
        if srq.limit > 0 && srq.queue.len() < srq.limit as usize {
            srq.limit = 0;
            let (ctx, cookie) = (srq.ctx, srq.cookie);
            self.raise(ctx, EventType::SrqLimitReached, EventSource::Srq(id), cookie);
        }
        Some(wr)
    }
}
