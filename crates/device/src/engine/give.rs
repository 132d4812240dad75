//! Gives a packet to its QP.

use iba::Qpn;
use transport::Time;
use transport::env::Rx;

use super::Engine;
use super::common::Common;
use super::env::QpEnv;
use crate::ids::QpId;
use crate::payload::InPayload;
use crate::qp::{QpEntry, QpTable};
use crate::receiver::{Receiver, Sender};

impl Receiver {
    /// Gives a packet to its QP. Returns the QP that may have an answer now.
    #[inline]
    pub(super) fn give(
        self,
        common: &mut Common,
        qps: &mut QpTable,
        rx: &Rx<'_, InPayload<'_>>,
    ) -> Option<QpId> {
        match self {
            Self::Named(sender) => give_to_named(common, qps, sender, rx),
            Self::Member(id) => {
                give_to_member(common, qps, id, rx);
                Some(id)
            }
        }
    }
}

/// Gives a packet to the QP that it names, if that QP is connected to the sender.
#[inline]
fn give_to_named(
    common: &mut Common,
    qps: &mut QpTable,
    sender: Sender,
    rx: &Rx<'_, InPayload<'_>>,
) -> Option<QpId> {
    let dest = rx.headers.bth.dest_qp;
    if dest == Qpn::GSI {
        let via = match sender {
            Sender::Own(_) => Some(common.nic.vf),
            Sender::Process(vf, _) => Some(vf),
            Sender::Host(_) => None,
        };
        common.arrive_at_gsi(rx, via, None);
        return None;
    }
    let Some(entry) = qps.by_number(dest) else {
        common.counters.first.rx_unknown_qpn += 1;
        tracing::debug!(target: "peerdma::drop", qpn = %dest, ?sender, "no such QP");
        return None;
    };
    let context = &entry.context;
    let from_peer = !context.qp_type.is_connected()
        || match sender {
            Sender::Own(qpn) => context.route.is_loopback() && qpn == context.dest_qpn,
            Sender::Process(vf, qpn) => context.route.peer() == Some(vf) && qpn == context.dest_qpn,
            Sender::Host(gid) => context.route.is_udp() && gid == context.av.dgid,
        };
    if !from_peer {
        common.counters.of(context.port).rx_wrong_source += 1;
        tracing::debug!(target: "peerdma::drop", qpn = %dest, ?sender, "not the peer of this QP");
        return None;
    }
    let id = context.id;
    let now = common.now;
    if !common.select_srq(&mut entry.context, rx.headers) {
        return None;
    }
    if rx.packets == 1
        && entry.qp.is_early(rx.headers, rx.length)
        && let Some(payload) = common.waiting.early.keep(rx)
    {
        entry.context.early.keep(&mut entry.qp, *rx.headers, rx.length, payload);
    }
    entry.qp.handle_packet(&mut QpEnv::new(common, &mut entry.context), now, rx);
    if !entry.context.early.is_empty() {
        give_early(common, entry, now);
    }
    Some(id)
}

impl Engine {
    /// Gives a QP what was put back as its memory was absent, which it may have found by now.
    /// Returns whether there was anything.
    pub(super) fn give_again(&mut self, id: QpId) -> bool {
        let Self { common, qps, .. } = self;
        let now = common.now;
        qps.get_mut(id).is_some_and(|entry| give_early(common, entry, now))
    }
}

/// Gives a QP the packets that overtook a lost one, as far as their turn has come. Returns whether
/// that of any has.
#[cold]
fn give_early(common: &mut Common, entry: &mut QpEntry, now: Time) -> bool {
    let mut given = false;
    while let Some(packet) = entry.context.early.next(&mut entry.qp) {
        if !common.select_srq(&mut entry.context, &packet.headers) {
            continue;
        }
        let payload = InPayload::Bytes(&packet.payload.bytes);
        let rx = packet.rx(&payload);
        entry.qp.handle_packet(&mut QpEnv::new(common, &mut entry.context), now, &rx);
        entry.context.early.put_back(&mut entry.qp, packet);
        given = true;
    }
    given
}

/// Gives a packet for a group to one of its members.
fn give_to_member(
    common: &mut Common,
    qps: &mut QpTable,
    member: QpId,
    rx: &Rx<'_, InPayload<'_>>,
) {
    let now = common.now;
    if let Some(entry) = qps.get_mut(member) {
        entry.qp.handle_packet(&mut QpEnv::new(common, &mut entry.context), now, rx);
    }
}
