//! From a datagram, checked and taken apart, or a record to the QP that it names.

use iba::Qpn;
use link::udp::Payloads;
use transport::env::Rx;
use umem::Pieces;
use wire::grh::Grh;
use wire::icrc::{Flow, IcrcError};
use wire::{Headers, Position};

use super::common::Common;
use super::fast_path::datagram::deliver_fast;
use super::multicast::{deliver_to_group, is_for_group};
use super::observed::deliver;
use crate::carrier::About;
use crate::carrier::shm::Forwarded;
use crate::carrier::udp::alike::{MOST_JOINED, count_alike};
use crate::carrier::udp::{Intake, ecn};
use crate::clock::Clock;
use crate::ids::QpId;
use crate::payload::{Cut, InPayload};
use crate::qp::{QpTable, vf_of};
use crate::receiver::{Receiver, Sender};

/// The bits of a P_Key that name the partition; the other says how far its member is trusted (IBA
/// 10.9.1.1).
const PARTITION: u16 = 0x7fff;
/// Bytes of a UDP header.
const UDP_HEADER: usize = 8;
/// Whether a datagram, good or not, is for this process rather than for another one of the host.
pub(super) fn is_for(vf: u16, bytes: &[u8]) -> bool {
    let dest = Headers::parse_prefix(bytes).map_or(0, |(headers, _)| headers.bth.dest_qp.value());
    dest <= 1 || dest == Qpn::MULTICAST.value() || vf_of(Qpn::new(dest)) == vf
}

/// How a datagram came here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// From the socket.
    Socket,
    /// By another process, which the kernel gave it to. It goes no further: else we would lend that
    /// process our name.
    Forwarded,
}

/// A datagram's way here, and what the kernel said of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival<'a> {
    pub(super) way: Way,
    pub(super) about: &'a About,
    pub(super) flow: &'a Flow,
    pub(super) clock: &'a Clock,
}

/// What the ICRC of so many datagrams covers of the headers around them; none, if they are not for
/// this port. They are counted.
pub(super) fn flow_of(common: &mut Common, about: &About, count: usize) -> Option<Flow> {
    let &About { src, dst, .. } = about;
    common.counters.rx_udp_packets += count as u64;
    // The socket hears every address of the host; the port is only those of its netdev (the
    // kernel's rxe_match_dgid).
    if !dst.ip().is_multicast() && !common.nic.port.gids.contains(&dst.ip().into()) {
        common.counters.rx_wrong_destination += count as u64;
        tracing::debug!(target: "peerdma::drop", %src, %dst, "not an address of this port");
        return None;
    }
    Flow::new(src, dst)
}

/// Delivers what arrived together.
pub(super) fn deliver_train(
    common: &mut Common,
    qps: &mut QpTable,
    intake: &mut Intake,
    clock: &Clock,
    about: &About,
    train: &link::udp::Train<'_>,
    touched: &mut Vec<QpId>,
) {
    let Some(flow) = flow_of(common, about, train.len()) else { return };
    intake.verifier.begin_train(&flow);
    let mut rest = train.payloads();
    let mut took = false;
    while rest.len() > 0 {
        let arrival = Arrival { way: Way::Socket, about, flow: &flow, clock };
        let id = deliver_datagram(common, qps, intake, arrival, &mut rest);
        // They are mostly for one QP.
        if id.is_some() && touched.last() != id.as_ref() {
            touched.extend(id);
        }
        took |= id.is_some();
    }
    // Who shares a port with others has none to himself.
    if took && !train.by_rx_socket && about.src.port() != about.dst.port() {
        intake.came_from(about.src, about.dst.ip());
    }
}

/// How many packets, this one included, a QP would take together if more like it came with it.
fn joinable(common: &Common, qps: &mut QpTable, arrival: Arrival<'_>, headers: &Headers) -> u32 {
    // Who records packets or tampers with them sees each.
    let is_plain = arrival.way == Way::Socket
        && headers.bth.opcode.position() == Position::Middle
        && common.is_plain();
    if !is_plain {
        return 0;
    }
    let Some(entry) = qps.by_number(headers.bth.dest_qp) else { return 0 };
    let is_from_peer = entry.context.route.is_udp()
        && entry.context.av.dgid == iba::Gid::from(arrival.about.src.ip());
    if is_from_peer { entry.qp.joinable(headers) } else { 0 }
}

/// Takes a datagram apart and delivers it, with those behind it that continue it.
pub(super) fn deliver_datagram(
    common: &mut Common,
    qps: &mut QpTable,
    intake: &mut Intake,
    arrival: Arrival<'_>,
    datagrams: &mut Payloads<'_>,
) -> Option<QpId> {
    let Arrival { way, about, flow, clock } = arrival;
    let train = datagrams.bytes();
    let bytes = datagrams.next()?;
    if bytes.is_empty() {
        // A sender that opens a transmit socket looks at what an empty datagram is sent as.
        return None;
    }
    let About { src, dst, .. } = about;
    let verified = intake.verifier.verify(flow, bytes);
    if !common.is_plain() && (way == Way::Forwarded || is_for(common.nic.vf, bytes)) {
        common.record_datagram(about, verified.as_ref().map_or(0, |(_, id)| *id), bytes);
    }
    let (packet, id) = match verified {
        Ok(good) => good,
        Err(error) => {
            match error {
                IcrcError::Parse(_) => common.counters.rx_malformed_packets += 1,
                _ => common.counters.rx_icrc_encapsulated += 1,
            }
            tracing::debug!(target: "peerdma::drop", %src, "{error}");
            return None;
        }
    };
    let marked = about.traffic_class & ecn::MASK == ecn::CE;
    let is_plain = way == Way::Socket && !marked && common.is_plain();
    if is_plain && let Some(id) = deliver_fast(common, qps, about, packet) {
        return Some(id);
    }
    common.catch_up(clock);
    let mut headers = Headers::default();
    let range = match headers.read(packet) {
        Ok(range) => range,
        Err(error) => {
            common.counters.rx_malformed_packets += 1;
            tracing::debug!(target: "peerdma::drop", %src, "{error}");
            return None;
        }
    };
    // IBA C9-42; the port's only key is the default one, of a full member.
    if headers.bth.pkey.0 & PARTITION != iba::PKey::DEFAULT.0 & PARTITION {
        common.counters.pkey_violation += 1;
        tracing::debug!(target: "peerdma::drop", %src, pkey = headers.bth.pkey.0, "not our partition");
        return None;
    }
    let Some(to_group) = is_for_group(headers.bth.dest_qp, *dst) else {
        common.counters.rx_wrong_destination += 1;
        tracing::debug!(target: "peerdma::drop", %src, %dst, "a group's QP or address without the other");
        return None;
    };
    let vf = vf_of(headers.bth.dest_qp);
    if vf != common.nic.vf && !to_group && headers.bth.dest_qp.value() > 1 && way == Way::Socket {
        match common.out.shm.forward(common.now, vf, about, bytes) {
            Forwarded::Yes => {
                common.counters.forwarded_packets += 1;
                intake.was_missteered();
            }
            Forwarded::NoRoom => common.counters.dropped_packets += 1,
            Forwarded::NoSuchProcess => {
                common.counters.rx_unknown_qpn += 1;
                let qpn = headers.bth.dest_qp;
                tracing::debug!(target: "peerdma::drop", %qpn, %src, "no such QP, as no such process");
            }
        }
        return None;
    }
    let packets = match joinable(common, qps, arrival, &headers).min(MOST_JOINED) {
        most @ 2.. if !marked => {
            count_alike(&mut intake.verifier, flow, (bytes, id), &headers, datagrams, most)
        }
        _ => 1,
    };
    let payload = if packets > 1 {
        datagrams.nth(packets as usize - 2);
        let (first, len) = (range.start, range.len());
        let pieces = Pieces { first, len, stride: bytes.len(), count: packets as usize };
        InPayload::Train(Cut { bytes: train, pieces })
    } else {
        InPayload::Bytes(&packet[range])
    };
    let is_datagram = headers.deth().is_some();
    let grh = is_datagram
        .then(|| {
            let length = (bytes.len() + UDP_HEADER) as u16;
            Grh::new(src.ip(), dst.ip(), about.traffic_class, about.hop_limit, length)
        })
        .flatten()
        .map(|grh| grh.to_bytes());
    let rx = Rx {
        headers: &headers,
        payload: &payload,
        length: payload.len(),
        packets,
        skipped: Default::default(),
        grh: grh.as_ref(),
        marked,
    };
    if headers.bth.dest_qp == Qpn::GSI && way == Way::Socket {
        // It may be another process's, which only what it says tells.
        common.arrive_at_gsi(&rx, None, Some((about, bytes)));
        return None;
    }
    if to_group {
        // Every process that joined was given a copy by the kernel, so none comes by way of
        // another.
        if way == Way::Socket && !common.is_port_down() {
            deliver_to_group(common, qps, dst.ip(), &rx);
        }
        return None;
    }
    deliver(common, qps, Receiver::Named(Sender::Host(src.ip().into())), &rx)
}
