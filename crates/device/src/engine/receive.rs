//! The inward half of the carriers: rings of other processes, UDP, and packets within this process.

use std::mem;
use std::net::{IpAddr, SocketAddr};

use iba::Qpn;
use link::udp::{Payloads, UdpLink};
use transport::env::Rx;
use wire::Headers;
use wire::grh::Grh;

use super::Engine;
use super::core::Core;
use super::deliver::{Arrival, Sender, Way, deliver, deliver_datagram, deliver_train, flow_of};
use super::payload::{InPayload, LoopPayload};
use super::peers::{self, About, Incoming};
use super::qp::{QpTable, vf_of};
use super::receivers::{Look, Receivers, SILENCE};
use crate::waits::Waits;

/// Records taken from one ring before the next ring has its turn.
const RING_BURST: usize = 32;
/// Records taken at once from the ring of a process that is gone: all that a ring of the usual size
/// can hold.
const GONE_BURST: usize = 4096;

/// What came of a look into a ring.
#[derive(Clone, Copy, Debug, Default)]
struct Taken {
    moved: bool,
    corrupt: bool,
}

impl Engine {
    /// Takes packets from the rings and from this process.
    pub(crate) fn receive_fast(&mut self) -> bool {
        let mut moved = self.receive_rings();
        if !self.core.loopback.is_empty() {
            moved |= self.deliver_loopback(64);
        }
        if moved {
            self.after_transmit();
        }
        moved
    }

    pub(super) fn receive_rings(&mut self) -> bool {
        let mut moved = false;
        let mut corrupt = None;
        self.core.holding = false;
        for index in 0..self.receivers.inbounds.len() {
            let taken = self.receive_ring(index, RING_BURST);
            moved |= taken.moved;
            if taken.corrupt {
                corrupt = Some(index);
            }
            self.transmit_touched();
        }
        if let Some(index) = corrupt {
            self.receivers.inbounds.swap_remove(index);
        }
        moved
    }

    /// Takes what processes pushed before they went, as much as one call may. Says whether some of
    /// it waits in its ring for a receive, and whose rings hold more. Others can wait: a ring that
    /// is refilled all the time is not what went.
    pub(super) fn receive_of_gone(&mut self, gone: &[u16]) -> (bool, Vec<u16>) {
        let was_holding = mem::take(&mut self.core.holding);
        let mut left = Vec::new();
        for index in (0..self.receivers.inbounds.len()).rev() {
            let vf = self.receivers.inbounds[index].peer().vf;
            if !gone.contains(&vf) {
                continue;
            }
            let taken = self.receive_ring(index, GONE_BURST);
            self.transmit_touched();
            if taken.corrupt {
                self.receivers.inbounds.swap_remove(index);
            } else if self.receivers.inbounds[index].may_hold_last_words() {
                left.push(vf);
            }
        }
        let is_holding = self.core.holding;
        self.core.holding |= was_holding;
        (is_holding, left)
    }

    /// Takes up to `most` records from a ring.
    #[inline]
    fn receive_ring(&mut self, index: usize, most: usize) -> Taken {
        let mut taken = Taken::default();
        for _ in 0..most {
            let Self { core, qps, receivers, touched, clock, .. } = self;
            let Receivers { inbounds, verifier, forwarders, heard, .. } = receivers;
            let inbound = &mut inbounds[index];
            let peer = *inbound.peer();
            let vf = peer.vf;
            let mut headers = Headers::default();
            let popped = inbound.pop_if(|record| match peers::parse(record, &mut headers) {
                Ok(Incoming::Packet { payload, length, skipped, grh, source }) => {
                    if waits_for_receive(core, qps, &headers) {
                        return None;
                    }
                    core.counters.rx_shm_packets += 1;
                    if core.tap.is_some() {
                        core.tap_record(qps, &headers, payload, grh.as_ref());
                    }
                    if !is_from(core, vf, &headers, grh.as_ref()) {
                        core.counters.rx_wrong_source += 1;
                        tracing::debug!(target: "peerdma::drop", vf, "not its own address");
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
                    touched.extend(deliver(core, qps, Sender::Process(vf, source), &rx));
                    Some(())
                }
                Ok(Incoming::Datagram { about, bytes }) => {
                    if !forwarders.include(core.now, &peer, about.dst.ip()) {
                        core.counters.rx_wrong_source += 1;
                        tracing::info!(
                            target: "peerdma::drop", vf, uid = peer.uid, src = %about.src,
                            "forwarded by a user who does not hold the UDP port"
                        );
                        return Some(());
                    }
                    if core.is_deaf {
                        *heard = (core.now, SILENCE);
                    }
                    if let Some(flow) = flow_of(core, &about, 1) {
                        let way = Way::Forwarded;
                        let at = Arrival { way, about: &about, flow: &flow, clock };
                        let mut one = Payloads::one(&bytes);
                        touched.extend(deliver_datagram(core, qps, verifier, at, &mut one));
                    }
                    Some(())
                }
                Err(reason) => {
                    core.counters.rx_malformed_packets += 1;
                    tracing::debug!(target: "peerdma::drop", vf, "ring record: {reason}");
                    Some(())
                }
            });
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
        while let Some(id) = self.touched.pop() {
            self.transmit(id);
        }
    }

    /// Delivers up to `most` packets of this process to itself.
    pub(crate) fn deliver_loopback(&mut self, most: usize) -> bool {
        let mut moved = false;
        for _ in 0..most {
            let Some(packet) = self.core.loopback.pop_front() else { break };
            moved = true;
            self.core.counters.loopback_packets += 1;
            let payload = match &packet.payload {
                LoopPayload::Bytes(bytes) => InPayload::Bytes(bytes),
                LoopPayload::Parts(parts) => InPayload::Parts(parts),
            };
            let rx = Rx {
                headers: &packet.headers,
                payload: &payload,
                length: packet.length,
                skipped: packet.skipped,
                grh: packet.grh.as_ref(),
                packets: 1,
                marked: false,
            };
            let touched = deliver(&mut self.core, &mut self.qps, Sender::Own(packet.source), &rx);
            if let Some(id) = touched {
                self.transmit(id);
            }
        }
        moved
    }

    /// Takes datagrams from the socket.
    pub(crate) fn receive_udp(&mut self, look: Look) -> bool {
        if !self.may_use_udp() {
            return false;
        }
        let Self { core, qps, receivers, touched, clock, late_acks, .. } = self;
        let Receivers { udp, verifier, .. } = receivers;
        let Some(udp) = udp else { return false };
        let port = udp.port();
        let mut each = |train: link::udp::Train<'_>| {
            // To read the clock right behind a system call takes longer than to take a packet. What
            // goes the short way needs no timer, and nobody sees when it came unless completions or
            // packets are stamped.
            core.is_behind = true;
            if late_acks.want_time() || core.stamps || core.is_observed() {
                core.catch_up(clock);
            }
            let about = About {
                src: train.src,
                dst: SocketAddr::new(train.dst, port),
                traffic_class: train.traffic_class,
                hop_limit: train.hop_limit,
            };
            deliver_train(core, qps, verifier, clock, &about, &train, touched);
        };
        let received = match look {
            Look::Everywhere => udp.recv_trains(&mut each),
            Look::Likely => udp.recv_likely_trains(&mut each),
        };
        let count = match received {
            Ok(count) => count,
            Err(error) => {
                tracing::warn!(target: "peerdma::udp", "receive: {error}");
                // What came before it is answered.
                touched.len()
            }
        };
        core.missteered |= udp.was_pleaded_with();
        receivers.udp_heat = if count > 0 { 4096 } else { receivers.udp_heat.saturating_sub(1) };
        if count == 0 {
            core.is_behind = false;
            return false;
        }
        if let Some((from, to)) = core.sources.take() {
            open_inlet(udp, from, to, receivers.watched.then(|| core.peers.waits()));
        }
        receivers.heard = (core.now, SILENCE);
        self.transmit_touched();
        if !self.core.loopback.is_empty() {
            self.core.catch_up(&self.clock);
        }
        self.after_transmit();
        self.core.is_behind = false;
        true
    }
}

/// Whether a packet that came by the ring of a process names no other one as its sender. Only
/// datagrams name one: the others are compared with what their QP is connected to.
fn is_from(core: &Core, vf: u16, headers: &Headers, grh: Option<&[u8; 40]>) -> bool {
    let is_gsi = headers.bth.dest_qp == Qpn::GSI;
    headers.deth.is_none_or(|deth| is_gsi && deth.src_qp == Qpn::GSI || vf_of(deth.src_qp) == vf)
        && grh.is_none_or(|grh| core.port.gids.contains(&Grh::parse(grh).sgid()))
}

/// Opens a socket for whom much comes from, which wakes the background thread if the others do.
#[cold]
fn open_inlet(udp: &mut UdpLink, from: SocketAddr, to: IpAddr, waits: Option<&Waits>) {
    match udp.open_inlet(from, to) {
        // It comes by the shared socket as before.
        Err(error) => tracing::debug!(target: "peerdma::udp", %from, "no inlet: {error}"),
        Ok(false) => {}
        Ok(true) => {
            tracing::debug!(target: "peerdma::udp", %from, "an inlet of its own");
            if let Some(waits) = waits {
                udp.fds().for_each(|fd| _ = waits.add_datagrams(fd));
            }
        }
    }
}

/// Whether a packet stays in its ring, as the program has yet to post the receive that it needs.
/// Only the packets of one process wait.
fn waits_for_receive(core: &mut Core, qps: &mut QpTable, headers: &Headers) -> bool {
    let Some(entry) = qps.by_number(headers.bth.dest_qp) else { return false };
    let facts = &mut entry.facts;
    if facts.qp_type.is_reliable() || !transport::consumes_receive(headers.bth.opcode) {
        return false;
    }
    let has_shared =
        facts.srq.and_then(|id| core.srqs.get(id.index())).is_some_and(|srq| !srq.queue.is_empty());
    let has_one = has_shared || !entry.qp.is_starved(headers.bth.opcode);
    let waits = facts.waits_for_receive(has_one, core.now);
    core.holding |= waits;
    waits
}
