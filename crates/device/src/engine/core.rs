//! Everything of the engine but its QPs: what a QP reaches through its environment.

use std::collections::VecDeque;
use std::mem;

use iba::{Av, EventType, Gid, Mtu, Qpn};
use slab::Slab;
use transport::Time;
use transport::env::Completion;
use transport::wr::RecvWr;
use wire::Headers;
use wire::grh::Grh;

use super::cq::{Armed, Cq};
use super::dm_budget::DmBudget;
use super::events::EventQueue;
use super::explain::Failures;
use super::faults::Faults;
use super::injected::Injected;
use super::mr::MrTable;
use super::multicast::Group;
use super::pinned::Pins;
use super::raw::Raw;
use super::tap::Tap;
use super::tm::TagList;
use super::xrc::{SrqXrc, Xrcd};
use crate::attr::DeviceAttr;
use crate::carrier::{Route, Senders};
use crate::clock::Clock;
use crate::config::NicConfig;
use crate::counters::Counters;
use crate::ids::{ChannelId, CqId, CtxId, PdId, QpId, SrqId};
use crate::objects::comp_cntr::CompCntr;

/// An open device, as one program part holds it.
#[derive(Debug)]
pub(crate) struct Ctx {
    pub(crate) events: EventQueue<AsyncEvent>,
}

/// A protection domain.
#[derive(Debug)]
pub(crate) struct Pd {
    pub(crate) ctx: CtxId,
    /// Objects in it.
    pub(crate) uses: u32,
}

/// A completion channel.
#[derive(Debug)]
pub(crate) struct Channel {
    pub(crate) ctx: CtxId,
    pub(crate) events: EventQueue<CqId>,
    pub(crate) uses: u32,
}

/// A shared receive queue.
#[derive(Debug)]
pub(crate) struct Srq {
    pub(crate) ctx: CtxId,
    pub(crate) pd: PdId,
    pub(crate) cookie: u64,
    pub(crate) max_wr: u32,
    pub(crate) max_sge: u32,
    /// Below this many receives an event is raised once; 0 is off.
    pub(crate) limit: u32,
    pub(crate) uses: u32,
    /// If it is one of XRC.
    pub(crate) xrc: Option<SrqXrc>,
    /// If it is one of tag matching.
    pub(crate) tm: Option<Box<TagList>>,
    pub(crate) queue: VecDeque<RecvWr>,
}

/// A block of device memory.
#[derive(Debug)]
pub(crate) struct Dm {
    pub(crate) ctx: CtxId,
    pub(crate) length: u64,
    pub(crate) memory: umem::HostBuf,
    pub(crate) uses: u32,
    /// Its dma-buf, once it was asked for.
    pub(crate) export: Option<crate::dm_export::DmExport>,
}

/// What an asynchronous event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum EventSource {
    /// A completion queue.
    Cq(CqId),
    /// A QP.
    Qp(QpId),
    /// A shared receive queue.
    Srq(SrqId),
    /// A port, from 1.
    Port(u8),
    /// The device.
    Device,
}

/// An asynchronous event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "ibv_async_event")]
#[non_exhaustive]
pub struct AsyncEvent {
    /// What happened.
    pub event: EventType,
    /// To what.
    pub source: EventSource,
    /// The cookie given when that object was made; 0 for ports and devices.
    pub cookie: u64,
}

/// Facts of the netdev under the port.
#[derive(Clone, Debug, Default)]
pub(crate) struct Port {
    pub(crate) netdev: String,
    pub(crate) ifindex: u32,
    pub(crate) active: bool,
    pub(crate) link_mtu: u32,
    pub(crate) speed_mbps: u32,
    pub(crate) gids: Vec<Gid>,
    /// The hardware address of the netdev.
    pub(crate) mac: [u8; 6],
    pub(crate) is_loopback: bool,
}

impl Port {
    /// The headers around a payload: IPv6, UDP, BTH, the longest extended headers and the ICRC.
    /// RoCE drivers leave as much room (`iboe_get_mtu` of the kernel).
    const OVERHEAD: u32 = 40 + 8 + 12 + 28 + 4;

    pub(crate) fn active_mtu(&self) -> Mtu {
        Mtu::largest_within(self.link_mtu, Self::OVERHEAD)
    }
}

/// The tables of the engine and the outward half of its carriers.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) config: NicConfig,
    pub(crate) attr: DeviceAttr,
    pub(crate) port: Port,
    pub(crate) vf: u16,
    /// The time of the current call.
    pub(crate) now: Time,
    pub(crate) ctxs: Slab<Ctx>,
    pub(crate) pds: Slab<Pd>,
    pub(crate) mrs: MrTable,
    pub(crate) channels: Slab<Channel>,
    pub(crate) cqs: Slab<Cq>,
    pub(crate) srqs: Slab<Srq>,
    pub(crate) xrcds: Slab<Xrcd>,
    pub(crate) groups: Vec<Group>,
    /// Ethernet frames of the port, and who has them.
    pub(crate) raw: Raw,
    pub(crate) dms: Slab<Dm>,
    pub(crate) comp_cntrs: Slab<CompCntr>,
    pub(crate) dm_budget: DmBudget,
    /// Pages charged to the limit of locked memory.
    pub(crate) pins: Pins,
    pub(crate) ahs: u32,
    pub(crate) counters: Counters,
    /// Who asks exporters of other processes where their buffers went.
    pub(crate) faults: Faults,
    /// The sending halves of the carriers.
    pub(crate) out: Senders,
    /// When events that are held back come at the latest.
    pub(crate) moderated: Vec<(Time, CqId)>,
    /// Datagrams for QP 1 that wait for the communication manager.
    pub(crate) gsi: VecDeque<super::cm::Arrived>,
    /// Records every packet, if the configuration names a file for it.
    pub(crate) tap: Option<Box<Tap>>,
    /// What goes wrong, if the configuration names a plan for it.
    pub(crate) injected: Option<Box<Injected>>,
    /// Why work requests failed.
    pub(crate) failures: Failures,
    /// QPs made since the NIC was opened.
    pub(crate) qps_made: u64,
    /// Whether a CQ was made whose completions say when they came, or whose events wait for a time.
    /// Else nobody sees how late `now` is.
    pub(crate) stamps: bool,
    /// CQs that overran, whose QPs are to end for it ([`super::overrun`]).
    pub(crate) overruns: Vec<CqId>,
    /// Whether packets came after `now` that did not need to know when. Only while they are dealt
    /// with.
    pub(crate) is_behind: bool,
}

impl Core {
    /// The carrier for packets to a QP at an address.
    #[inline]
    pub(crate) fn route(&self, av: &Av, dest: Qpn) -> Route {
        Route::to(av, dest, &self.port.gids, self.vf, self.config.force_udp)
    }

    /// The global route header that a datagram between two processes of this host would have
    /// carried.
    pub(crate) fn grh(&self, av: &Av, headers: &Headers, length: u32) -> [u8; 40] {
        let src = self.port.gids.get(usize::from(av.sgid_index)).copied().unwrap_or_default();
        let payload =
            8 + headers.len() as u32 + length.next_multiple_of(4) + wire::icrc::LEN as u32;
        let hop_limit = if av.hop_limit == 0 { 64 } else { av.hop_limit };
        let (src, dst) = (src.to_ip(), av.dgid.to_ip());
        Grh::new(src, dst, av.traffic_class, hop_limit, payload as u16)
            .map_or([0; 40], |grh| grh.to_bytes())
    }

    /// Looks at the clock, if packets came since.
    #[inline]
    pub(crate) fn catch_up(&mut self, clock: &Clock) {
        if mem::take(&mut self.is_behind) {
            self.now = clock.now();
        }
    }

    /// Whether somebody records packets or tampers with them, and sees each with its time.
    #[inline]
    pub(crate) fn is_observed(&self) -> bool {
        self.tap.is_some() || self.injected.is_some()
    }

    /// Puts a completion on a CQ.
    #[inline]
    pub(crate) fn complete_on(&mut self, id: CqId, qpn: Qpn, completion: &Completion) {
        let now = self.now.as_nanos();
        let Some(cq) = self.cqs.get_mut(id.index()) else { return };
        let was_overrun = cq.overrun;
        if cq.push(completion, qpn, now) {
            if cq.armed != Armed::No {
                self.notify_cq(id, completion.solicited);
            }
        } else if !was_overrun {
            let (ctx, cookie) = (cq.ctx, cq.cookie);
            self.raise(ctx, EventType::CqErr, EventSource::Cq(id), cookie);
            self.note_overrun(id);
        }
    }

    /// Tells the channel of a CQ that something came, if the CQ is armed for it.
    pub(crate) fn notify_cq(&mut self, id: CqId, solicited: bool) {
        let Some(cq) = self.cqs.get_mut(id.index()) else { return };
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
            Some(at) => self.moderated.extend(at.map(|at| (at, id))),
        }
    }

    /// Tells the channel of a CQ, which has to be armed anew then.
    pub(crate) fn report_cq(&mut self, id: CqId) {
        let Some(cq) = self.cqs.get_mut(id.index()) else { return };
        cq.armed = Armed::No;
        cq.held = 0;
        if cq.report_at.take().is_some() {
            self.moderated.retain(|(_, moderated)| *moderated != id);
        }
        if let Some(channel) = cq.channel.and_then(|c: ChannelId| self.channels.get_mut(c.index()))
        {
            channel.events.push(id);
        }
    }

    /// Reports the CQs whose events were held back for as long as they may be.
    pub(crate) fn report_overdue(&mut self) -> bool {
        let now = self.now;
        if self.moderated.iter().all(|(at, _)| *at > now) {
            return false;
        }
        let due = self.moderated.extract_if(.., |(at, _)| *at <= now);
        for id in due.map(|(_, id)| id).collect::<Vec<_>>() {
            self.report_cq(id);
        }
        true
    }

    /// Raises an asynchronous event in one context.
    pub(crate) fn raise(&mut self, ctx: CtxId, event: EventType, source: EventSource, cookie: u64) {
        tracing::debug!(target: "peerdma::event", ?event, ?source, "asynchronous event");
        if let Some(ctx) = self.ctxs.get_mut(ctx.index()) {
            ctx.events.push(AsyncEvent { event, source, cookie });
        }
    }

    /// Raises an asynchronous event of the port in every context.
    pub(crate) fn raise_port(&mut self, event: EventType) {
        for (_, ctx) in &mut self.ctxs {
            ctx.events.push(AsyncEvent { event, source: EventSource::Port(1), cookie: 0 });
        }
    }

    /// Gives every event queue a descriptor of its own, at the same number, in the child of a fork.
    pub(crate) fn detach_event_queues(&mut self) {
        self.ctxs.iter_mut().for_each(|(_, ctx)| ctx.events.detach());
        self.channels.iter_mut().for_each(|(_, channel)| channel.events.detach());
    }

    /// Removes what a QP left on its CQs.
    pub(crate) fn clean_cqs(&mut self, qpn: Qpn, send: CqId, recv: CqId) {
        for id in [send, recv] {
            if let Some(cq) = self.cqs.get_mut(id.index()) {
                cq.clean(qpn);
            }
        }
    }

    /// Takes the next receive of a shared queue, and raises its limit event when the level falls
    /// below it.
    pub(crate) fn take_srq(&mut self, id: SrqId) -> Option<RecvWr> {
        let srq = self.srqs.get_mut(id.index())?;
        let wr = srq.queue.pop_front()?;
        if srq.limit > 0 && srq.queue.len() < srq.limit as usize {
            srq.limit = 0;
            let (ctx, cookie) = (srq.ctx, srq.cookie);
            self.raise(ctx, EventType::SrqLimitReached, EventSource::Srq(id), cookie);
        }
        Some(wr)
    }
}
