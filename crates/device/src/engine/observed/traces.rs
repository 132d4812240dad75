//! Tells the tracer what happens, at every point where something does. Without a tracer, nothing of
//! this has an effect.

use fault::{Strike, Verdict};
use iba::{EventType, Psn, Qpn};
use transport::env::{Completion, Rx, Source, To};
use wire::{Headers, Opcode};

use super::faults::deliver_by_plan;
use crate::clock::Clock;
use crate::engine::common::Common;
use crate::engine::env::QpEnv;
use crate::ids::{QpId, SrqId};
use crate::observe::trace::{Event, Tracer};
use crate::payload::InPayload;
use crate::qp::{QpContext, QpEntry, QpTable};
use crate::receiver::Receiver;

/// Gives a packet that observers see to its receiver.
#[cold]
pub(super) fn deliver_observed(
    common: &mut Common,
    qps: &mut QpTable,
    to: Receiver,
    rx: &Rx<'_, InPayload<'_>>,
) -> Option<QpId> {
    common.trace_received(qps, to, rx);
    let delivered = deliver_by_plan(common, qps, to, rx);
    common.trace_handled();
    delivered
}

impl QpEnv<'_, '_> {
    /// A packet of this QP was sent, or stands in line for the socket.
    pub(super) fn trace_sent(&mut self, to: To<'_>, headers: &Headers, source: &Source<'_>) {
        let now = self.common.now;
        let route = self.route_of(to, headers.bth.dest_qp);
        let key = match source {
            Source::Sges { sges, .. } => sges.first().map(|sge| sge.lkey.0),
            Source::Remote { rkey, .. } => Some(rkey.0),
            Source::Empty | Source::Bytes(_) => None,
        };
        if let Some(tracer) = self.common.tracer() {
            tracer.sent(now, self.context, headers, (source.len(), route, key));
        }
    }
}

impl Common {
    fn tracer(&mut self) -> Option<&mut Tracer> {
        self.observed.get_mut()?.tracer.as_deref_mut()
    }

    /// The last `count` sends of a QP were just posted.
    #[cold]
    pub(crate) fn trace_posted(&mut self, entry: &QpEntry, count: usize, clock: &Clock) {
        let Some(tracer) = self.tracer() else { return };
        for (wr, length) in entry.qp.last_sends(count) {
            tracer.send(clock.now(), &entry.context, wr, length);
        }
    }

    /// A receive was just posted to a QP: its `wr_id`, and its room.
    #[cold]
    pub(crate) fn trace_receive(&mut self, context: &QpContext, posted: (u64, u64), clock: &Clock) {
        if let Some(tracer) = self.tracer() {
            tracer.receive(clock.now(), context, posted);
        }
    }

    /// A receive was just posted to a shared queue.
    #[cold]
    pub(crate) fn trace_shared_receive(&mut self, id: SrqId, clock: &Clock) {
        let Self { objects, observed, .. } = self;
        let tracer = observed.get_mut().and_then(|observers| observers.tracer.as_deref_mut());
        let last = objects.srqs.get(id.index()).and_then(|srq| srq.queue.back());
        if let (Some(tracer), Some(wr)) = (tracer, last) {
            tracer.shared_receive(clock.now(), id, wr);
        }
    }

    /// A packet is about to be given to its receiver.
    pub(super) fn trace_received(
        &mut self,
        qps: &mut QpTable,
        to: Receiver,
        rx: &Rx<'_, InPayload<'_>>,
    ) {
        let now = self.now;
        let Some(tracer) = self.tracer() else { return };
        let entry = match to {
            Receiver::Named(_) => qps.by_number(rx.headers.bth.dest_qp),
            Receiver::Member(id) => qps.get_mut(id),
        };
        let Some(QpEntry { context, .. }) = entry else { return };
        let from = rx.headers.deth().map_or(context.dest_qpn, |deth| deth.src_qp);
        tracer.received(now, (context.qpn, from), rx.headers, rx.length);
    }

    /// That packet was handled.
    pub(super) fn trace_handled(&mut self) {
        if let Some(tracer) = self.tracer() {
            tracer.handled();
        }
    }

    /// A request is about to complete.
    #[cold]
    pub(crate) fn trace_completion(&mut self, context: &QpContext, completion: &Completion) {
        let now = self.now;
        if let Some(tracer) = self.tracer() {
            tracer.completed(now, context, completion);
        }
    }

    /// The oldest send of a QP ended without a completion.
    #[cold]
    pub(crate) fn trace_silent_end(&mut self, qpn: Qpn) {
        let now = self.now;
        if let Some(tracer) = self.tracer() {
            tracer.ended_silently(now, qpn);
        }
    }

    /// The reason why a request fails, whose completion follows.
    pub(crate) fn trace_failure(&mut self, words: &str) {
        if let Some(tracer) = self.tracer() {
            tracer.fails(words);
        }
    }

    /// A QP lost its requests without completions.
    pub(crate) fn trace_emptied(&mut self, qpn: Qpn, why: &str, clock: &Clock) {
        if let Some(tracer) = self.tracer() {
            tracer.emptied(clock.now(), qpn, why);
        }
    }

    /// A shared queue was destroyed.
    pub(crate) fn trace_emptied_srq(&mut self, id: SrqId, clock: &Clock) {
        if let Some(tracer) = self.tracer() {
            tracer.emptied_srq(clock.now(), id);
        }
    }

    /// Pages of a region were faulted in.
    pub(crate) fn trace_fault(&mut self, key: u32, addr: u64, faults: u64) {
        let now = self.now;
        if let Some(tracer) = self.tracer() {
            tracer.memory(now, Event::PageFault, (key, addr, faults), "");
        }
    }

    /// A region found its buffer at another place.
    pub(crate) fn trace_map_again(&mut self, key: u32) {
        let now = self.now;
        if let Some(tracer) = self.tracer() {
            tracer.memory(now, Event::MapAgain, (key, 0, 0), "");
        }
    }

    /// A region lost its memory.
    pub(crate) fn trace_revoke(&mut self, key: u32, words: &str) {
        let now = self.now;
        if let Some(tracer) = self.tracer() {
            tracer.memory(now, Event::Revoked, (key, 0, 0), words);
        }
    }

    /// An asynchronous event is raised.
    pub(crate) fn trace_event(&mut self, event: EventType) {
        let now = self.now;
        if let Some(tracer) = self.tracer() {
            tracer.event(now, &format!("{event:?}"));
        }
    }

    /// A plan judged a packet.
    pub(super) fn trace_verdict(
        &mut self,
        verdict: Verdict,
        (qpn, psn, opcode): (Qpn, Psn, Opcode),
    ) {
        let now = self.now;
        if verdict != Verdict::Pass
            && let Some(tracer) = self.tracer()
        {
            let what = format!("{verdict} {opcode}");
            tracer.plan(now, &what, Some((qpn, psn.value())));
        }
    }

    /// A plan acts on something else than a packet.
    pub(super) fn trace_strike(&mut self, strike: &Strike) {
        let now = self.now;
        if let Some(tracer) = self.tracer() {
            tracer.plan(now, &strike.to_string(), None);
        }
    }
}
