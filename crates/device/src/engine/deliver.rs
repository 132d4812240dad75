//! Delivers datagrams, checked and parsed, to the QPs that they name.

mod check;

use link::udp::Payloads;
use transport::env::Rx;
use umem::Pieces;
use wire::Headers;
use wire::icrc::Flow;

use self::check::{Dest, check, destination, grh_of, joinable, pass_on, read};
pub(super) use self::check::{count_arrived, count_forwarded, flow_of, is_for};
use super::common::Common;
use super::fast_path::datagram::deliver_fast;
use super::multicast::deliver_to_group;
use super::observed::deliver;
use crate::carrier::About;
use crate::carrier::udp::alike::{MOST_JOINED, count_alike};
use crate::carrier::udp::{Intake, ecn};
use crate::clock::Clock;
use crate::ids::QpId;
use crate::payload::{Cut, InPayload};
use crate::qp::QpTable;
use crate::receiver::{Receiver, Sender};

/// How a datagram arrived.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::engine) enum Way {
    /// From the socket.
    Socket,
    /// From another process, which the kernel gave it to. It is not forwarded again: otherwise that
    /// process could send in our name.
    Forwarded,
}

/// How a datagram arrived, and what the kernel reported about it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Arrival<'a> {
    pub(super) way: Way,
    pub(super) about: &'a About,
    pub(super) flow: &'a Flow,
    pub(super) clock: &'a Clock,
}

/// Delivers datagrams that arrived together.
pub(super) fn deliver_train(
    common: &mut Common,
    qps: &mut QpTable,
    intake: &mut Intake,
    clock: &Clock,
    about: &About,
    train: &link::udp::Train<'_>,
    touched: &mut Vec<QpId>,
) {
    count_arrived(common, qps, about, train.payloads());
    let Some(flow) = flow_of(common, about, train.len()) else { return };
    intake.verifier.begin_train(&flow);
    let mut rest = train.payloads();
    let mut took = false;
    while rest.len() > 0 {
        let arrival = Arrival { way: Way::Socket, about, flow: &flow, clock };
        let id = deliver_datagram(common, qps, intake, arrival, &mut rest);
        // Most are for one QP.
        if id.is_some() && touched.last() != id.as_ref() {
            touched.extend(id);
        }
        took |= id.is_some();
    }
    // A sender that shares its port with others gets no socket of its own.
    if took && !train.by_rx_socket && about.src.port() != about.dst.port() {
        intake.came_from(about.src, about.dst.ip());
    }
}

/// Parses a datagram and delivers it, with the datagrams after it that continue it.
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
        // A sender that opens a transmit socket sends empty datagrams to see their identification.
        return None;
    }
    let (packet, id) = check(common, intake, arrival, bytes)?;
    let marked = about.traffic_class & ecn::MASK == ecn::CE;
    let is_plain = way == Way::Socket && !marked && common.is_plain();
    if is_plain && let Some(id) = deliver_fast(common, qps, about, packet) {
        return Some(id);
    }
    common.catch_up(clock);
    let mut headers = Headers::default();
    let range = read(common, about, packet, &mut headers)?;
    let dest = destination(common, arrival, &headers)?;
    if let Dest::Process(vf) = dest {
        pass_on(common, intake, about, &headers, vf, bytes);
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
    let grh = headers.deth().and_then(|_| grh_of(about, bytes.len()));
    let rx = Rx {
        headers: &headers,
        payload: &payload,
        length: payload.len(),
        packets,
        skipped: Default::default(),
        grh: grh.as_ref(),
        marked,
    };
    match dest {
        Dest::Process(_) => None,
        Dest::Gsi => {
            // It may be for another process, which only its contents show.
            common.arrive_at_gsi(&rx, None, Some((about, bytes)));
            None
        }
        Dest::Group => {
            deliver_to_group(common, qps, about.dst.ip(), &rx);
            None
        }
        Dest::Qp => deliver(common, qps, Receiver::Named(Sender::Host(about.src.ip().into())), &rx),
    }
}
