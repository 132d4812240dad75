//! The inward half of the carriers: rings of other processes, UDP, and packets within this process.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use iba::Qpn;
use link::netdev::Watch;
use link::registry::{Claim, Event};
use link::shm::{Inbound, InboundState};
use link::steer::Steering;
use link::udp::{LineError, Payloads, SendError, UdpLink};
use transport::Time;
use transport::env::Rx;
use umem::Pieces;
use wire::grh::Grh;
use wire::icrc::{Flow, IcrcError, Verifier};
use wire::{Headers, Position};

use super::Engine;
use super::alike::{MOST_JOINED, count_alike};
use super::core::Core;
use super::env::{QpEnv, Route};
use super::forwarders::Forwarders;
use super::injected::{Receiver, deliver_injected};
use super::multicast::{deliver_to_group, is_for_group};
use super::payload::{Cut, InPayload, LoopPayload};
use super::peers::{self, About, Forwarded, Incoming};
use super::qp::{QpTable, vf_of};
use super::raw::Frames;
use super::short::datagram::deliver_short;
use super::udp::{UdpQueue, ecn};
use crate::clock::Clock;
use crate::ids::QpId;
use crate::waits::Waits;

/// Where packets come in.
#[derive(Debug)]
pub(crate) struct Receivers {
    pub(crate) inbounds: Vec<Inbound>,
    pub(crate) udp: Option<UdpLink>,
    pub(crate) watch: Option<Watch>,
    /// Ethernet frames, while a rule gives some to a QP.
    pub(crate) frames: Option<Box<Frames>>,
    /// Which socket the kernel gives a packet to, by the VF of its QPN.
    steering: Option<Steering>,
    verifier: Verifier,
    /// Whose forwarded datagrams are taken.
    forwarders: Forwarders,
    /// Whether datagrams wake the background thread.
    watched: bool,
    /// Polls of the socket left before it is looked at only now and then.
    udp_heat: u32,
    /// When a datagram last came, or its absence was last acted upon, and how long the next absence may be.
    heard: (Time, Duration),
}

/// Which sockets to look at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Look {
    /// All.
    Everywhere,
    /// Those that had something lately, and the others now and then.
    Likely,
}

/// Who sent a packet, to be compared with the peer a QP is connected to.
#[derive(Clone, Copy, Debug)]
pub(super) enum Sender {
    Own(Qpn),
    Process(u16, Qpn),
    Host(iba::Gid),
}

/// The bits of a P_Key that name the partition; the other says how far its member is trusted (IBA 10.9.1.1).
const PARTITION: u16 = 0x7fff;
/// Bytes of a UDP header.
const UDP_HEADER: usize = 8;
/// How long a process with connections over UDP may hear nothing before it makes sure that the kernel still gives it its
/// datagrams; shorter than a peer's retries with the usual ACK timeout of 67 ms. Doubled while nothing comes, up to the second.
const SILENCE: Duration = Duration::from_millis(200);
const LONG_SILENCE: Duration = Duration::from_secs(4);
/// Records taken from one ring before the next ring has its turn.
const RING_BURST: usize = 32;

impl Receivers {
    /// `port` is that of UDP, whether or not we hold it.
    pub(crate) fn new(
        udp: Option<UdpLink>,
        port: u16,
        watch: Option<Watch>,
        waits: &Waits,
    ) -> Self {
        let mut steering = None;
        if let Some(udp) = &udp {
            let mut fresh = Steering::new(udp);
            fresh.start(Instant::now());
            steering = Some(fresh);
        }
        if let Some(watch) = &watch {
            waits.add_idle(watch);
        }
        Self {
            inbounds: Vec::new(),
            udp,
            watch,
            frames: None,
            steering,
            verifier: Verifier::new(),
            forwarders: Forwarders::new(port),
            watched: false,
            udp_heat: 0,
            heard: (Time::ZERO, SILENCE),
        }
    }

    /// Lets datagrams wake the background thread. Says whether all of them can.
    pub(crate) fn watch_datagrams(&mut self, waits: &Waits) -> bool {
        self.watched = true;
        let fds = self.udp.iter().flat_map(UdpLink::fds);
        fds.filter(|fd| !waits.add_datagrams(fd)).count() == 0
    }

    /// No longer lets them, as the program looks for them itself.
    pub(crate) fn ignore_datagrams(&mut self, waits: &Waits) {
        self.watched = false;
        self.udp.iter().flat_map(UdpLink::fds).for_each(|fd| waits.remove_datagrams(fd));
    }

    /// When the silence of the socket becomes suspicious, if anybody shares the port.
    pub(crate) fn silence_until(&self) -> Option<Time> {
        let shared = |steering: &&Steering| steering.tables().any(|table| table.len() > 1);
        self.steering.as_ref().filter(shared).map(|_| self.heard.0 + self.heard.1)
    }

    /// Closes, in the child of a fork, what is the parent's.
    pub(crate) fn abandon_in_child(&mut self) {
        for inbound in self.inbounds.drain(..) {
            inbound.abandon_in_child();
        }
        if let Some(udp) = self.udp.take() {
            udp.abandon_in_child();
        }
        if let Some(frames) = self.frames.take() {
            frames.listener.abandon_in_child();
        }
        self.watch = None;
        self.steering = None;
    }

    /// Hangs up on every peer and closes the socket. The pages that peers share stay, for their guard slots.
    pub(crate) fn close(&mut self) {
        for inbound in &self.inbounds {
            let _ = rustix::net::shutdown(inbound, rustix::net::Shutdown::Both);
        }
        self.udp = None;
        self.frames = None;
        self.watch = None;
        self.steering = None;
    }

    /// Whether the question which process has which socket is open, so that housekeeping cannot wait.
    pub(crate) fn is_steering(&self) -> bool {
        self.steering.as_ref().is_some_and(|steering| steering.deadline().is_some())
    }

    fn steer(&mut self) {
        if let (Some(steering), Some(udp)) = (&mut self.steering, &self.udp)
            && steering.deadline().is_some()
        {
            steering.poll(udp, Instant::now());
        }
    }

    /// Whether no ring holds a record.
    #[inline]
    pub(crate) fn rings_are_idle(&mut self) -> bool {
        self.inbounds.iter_mut().all(Inbound::is_idle)
    }

    /// Whether packets came over UDP lately, so that each poll should look.
    pub(crate) fn udp_is_hot(&self) -> bool {
        self.udp_heat > 0
    }

    /// Whether frames came lately, so that each poll should look.
    pub(crate) fn frames_are_hot(&self) -> bool {
        self.frames.as_ref().is_some_and(|frames| frames.is_hot())
    }
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

    fn receive_rings(&mut self) -> bool {
        let mut moved = false;
        let mut corrupt = None;
        self.core.holding = false;
        for index in 0..self.receivers.inbounds.len() {
            for _ in 0..RING_BURST {
                let Self { core, qps, receivers, touched, clock, .. } = self;
                let Receivers { inbounds, verifier, forwarders, .. } = receivers;
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
                    Ok(Some(())) => moved = true,
                    Ok(None) => break,
                    Err(error) => {
                        tracing::warn!(target: "peerdma::peer", vf, "closing the ring: {error}");
                        corrupt = Some(index);
                        break;
                    }
                }
            }
            self.transmit_touched();
        }
        if let Some(index) = corrupt {
            self.receivers.inbounds.swap_remove(index);
        }
        moved
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
        let Self { core, qps, receivers, touched, clock, late_acks, .. } = self;
        let Receivers { udp, verifier, .. } = receivers;
        let Some(udp) = udp else { return false };
        let port = udp.port();
        let mut each = |train: link::udp::Train<'_>| {
            // To read the clock right behind a system call takes longer than to take a packet. What goes the short way needs no
            // timer, and nobody sees when it came unless completions or packets are stamped.
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
                0
            }
        };
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

    /// Sends the batches that wait for the socket; what it does not take now waits on.
    pub(crate) fn flush_udp(&mut self) {
        self.send_batches(|_| true);
    }

    /// Sends the batches that will not grow any more.
    pub(crate) fn flush_full_udp(&mut self) {
        self.send_batches(UdpQueue::has_full);
    }

    fn send_batches(&mut self, is_due: impl Fn(&UdpQueue) -> bool) {
        let Self { core, receivers, .. } = self;
        let Some(udp) = receivers.udp.as_mut() else {
            while core.udp.front().is_some() {
                core.udp.pop();
                core.counters.dropped_packets += 1;
            }
            return;
        };
        while is_due(&core.udp)
            && let Some(batch) = core.udp.front()
        {
            let (to, dst) = (batch.to, batch.to.dst.to_ip());
            let segment_size = (batch.count > 1).then_some(batch.segment);
            let sent = if let Some(line) = batch.line {
                // CAST: a batch is no longer than a datagram can be.
                match udp.send_on(line, batch.bytes(), segment_size.map(|size| size as u16)) {
                    Ok(()) => Ok(()),
                    Err(LineError::WouldBlock) => return,
                    Err(error) => {
                        tracing::debug!(target: "peerdma::udp", %dst, "{error}");
                        udp.close_line(line);
                        core.udp.line_broke(line);
                        continue;
                    }
                }
            } else {
                udp.send(link::udp::Transmit {
                    dst,
                    src: to.src.to_ip(),
                    traffic_class: to.traffic_class,
                    hop_limit: to.hop_limit,
                    contents: batch.bytes(),
                    segment_size,
                })
            };
            match sent {
                Ok(()) => {
                    core.counters.tx_udp_packets += batch.count as u64;
                    if core.tap.is_some() {
                        core.tap_batch(udp.source_port(dst));
                    }
                }
                Err(SendError::WouldBlock { sent }) => {
                    core.udp.sent(sent);
                    return;
                }
                Err(SendError::NotSplit { sent }) => {
                    core.counters.tx_udp_packets += 1;
                    core.udp.set_max_segments(1);
                    core.udp.sent(sent);
                    continue;
                }
                Err(error) => {
                    core.counters.dropped_packets += batch.count as u64;
                    tracing::info!(target: "peerdma::udp", %dst, "send: {error}");
                }
            }
            core.udp.pop();
        }
        core.udp.set_max_segments(udp.max_gso_segments(UdpQueue::TYPICAL));
        if core.udp.lines.are_asked_for() {
            core.udp.lines.open_asked(udp);
        }
    }

    /// Closes the lines to the process of a QP.
    #[cold]
    pub(super) fn leave_lines(&mut self, peer: iba::Gid, dest: Qpn) {
        let Self { core, receivers, .. } = self;
        for line in core.udp.lines.leading_to(peer, vf_of(dest)) {
            tracing::info!(target: "peerdma::udp", dst = %peer, "silence: its line is closed");
            if let Some(udp) = &mut receivers.udp {
                udp.close_line(line);
            }
            core.udp.line_broke(line);
        }
    }

    /// Accepts connections, notices peers that came up or went away, and follows the netdev.
    pub(crate) fn housekeeping(&mut self) -> bool {
        let mut moved = false;
        // What they sent before they went is taken below, even if their ring was new.
        let mut gone = std::mem::take(&mut self.cm.lost);
        let events = self.core.peers.claim.as_mut().map_or_else(Vec::new, Claim::poll_events);
        for event in events {
            match event {
                Event::NewInbound(inbound) => {
                    tracing::debug!(target: "peerdma::peer", "ring from {}", inbound.peer());
                    self.core.peers.waits().add_always(&*inbound);
                    self.receivers.inbounds.push(*inbound);
                    moved = true;
                }
                Event::Refused(peer) => tracing::info!(
                    target: "peerdma::peer", uid = peer.uid, "turned away: {}", peer.reason
                ),
                _ => {}
            }
        }
        for inbound in &mut self.receivers.inbounds {
            if inbound.poll() == InboundState::Gone {
                gone.push(inbound.peer().vf);
            }
        }
        if !gone.is_empty() {
            // What a peer pushed before it went is still delivered. It cannot push more, so this ends. One that goes
            // only now has its turn later.
            while self.receive_rings() {}
            if !self.core.holding {
                self.receivers.inbounds.retain(|inbound| inbound.state() != InboundState::Gone);
                self.cm_peers_gone(&gone);
            }
            moved = true;
        }
        self.cm.lost = self.core.peers.poll();
        moved |= !self.cm.lost.is_empty();
        if self.core.udp.front().is_none()
            && let Some(udp) = &mut self.receivers.udp
        {
            self.core.udp.lines.sweep(self.core.now, udp);
            self.core.sources.sweep(self.core.now, udp);
        }
        if self.core.uses_udp
            && self.receivers.silence_until().is_some_and(|at| at <= self.core.now)
        {
            let (_, silence) = self.receivers.heard;
            self.receivers.heard = (self.core.now, (2 * silence).min(LONG_SILENCE));
            self.core.missteered = true;
        }
        if self.core.missteered {
            // A process came or went: ask again which socket is whose.
            self.core.missteered = false;
            if let Some(steering) = &mut self.receivers.steering {
                steering.start(Instant::now());
            }
        }
        self.receivers.steer();
        self.poll_directory();
        if self.receivers.watch.as_ref().is_some_and(|watch| watch.drain().unwrap_or(false)) {
            crate::nic::refresh(&mut self.core);
        }
        moved
    }
}

/// Whether a packet that came by the ring of a process names no other one as its sender. Only datagrams name one: the
/// others are compared with what their QP is connected to.
fn is_from(core: &Core, vf: u16, headers: &Headers, grh: Option<&[u8; 40]>) -> bool {
    let is_gsi = headers.bth.dest_qp == Qpn::GSI;
    headers.deth.is_none_or(|deth| is_gsi && deth.src_qp == Qpn::GSI || vf_of(deth.src_qp) == vf)
        && grh.is_none_or(|grh| core.port.gids.contains(&Grh::parse(grh).sgid()))
}

/// Whether a datagram, good or not, is for this process rather than for another one of the host.
fn is_for(vf: u16, bytes: &[u8]) -> bool {
    let dest = Headers::parse_prefix(bytes).map_or(0, |(headers, _)| headers.bth.dest_qp.value());
    dest <= 1 || dest == Qpn::MULTICAST.value() || vf_of(Qpn::new(dest)) == vf
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

/// How a datagram came here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// From the socket.
    Socket,
    /// By another process, which the kernel gave it to. It goes no further: else we would lend that process our name.
    Forwarded,
}

/// A datagram's way here, and what the kernel said of it.
#[derive(Clone, Copy, Debug)]
struct Arrival<'a> {
    way: Way,
    about: &'a About,
    flow: &'a Flow,
    clock: &'a Clock,
}

/// What the ICRC of so many datagrams covers of the headers around them; none, if they are not for this port. They are
/// counted.
fn flow_of(core: &mut Core, about: &About, count: usize) -> Option<Flow> {
    let &About { src, dst, .. } = about;
    core.counters.rx_udp_packets += count as u64;
    // The socket hears every address of the host; the port is only those of its netdev (the kernel's rxe_match_dgid).
    if !dst.ip().is_multicast() && !core.port.gids.contains(&dst.ip().into()) {
        core.counters.rx_wrong_destination += count as u64;
        tracing::debug!(target: "peerdma::drop", %src, %dst, "not an address of this port");
        return None;
    }
    Flow::new(src, dst)
}

/// Delivers what arrived together.
fn deliver_train(
    core: &mut Core,
    qps: &mut QpTable,
    verifier: &mut Verifier,
    clock: &Clock,
    about: &About,
    train: &link::udp::Train<'_>,
    touched: &mut Vec<QpId>,
) {
    let Some(flow) = flow_of(core, about, train.len()) else { return };
    verifier.begin_train(&flow);
    let mut rest = train.payloads();
    let mut took = false;
    while rest.len() > 0 {
        let arrival = Arrival { way: Way::Socket, about, flow: &flow, clock };
        let id = deliver_datagram(core, qps, verifier, arrival, &mut rest);
        // They are mostly for one QP.
        if id.is_some() && touched.last() != id.as_ref() {
            touched.extend(id);
        }
        took |= id.is_some();
    }
    // Who shares a port with others has none to himself.
    if took && !train.by_inlet && about.src.port() != about.dst.port() {
        core.sources.count(about.src, about.dst.ip());
    }
}

/// How many packets, this one included, a QP would take in one stroke if more like it came with it.
fn joinable(core: &Core, qps: &mut QpTable, arrival: Arrival<'_>, headers: &Headers) -> u32 {
    // Who records packets or tampers with them sees each.
    let is_plain = arrival.way == Way::Socket
        && headers.bth.opcode.position() == Position::Middle
        && core.tap.is_none()
        && core.injected.is_none();
    if !is_plain {
        return 0;
    }
    let Some(entry) = qps.by_number(headers.bth.dest_qp) else { return 0 };
    let is_from_peer = entry.facts.route == Route::Udp
        && entry.facts.av.dgid == iba::Gid::from(arrival.about.src.ip());
    if is_from_peer { entry.qp.joinable(headers) } else { 0 }
}

/// Takes a datagram apart and delivers it, with those behind it that continue it.
fn deliver_datagram(
    core: &mut Core,
    qps: &mut QpTable,
    verifier: &mut Verifier,
    arrival: Arrival<'_>,
    datagrams: &mut Payloads<'_>,
) -> Option<QpId> {
    let Arrival { way, about, flow, clock } = arrival;
    let train = datagrams.bytes();
    let bytes = datagrams.next()?;
    if bytes.is_empty() {
        // Who opens a line looks at what an empty datagram is sent as.
        return None;
    }
    let About { src, dst, .. } = about;
    let verified = verifier.verify(flow, bytes);
    if core.tap.is_some() && (way == Way::Forwarded || is_for(core.vf, bytes)) {
        core.tap_datagram(about, verified.as_ref().map_or(0, |(_, id)| *id), bytes);
    }
    let (packet, id) = match verified {
        Ok(good) => good,
        Err(error) => {
            match error {
                IcrcError::Parse(_) => core.counters.rx_malformed_packets += 1,
                _ => core.counters.rx_icrc_encapsulated += 1,
            }
            tracing::debug!(target: "peerdma::drop", %src, "{error}");
            return None;
        }
    };
    let marked = about.traffic_class & ecn::MASK == ecn::CE;
    let is_plain = way == Way::Socket && !marked && core.tap.is_none() && core.injected.is_none();
    if is_plain && let Some(id) = deliver_short(core, qps, about, packet) {
        return Some(id);
    }
    core.catch_up(clock);
    let mut headers = Headers::default();
    let range = match headers.read(packet) {
        Ok(range) => range,
        Err(error) => {
            core.counters.rx_malformed_packets += 1;
            tracing::debug!(target: "peerdma::drop", %src, "{error}");
            return None;
        }
    };
    // IBA C9-42; the port's only key is the default one, of a full member.
    if headers.bth.pkey.0 & PARTITION != iba::PKey::DEFAULT.0 & PARTITION {
        core.counters.pkey_violation += 1;
        tracing::debug!(target: "peerdma::drop", %src, pkey = headers.bth.pkey.0, "not our partition");
        return None;
    }
    let Some(to_group) = is_for_group(headers.bth.dest_qp, *dst) else {
        core.counters.rx_wrong_destination += 1;
        tracing::debug!(target: "peerdma::drop", %src, %dst, "a group's QP or address without the other");
        return None;
    };
    let vf = vf_of(headers.bth.dest_qp);
    if vf != core.vf && !to_group && headers.bth.dest_qp.value() > 1 && way == Way::Socket {
        match core.peers.forward(core.now, vf, about, bytes) {
            Forwarded::Yes => {
                core.counters.forwarded_packets += 1;
                core.missteered = true;
            }
            Forwarded::NoRoom => core.counters.dropped_packets += 1,
            Forwarded::NoSuchProcess => core.counters.rx_unknown_qpn += 1,
        }
        return None;
    }
    let packets = match joinable(core, qps, arrival, &headers).min(MOST_JOINED) {
        most @ 2.. if !marked => {
            count_alike(verifier, flow, (bytes, id), &headers, datagrams, most)
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
    let is_datagram = headers.deth.is_some();
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
        core.arrive_at_gsi(&rx, None, Some((about, bytes)));
        return None;
    }
    if to_group {
        // Every process that joined was given a copy by the kernel, so none comes by way of another.
        if way == Way::Socket && !core.is_port_down() {
            deliver_to_group(core, qps, dst.ip(), &rx);
        }
        return None;
    }
    deliver(core, qps, Sender::Host(src.ip().into()), &rx)
}

/// Whether a packet stays in its ring, as the program has yet to post the receive that it needs. Only the packets of one
/// process wait.
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

/// Gives a packet to the QP it names, unless a fault plan does something else with it.
#[inline]
fn deliver(
    core: &mut Core,
    qps: &mut QpTable,
    sender: Sender,
    rx: &Rx<'_, InPayload<'_>>,
) -> Option<QpId> {
    if core.injected.is_some() {
        return deliver_injected(core, qps, Receiver::Named(sender), rx);
    }
    deliver_now(core, qps, sender, rx)
}

/// Gives a packet to the QP it names, if that QP is connected to where it came from.
#[inline]
pub(super) fn deliver_now(
    core: &mut Core,
    qps: &mut QpTable,
    sender: Sender,
    rx: &Rx<'_, InPayload<'_>>,
) -> Option<QpId> {
    let dest = rx.headers.bth.dest_qp;
    if dest == Qpn::GSI {
        let via = match sender {
            Sender::Own(_) => Some(core.vf),
            Sender::Process(vf, _) => Some(vf),
            Sender::Host(_) => None,
        };
        core.arrive_at_gsi(rx, via, None);
        return None;
    }
    let Some(entry) = qps.by_number(dest) else {
        core.counters.rx_unknown_qpn += 1;
        tracing::debug!(target: "peerdma::drop", qpn = %dest, ?sender, "no such QP");
        return None;
    };
    let facts = &entry.facts;
    let from_peer = !facts.qp_type.is_connected()
        || match (facts.route, sender) {
            (Route::Loopback, Sender::Own(qpn)) => qpn == facts.dest_qpn,
            (Route::Shm(vf), Sender::Process(from, qpn)) => vf == from && qpn == facts.dest_qpn,
            (Route::Udp, Sender::Host(gid)) => gid == facts.av.dgid,
            _ => false,
        };
    if !from_peer {
        core.counters.rx_wrong_source += 1;
        tracing::debug!(target: "peerdma::drop", qpn = %dest, ?sender, "not this QP's peer");
        return None;
    }
    let id = facts.id;
    let now = core.now;
    if !core.select_srq(&mut entry.facts, rx.headers) {
        return None;
    }
    entry.qp.handle_packet(&mut QpEnv::new(core, &mut entry.facts), now, rx);
    Some(id)
}
