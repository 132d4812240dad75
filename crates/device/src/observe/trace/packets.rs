//! Packets in a trace.

use iba::Qpn;
use perfetto::Kind;
use transport::Time;
use wire::Headers;
use wire::aeth::Syndrome;

use super::Tracer;
use super::names::{self, Arg, Category};
use crate::carrier::Route;
use crate::qp::QpContext;

impl Tracer {
    /// A QP sent a packet, for its current request if the packet is one.
    pub(crate) fn sent(
        &mut self,
        now: Time,
        context: &QpContext,
        headers: &Headers,
        (length, route, key): (u32, Route, Option<u32>),
    ) {
        let at = self.times.at(now);
        let is_request = headers.bth.opcode.is_request();
        let of = is_request.then(|| self.qps.get(&context.qpn)).flatten();
        let request = of.and_then(|qp| qp.sends.behind(context.wr_behind));
        // A request that the NIC itself posted, for a rendezvous, has no slice.
        let request = request.filter(|open| open.wr_id == context.wr_id).map(|open| open.flow);
        let peer = headers.bth.dest_qp;
        let name = names::of_packet(headers.bth.opcode);
        let mut event = self.trace.event(at, Kind::Instant, self.tracks.sent, name);
        event
            .category(Category::Packet as u64)
            .flow(flow_of(context.qpn, peer, headers))
            .hex(Arg::Qp as u64, context.qpn.value().into())
            .hex(Arg::Peer as u64, peer.value().into())
            .number(Arg::Psn as u64, headers.bth.psn.value().into())
            .number(Arg::Bytes as u64, length.into())
            .word(Arg::Path as u64, names::of_route(route));
        if let Some(flow) = request {
            event.flow(flow).correlation(flow).hex(Arg::WrId as u64, context.wr_id);
        }
        if let Some(key) = key {
            event.hex(Arg::Key as u64, key.into());
        }
        answer(&mut event, headers);
    }

    /// A packet came for a QP, which handles it until [`Tracer::handled`].
    pub(crate) fn received(
        &mut self,
        now: Time,
        (own, from): (Qpn, Qpn),
        headers: &Headers,
        length: u32,
    ) {
        let at = self.times.at(now);
        let flow = flow_of(from, headers.bth.dest_qp, headers);
        self.handled = Some(flow);
        let name = names::of_packet(headers.bth.opcode);
        let mut event = self.trace.event(at, Kind::Instant, self.tracks.received, name);
        event
            .category(Category::Packet as u64)
            .flow(flow)
            .hex(Arg::Qp as u64, own.value().into())
            .hex(Arg::Peer as u64, from.value().into())
            .number(Arg::Psn as u64, headers.bth.psn.value().into())
            .number(Arg::Bytes as u64, length.into());
        answer(&mut event, headers);
    }

    /// The packet that came was handled.
    pub(crate) fn handled(&mut self) {
        self.handled = None;
    }
}

/// The flow of a packet, by which its sender and its receiver know it.
fn flow_of(from: Qpn, to: Qpn, headers: &Headers) -> u64 {
    let psn = headers.bth.psn.value();
    perfetto::id(&[from.value().into(), to.value().into(), psn.into()])
}

/// Adds what an acknowledgement says, unless that is all well.
fn answer(event: &mut perfetto::Event<'_>, headers: &Headers) {
    let Some(aeth) = headers.aeth() else { return };
    if !matches!(aeth.syndrome, Syndrome::Ack { .. }) {
        event.text(Arg::Answer as u64, &aeth.syndrome.to_string());
    }
}
