//! The receiving side of the carriers: rings of other processes, UDP, and packets within this
//! process.

use iba::Qpn;
use link::udp::Payloads;
use transport::AckWay;
use transport::env::Rx;
use wire::Headers;
use wire::grh::Grh;

use super::Engine;
use super::common::Common;
use super::deliver::{Arrival, Way, count_forwarded, deliver_datagram, deliver_train, flow_of};
use super::fast_path::deliver_record;
use super::observed::deliver;
use crate::carrier::Receivers;
use crate::carrier::shm::record::{self, Incoming};
use crate::carrier::shm::{GONE_BURST, RING_BURST};
use crate::carrier::udp::Look;
use crate::counters::STAYS;
use crate::payload::InPayload;
use crate::qp::{QpTable, vf_of};
use crate::receiver::{Receiver, Sender};

/// The outcome of reading a ring.
#[derive(Clone, Copy, Debug, Default)]
struct Taken {
    moved: bool,
    corrupt: bool,
}

impl Engine {
    /// Takes packets from the rings and from this process.
    pub(super) fn receive_local(&mut self) -> bool {
        let mut moved = self.receive_rings();
        if !self.common.out.loopback.is_empty() {
            moved |= self.deliver_loopback(64);
        }
        if moved {
            self.after_transmit();
        }
        moved
    }

    fn receive_rings(&mut self) -> bool {
        let mut moved = false;
        let mut corrupt = None;
        self.receivers.shm.set_holding(false);
        for index in 0..self.receivers.shm.len() {
            let taken = self.receive_ring(index, RING_BURST);
            moved |= taken.moved;
            if taken.corrupt {
                corrupt = Some(index);
            }
            self.transmit_touched();
        }
        if let Some(index) = corrupt {
            self.receivers.shm.remove(index);
        }
        moved
    }

    /// Takes what processes pushed before they ended, as much as one call may. Returns whether some
    /// of it waits in its ring for a receive, and whose rings hold more. Other rings can wait: a
    /// ring that is constantly refilled does not belong to a process that has ended.
    pub(super) fn receive_of_gone(&mut self, gone: &[u16]) -> (bool, Vec<u16>) {
        let was_holding = self.receivers.shm.is_holding();
        self.receivers.shm.set_holding(false);
        let mut left = Vec::new();
        for index in (0..self.receivers.shm.len()).rev() {
            let vf = self.receivers.shm.get(index).peer().vf;
            if !gone.contains(&vf) {
                continue;
            }
            let taken = self.receive_ring(index, GONE_BURST);
            self.transmit_touched();
            if taken.corrupt {
                self.receivers.shm.remove(index);
            } else if self.receivers.shm.get_mut(index).may_hold_last_words() {
                left.push(vf);
            }
        }
        let is_holding = self.receivers.shm.is_holding();
        self.receivers.shm.set_holding(is_holding || was_holding);
        (is_holding, left)
    }

    /// Takes up to `most` records from a ring.
    #[inline]
    fn receive_ring(&mut self, index: usize, most: usize) -> Taken {
        let mut taken = Taken::default();
        let peer = *self.receivers.shm.get(index).peer();
        let vf = peer.vf;
        for _ in 0..most {
            let Self { common, qps, receivers, schedule, clock, .. } = self;
            let Receivers { shm, udp, .. } = receivers;
            let mut holds = false;
            let inbound = shm.get_mut(index);
            let is_plain = common.is_plain();
            let popped = inbound.pop_if(|bytes| {
                if is_plain
                    && let Some(took) = deliver_record(
                        common, qps, &mut schedule.unasked_acks, clock, vf, bytes, AckWay::Together
                    )
                {
                    // Most that arrive together are for one QP.
                    if took.owes && schedule.touched.last() != Some(&took.id) {
                        schedule.touched.push(took.id);
                    }
                    return Some(());
                }
                let mut headers = Headers::default();
                match record::parse(bytes, &mut headers) {
                Ok(Incoming::Packet { payload, length, skipped, grh, source }) => {
                    if waits_for_receive(common, qps, &headers) {
                        holds = true;
                        return None;
                    }
                    let counters = common.counters_at(qps, headers.bth.dest_qp);
                    counters.rx_shm_packets += 1;
                    counters.rx_bytes += u64::from(length) + STAYS;
                    if !common.is_plain() {
                        // A record that came since the turn began was not there before it was sent.
                        common.now = clock.now();
                        common.record_from_ring(qps, &headers, payload, grh.as_ref());
                    }
                    if !is_from(common, vf, &headers, grh.as_ref()) {
                        common.counters_at(qps, headers.bth.dest_qp).rx_wrong_source += 1;
                        tracing::debug!(target: "peerdma::drop", vf, "the source address is not its own");
                        return Some(());
                    }
                    let payload = InPayload::Ring(payload);
                    let rx = Rx {
                        headers: &headers,
                        payload: &payload,
                        length,
                        skipped,
                        grh: grh.as_ref(),
                        packets: 1,
                        marked: false,
                    };
                    schedule.touched.extend(deliver(
                        common,
                        qps,
                        Receiver::Named(Sender::Process(vf, source)),
                        &rx,
                    ));
                    Some(())
                }
                Ok(Incoming::Datagram { about, bytes }) => {
                    if !udp.intake().may_forward(common.now, &peer, about.dst.ip()) {
                        common.counters.first.rx_wrong_source += 1;
                        tracing::info!(
                            target: "peerdma::drop", vf, uid = peer.uid, src = %about.src,
                            "forwarded by a user who does not hold the UDP port"
                        );
                        return Some(());
                    }
                    if common.out.udp.is_deaf() {
                        udp.heard_by_forwarding(common.now);
                    }
                    count_forwarded(common, qps, &bytes);
                    if let Some(flow) = flow_of(common, &about, 1) {
                        let way = Way::Forwarded;
                        let at = Arrival { way, about: &about, flow: &flow, clock };
                        let mut one = Payloads::one(&bytes);
                        let intake = udp.intake();
                        schedule
                            .touched
                            .extend(deliver_datagram(common, qps, intake, at, &mut one));
                    }
                    Some(())
                }
                Err(reason) => {
                    common.counters.first.rx_malformed_packets += 1;
                    tracing::debug!(target: "peerdma::drop", vf, "ring record: {reason}");
                    Some(())
                }
            }});
            if holds {
                shm.set_holding(true);
            }
            match popped {
                Ok(Some(())) => taken.moved = true,
                Ok(None) => break,
                Err(error) => {
                    tracing::warn!(target: "peerdma::peer", vf, "closing the ring: {error}");
                    taken.corrupt = true;
                    break;
                }
            }
        }
        taken
    }

    pub(super) fn transmit_touched(&mut self) {
        while let Some(id) = self.schedule.touched.pop() {
            self.transmit(id);
        }
    }

    /// Delivers up to `most` packets from this process to itself.
    pub(super) fn deliver_loopback(&mut self, most: usize) -> bool {
        let mut moved = false;
        for _ in 0..most {
            let Some(packet) = self.common.out.loopback.pop() else { break };
            moved = true;
            let bytes = u64::from(packet.length) + STAYS;
            let counters = self.common.counters_at(&mut self.qps, packet.source);
            counters.loopback_packets += 1;
            counters.tx_bytes += bytes;
            let counters = self.common.counters_at(&mut self.qps, packet.headers.bth.dest_qp);
            counters.rx_loopback_packets += 1;
            counters.rx_bytes += bytes;
            let payload = packet.payload.as_received();
            let rx = Rx {
                headers: &packet.headers,
                payload: &payload,
                length: packet.length,
                skipped: packet.skipped,
                grh: packet.grh.as_ref(),
                packets: 1,
                marked: false,
            };
            let touched = deliver(
                &mut self.common,
                &mut self.qps,
                Receiver::Named(Sender::Own(packet.source)),
                &rx,
            );
            if let Some(id) = touched {
                self.transmit(id);
            }
        }
        moved
    }

    /// Takes datagrams from the socket.
    pub(super) fn receive_udp(&mut self, look: Look) -> bool {
        if !self.may_use_udp() {
            return false;
        }
        let Self { common, qps, receivers, schedule, clock, delayed_acks, .. } = self;
        let count = receivers.udp.receive(look, |about, train, intake| {
            // Reading the clock right after a system call takes longer than handling a packet. A
            // packet on the fast path needs no timer, and nobody sees when it arrived unless
            // completions or packets have timestamps.
            common.now_is_stale = true;
            if delayed_acks.want_time() || common.stamps || !common.is_plain() {
                common.catch_up(clock);
            }
            deliver_train(common, qps, intake, clock, about, train, &mut schedule.touched);
        });
        if count == 0 {
            common.now_is_stale = false;
            return false;
        }
        receivers.udp.heard(common.now, common.out.shm.waits());
        self.transmit_touched();
        if !self.common.out.loopback.is_empty() {
            self.common.catch_up(&self.clock);
        }
        self.after_transmit();
        self.common.now_is_stale = false;
        true
    }
}

/// Whether a packet in the ring of a process names no other process as its sender. Only datagrams
/// name one: other packets are compared with the peer of their QP.
fn is_from(common: &Common, vf: u16, headers: &Headers, grh: Option<&[u8; 40]>) -> bool {
    let is_gsi = headers.bth.dest_qp == Qpn::GSI;
    headers.deth().is_none_or(|deth| is_gsi && deth.src_qp == Qpn::GSI || vf_of(deth.src_qp) == vf)
        && grh.is_none_or(|grh| common.nic.port.gids.contains(&Grh::parse(grh).sgid()))
}

/// Whether a packet stays in its ring, as the program has not yet posted the receive that it needs.
/// Only the packets of one process wait.
fn waits_for_receive(common: &mut Common, qps: &mut QpTable, headers: &Headers) -> bool {
    let Some(entry) = qps.by_number(headers.bth.dest_qp) else { return false };
    let context = &mut entry.context;
    if context.qp_type.is_reliable() || !transport::consumes_receive(headers.bth.opcode) {
        return false;
    }
    let has_shared = context
        .srq
        .and_then(|id| common.objects.srqs.get(id.index()))
        .is_some_and(|srq| !srq.queue.is_empty());
    let has_one = has_shared || !entry.qp.is_starved(headers.bth.opcode);
    context.waits_for_receive(has_one, common.now)
}
