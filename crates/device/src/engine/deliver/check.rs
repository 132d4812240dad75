//! The checks of a datagram before a QP sees it, and its destination.

use std::ops::Range;

use iba::Qpn;
use link::udp::Payloads;
use wire::grh::{self, Grh};
use wire::icrc::{Flow, IcrcError};
use wire::{Headers, Position};

use super::super::common::Common;
use super::super::multicast::{is_for_group, port_of_group};
use super::{Arrival, Way};
use crate::carrier::About;
use crate::carrier::shm::Forwarded;
use crate::carrier::udp::Intake;
use crate::qp::{QpTable, vf_of};

/// The bits of a P_Key that name the partition; the remaining bit is the membership (IBA 10.9.1.1).
const PARTITION: u16 = 0x7fff;

/// Bytes of a UDP header.
const UDP_HEADER: usize = 8;

/// The destination of a datagram of this port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dest {
    /// To the QP that it names.
    Qp,
    /// To QP 1.
    Gsi,
    /// To the members of a multicast group.
    Group,
    /// To the process of this virtual function.
    Process(u16),
}

/// Counts datagrams that arrived together, each on the port of the QP that it names.
pub(in crate::engine) fn count_arrived(
    common: &mut Common,
    qps: &mut QpTable,
    about: &About,
    datagrams: Payloads<'_>,
) {
    if common.counters.are_of_one() {
        common.counters.first.rx_udp_packets += datagrams.len() as u64;
        common.counters.first.rx_bytes += datagrams.bytes().len() as u64;
        return;
    }
    for datagram in datagrams {
        let port = match about.dst.ip() {
            group if group.is_multicast() => port_of_group(common, qps, group.into()),
            _ => qps.port_of(named_by(datagram)),
        };
        let counters = common.counters.of(port);
        counters.rx_udp_packets += 1;
        counters.rx_bytes += datagram.len() as u64;
    }
}

/// Counts a datagram that another process forwarded to this one. The bytes of one for QP 1 stay
/// counted where it arrived.
pub(in crate::engine) fn count_forwarded(common: &mut Common, qps: &mut QpTable, bytes: &[u8]) {
    let dest = named_by(bytes);
    let counters = common.counters_at(qps, dest);
    counters.rx_udp_packets += 1;
    if dest != Qpn::GSI {
        counters.rx_bytes += bytes.len() as u64;
    }
}

/// The QP that a datagram names, valid or not.
fn named_by(bytes: &[u8]) -> Qpn {
    Headers::parse_prefix(bytes).map_or(Qpn::new(0), |(headers, _)| headers.bth.dest_qp)
}

/// The part of the outer headers that the ICRC of these datagrams covers; `None` if they are not
/// for this port, which is counted.
pub(in crate::engine) fn flow_of(common: &mut Common, about: &About, count: usize) -> Option<Flow> {
    let &About { src, dst, .. } = about;
    // The socket receives on every address of the host; the port has only those of its netdev (the
    // kernel's rxe_match_dgid).
    if !dst.ip().is_multicast() && !common.nic.port.gids.contains(&dst.ip().into()) {
        common.counters.first.rx_wrong_destination += count as u64;
        tracing::debug!(target: "peerdma::drop", %src, %dst, "not an address of this port");
        return None;
    }
    Flow::new(src, dst)
}

/// The packet in a datagram, without its ICRC, and the identification that the ICRC is for; `None`
/// if the ICRC is wrong, which is counted.
#[inline]
pub(super) fn check<'a>(
    common: &mut Common,
    intake: &mut Intake,
    arrival: Arrival<'_>,
    bytes: &'a [u8],
) -> Option<(&'a [u8], u16)> {
    let Arrival { way, about, flow, .. } = arrival;
    let verified = intake.verifier.verify(flow, bytes);
    if !common.is_plain() && (way == Way::Forwarded || is_for(common.nic.vf, bytes)) {
        common.record_datagram(about, verified.as_ref().map_or(0, |(_, id)| *id), bytes);
    }
    match verified {
        Ok(good) => Some(good),
        Err(error) => {
            match error {
                IcrcError::Parse(_) => common.counters.first.rx_malformed_packets += 1,
                _ => common.counters.first.rx_icrc_encapsulated += 1,
            }
            tracing::debug!(target: "peerdma::drop", src = %about.src, "{error}");
            None
        }
    }
}

/// Whether a datagram, valid or not, is for this process rather than for another one of the host.
pub(in crate::engine) fn is_for(vf: u16, bytes: &[u8]) -> bool {
    let dest = named_by(bytes);
    dest.value() <= 1 || dest == Qpn::MULTICAST || vf_of(dest) == vf
}

/// Reads the headers of a packet, and returns where its payload is; `None` for an invalid packet,
/// or one of another partition, which is counted.
#[inline]
pub(super) fn read(
    common: &mut Common,
    about: &About,
    packet: &[u8],
    headers: &mut Headers,
) -> Option<Range<usize>> {
    let src = about.src;
    let range = match headers.read(packet) {
        Ok(range) => range,
        Err(error) => {
            common.counters.first.rx_malformed_packets += 1;
            tracing::debug!(target: "peerdma::drop", %src, "{error}");
            return None;
        }
    };
    // IBA C9-42; the port's only key is the default one, of a full member.
    let pkey = headers.bth.pkey.0;
    if pkey & PARTITION != iba::PKey::DEFAULT.0 & PARTITION {
        common.counters.first.pkey_violation += 1;
        tracing::debug!(target: "peerdma::drop", %src, pkey, "not our partition");
        return None;
    }
    Some(range)
}

/// The destination of a packet; `None` if it is invalid.
#[inline]
pub(super) fn destination(
    common: &mut Common,
    arrival: Arrival<'_>,
    headers: &Headers,
) -> Option<Dest> {
    let &About { src, dst, .. } = arrival.about;
    let (dest_qp, is_of_socket) = (headers.bth.dest_qp, arrival.way == Way::Socket);
    let Some(to_group) = is_for_group(dest_qp, dst) else {
        common.counters.first.rx_wrong_destination += 1;
        tracing::debug!(target: "peerdma::drop", %src, %dst, "the QP of a group without its address, or the reverse");
        return None;
    };
    if to_group {
        // The kernel gave every process that joined a copy, so none is forwarded.
        return (is_of_socket && !common.is_port_down()).then_some(Dest::Group);
    }
    let vf = vf_of(dest_qp);
    Some(match dest_qp {
        Qpn::GSI if is_of_socket => Dest::Gsi,
        _ if dest_qp.value() > 1 && vf != common.nic.vf && is_of_socket => Dest::Process(vf),
        _ => Dest::Qp,
    })
}

/// Forwards a datagram to its process of this host.
pub(super) fn pass_on(
    common: &mut Common,
    intake: &mut Intake,
    about: &About,
    headers: &Headers,
    vf: u16,
    bytes: &[u8],
) {
    match common.out.shm.forward(common.now, vf, about, bytes) {
        Forwarded::Yes => {
            common.counters.first.forwarded_packets += 1;
            // They count in its process.
            common.counters.first.rx_bytes -= bytes.len() as u64;
            intake.was_missteered();
        }
        Forwarded::NoRoom => common.counters.first.dropped_packets += 1,
        Forwarded::NoSuchProcess => {
            common.counters.first.rx_unknown_qpn += 1;
            let (qpn, src) = (headers.bth.dest_qp, about.src);
            tracing::debug!(target: "peerdma::drop", %qpn, %src, "no such QP, as there is no such process");
        }
    }
}

/// How many packets, this one included, a QP would handle together if more like it arrived with it.
pub(super) fn joinable(
    common: &Common,
    qps: &mut QpTable,
    arrival: Arrival<'_>,
    headers: &Headers,
) -> u32 {
    // Observers that record packets or tamper with them see each packet.
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

/// The GRH that a receive of a datagram of this many bytes has before the payload.
pub(super) fn grh_of(about: &About, bytes: usize) -> Option<[u8; grh::LEN]> {
    let &About { src, dst, traffic_class, hop_limit } = about;
    // CAST: a datagram is shorter than 64 KiB.
    let length = (bytes + UDP_HEADER) as u16;
    Grh::new(src.ip(), dst.ip(), traffic_class, hop_limit, length).map(|grh| grh.to_bytes())
}
