//! A fat tree of hosts and switches, with the real transport on every host.
//!
//! ```text
//!   core          o   o   o   o            (k/2)^2 switches
//!                 |\ /|\ /|\ /|
//!   aggregation   o   o   o   o            k/2 in each of k pods
//!                 |\ /|   |\ /|
//!   edge          o   o   o   o            k/2 in each pod
//!                / \ / \ / \ / \
//!   hosts        . . . . . . . .           k/2 at each edge switch: k^3/4
//! ```
//!
//! A line carries packets one after the other, and its switch keeps those that wait, up to a limit.
//! A switch marks packets of a long queue, as DCQCN has it (RED with `min`, `max` and a share at
//! `max`), and, with PFC, stops a neighbour of which it holds too much instead of dropping. Packets
//! of one connection take one path, which its number decides; a line that fails takes packets with
//! it until routing has noticed.
//!
//! In place of the transport, [models](Sender) of other devices may send, to compare with.
//!
//! Streams like TCP's may share the tree ([`Tree::stream`]): they take no marks, and drops are all
//! that tells them of others.
//!
//! Payloads have a length and no bytes, so that a thousand hosts fit into memory.

use std::collections::VecDeque;
use std::time::Duration;

use iba::{AckTimeout, Psn, QpState, Qpn, WcStatus};
use transport::{Counter, Early, Poll, Qp, Rx, SendWr, Time};

use crate::build;
use crate::link::{Rate, Rng};
use crate::options::Options;
use crate::queue::Queue;

mod hollow;
mod line;
mod other;
mod report;
pub mod scenario;
mod stream;
mod topology;

use self::hollow::Hollow;
use self::line::{Cargo, Line, Packet};
pub use self::line::{Pfc, Red};
pub use self::other::Sender;
use self::other::{Other, Say};
pub use self::report::{Flow, Report};
pub use self::scenario::Scenario;
use self::stream::{Segment, Stream};
use self::topology::{Path, Topology};

/// Bytes that wait at the port of a host before its QPs are polled again.
const PORT: u64 = 16 << 10;
/// Packets that the NIC of a host that is stopped keeps.
const KEPT: usize = 64;
/// Packets that a QP sends before the next one has its turn.
const TURN: usize = 4;
/// The first sequence number of every QP.
const PSN: Psn = Psn::new(0x100);

/// How a tree is built.
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_structs, reason = "tests change what they test")]
pub struct Shape {
    /// Ports of a switch: even. There are `k^3/4` hosts.
    pub k: usize,
    /// Bytes per second of every line.
    pub rate: u64,
    /// How long a packet travels on a line.
    pub delay: Duration,
    /// Bytes that may wait in front of a line of a switch. A packet that finds no room is lost.
    pub queue: u64,
    /// When packets are marked; `None`: never.
    pub red: Option<Red>,
    /// When a neighbour is stopped; `None`: never.
    pub pfc: Option<Pfc>,
    /// How long routing takes to notice that a line failed.
    pub reroute: Duration,
    /// What sends the messages of connections.
    pub sender: Sender,
    /// What the QPs are like. Its link is not used.
    pub options: Options,
    /// For what is decided at random.
    pub seed: u64,
}

impl Shape {
    /// Lines of 100 Gbit/s and 1 us, queues of 1 MB, marks as DCQCN proposes for such lines, no
    /// PFC, packets of 4 KiB.
    pub fn new(k: usize) -> Self {
        Self {
            k,
            rate: 12_500_000_000,
            delay: Duration::from_micros(1),
            queue: 1 << 20,
            red: Some(Red { min: 100 << 10, max: 400 << 10, permille: 200 }),
            pfc: None,
            reroute: Duration::from_millis(5),
            sender: Sender::Transport,
            options: Options {
                mtu: iba::Mtu::Mtu4096,
                // 1 ms.
                timeout: 8,
                ecn: true,
                memory: 0,
                ..Options::rc()
            },
            seed: 1,
        }
    }

    /// The number of hosts.
    pub const fn hosts(&self) -> usize {
        self.k * self.k * self.k / 4
    }
}

/// What an end of a connection is.
#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "nearly all are QPs")]
enum Kind {
    Qp(Qp, Hollow, Early<()>),
    Other(Other),
    Stream(Stream),
}

impl Kind {
    /// When its timer is due; `waits`: it will have its turn to send anyway.
    fn timeout(&self, waits: bool) -> Option<Time> {
        match self {
            Self::Qp(qp, ..) => qp.poll_timeout(),
            Self::Other(other) => other.timeout(waits),
            Self::Stream(stream) => stream.timeout(),
        }
    }
}

/// One end of a connection.
#[derive(Debug)]
struct End {
    kind: Kind,
    host: usize,
    /// The other end.
    peer: usize,
    /// The lines to it, and when routing decided that.
    path: Path,
    routed: u32,
    /// The earliest timer event that is queued for it.
    timer: Option<Time>,
    /// Whether it is in its host's queue of those with something to send.
    is_ready: bool,
}

#[derive(Debug, Default)]
struct Port {
    /// Ends with something to send, in turn.
    ready: VecDeque<usize>,
    /// It neither sends nor hears anything.
    is_stopped: bool,
    /// What came while it was stopped, as far as its NIC has room.
    kept: Vec<Packet>,
}

/// Something that happens at a time.
#[derive(Debug)]
enum Event {
    /// A packet has left a line and arrives behind it.
    Arrives(Packet),
    /// A line has sent a packet.
    Free(usize),
    /// A line stops, or goes on, as its neighbour asked.
    Pause(usize, bool),
    /// A timer of an end may be due.
    Timer(usize),
    /// Routing notices that lines failed.
    Reroute,
}

/// The tree.
#[derive(Debug)]
pub struct Tree {
    shape: Shape,
    topology: Topology,
    lines: Vec<Line>,
    ports: Vec<Port>,
    ends: Vec<End>,
    flows: Vec<Flow>,
    /// Flows that have not ended.
    open: usize,
    now: Time,
    events: Queue<Event>,
    /// Counts changes of the routes.
    routes: u32,
    rng: Rng,
    report: Report,
}

impl Tree {
    /// A tree without connections.
    ///
    /// # Panics
    ///
    /// If `k` is odd, or 0.
    pub fn new(shape: Shape) -> Self {
        let topology = Topology::new(shape.k);
        let lines = (0..topology.lines()).map(|_| Line::default()).collect();
        let ports = (0..shape.hosts()).map(|_| Port::default()).collect();
        Self {
            rng: Rng::new(shape.seed),
            topology,
            lines,
            ports,
            ends: Vec::new(),
            flows: Vec::new(),
            open: 0,
            now: Time::ZERO,
            events: Queue::new(),
            routes: 0,
            report: Report::default(),
            shape,
        }
    }

    /// Connects two hosts, and lets the first WRITE `messages` of `length` bytes to the other, of
    /// which `depth` are outstanding at a time. Returns the number of the flow.
    #[track_caller]
    pub fn flow(
        &mut self,
        (from, to): (usize, usize),
        messages: u64,
        length: u32,
        depth: u64,
    ) -> usize {
        if self.shape.sender != Sender::Transport {
            return self.other((from, to), messages, length);
        }
        let first = self.ends.len();
        let options = self.shape.options.clone();
        // Not beyond 24 bits, and none of the well-known numbers.
        let qpn = |end: usize| Qpn::new(0x10 + end as u32);
        for (end, peer, host) in [(first, first + 1, from), (first + 1, first, to)] {
            let (mut qp, mut env) = (options.qp(qpn(end)), Hollow::default());
            options.bring_to(&mut qp, &mut env, QpState::Rts, qpn(peer), PSN, PSN);
            self.end(Kind::Qp(qp, env, Early::default()), host, peer);
        }
        self.begin((from, to), messages, length, depth, false)
    }

    /// The same with a model, which counts packets and takes all messages at once.
    fn other(&mut self, (from, to): (usize, usize), messages: u64, length: u32) -> usize {
        let Shape { sender, rate, ref options, .. } = self.shape;
        let mtu = options.mtu.bytes();
        let message = u64::from(length.div_ceil(mtu).max(1));
        let timeout = AckTimeout::from_code(options.timeout).and_then(AckTimeout::duration);
        let first = self.ends.len();
        for (count, host, peer) in [(messages * message, from, first + 1), (0, to, first)] {
            let other = Other::new(sender, (count, message), mtu, rate, timeout);
            self.end(Kind::Other(other), host, peer);
        }
        self.begin((from, to), messages * message, mtu, 0, false)
    }

    /// Sends `packets` of the MTU from one host to another by a stream like TCP's. Returns the
    /// number of the flow.
    pub fn stream(&mut self, (from, to): (usize, usize), packets: u64) -> usize {
        let first = self.ends.len();
        self.end(Kind::Stream(Stream::new(packets)), from, first + 1);
        self.end(Kind::Stream(Stream::new(0)), to, first);
        self.begin((from, to), packets, self.shape.options.mtu.bytes(), 0, true)
    }

    fn end(&mut self, kind: Kind, host: usize, peer: usize) {
        let (path, routed) = (Path::default(), u32::MAX);
        self.ends.push(End { kind, host, peer, path, routed, timer: None, is_ready: false });
    }

    fn begin(
        &mut self,
        (from, to): (usize, usize),
        messages: u64,
        length: u32,
        depth: u64,
        is_stream: bool,
    ) -> usize {
        self.flows.push(Flow {
            from,
            to,
            messages,
            length,
            depth,
            posted: 0,
            done: 0,
            began: self.now,
            ended: None,
            failed: None,
            is_stream,
        });
        self.open += 1;
        let flow = self.flows.len() - 1;
        self.post(flow);
        flow
    }

    /// A line between a host and its switch, in both directions, or one of a switch, fails: what is
    /// on it is lost.
    pub fn cut(&mut self, line: usize) {
        for line in [line, self.topology.reverse(line)] {
            self.lines[line].is_cut = true;
            let lost = self.lines[line].clear();
            self.lost(&lost);
        }
        self.at(self.shape.reroute, Event::Reroute);
    }

    /// The lines that a flow takes to its receiver, by their numbers.
    pub fn path(&mut self, flow: usize) -> Vec<usize> {
        self.route(2 * flow).lines()
    }

    /// A host neither sends nor takes anything from now on, but the few packets that its NIC has
    /// room for.
    pub fn stop(&mut self, host: usize) {
        self.ports[host].is_stopped = true;
    }

    /// A stopped host continues.
    pub fn resume(&mut self, host: usize) {
        self.ports[host].is_stopped = false;
        for packet in std::mem::take(&mut self.ports[host].kept) {
            self.arrives(packet);
        }
        for end in
            (0..self.ends.len()).filter(|end| self.ends[*end].host == host).collect::<Vec<_>>()
        {
            self.ready(end);
            self.watch(end);
        }
    }

    /// Runs until every flow has ended, or for a time. True if all have.
    pub fn run(&mut self, time: Duration) -> bool {
        let until = self.now + time;
        while self.open > 0 {
            match self.events.peek() {
                Some((time, _)) if time <= until => self.step(),
                _ => {
                    self.now = until;
                    return false;
                }
            }
        }
        true
    }

    /// The time.
    pub fn now(&self) -> Time {
        self.now
    }

    /// The flows.
    pub fn flows(&self) -> &[Flow] {
        &self.flows
    }

    /// What happened so far.
    pub fn report(&self) -> Report {
        let mut report = self.report;
        for (flow, ends) in self.ends.chunks(2).enumerate() {
            report.needed += self.packets(flow);
            match [&ends[0].kind, &ends[1].kind] {
                [Kind::Qp(_, sender, _), Kind::Qp(_, receiver, _)] => {
                    report.sent += sender.packets;
                    report.timeouts += sender.counted(Counter::LocalAckTimeoutErr);
                    report.notifications += receiver.counted(Counter::NpCnpSent);
                }
                [Kind::Other(sender), Kind::Other(receiver)] => {
                    report.sent += sender.sent;
                    report.timeouts += sender.timeouts;
                    report.notifications += receiver.notifications;
                }
                [Kind::Stream(sender), _] => {
                    report.sent += sender.sent;
                    report.timeouts += sender.timeouts;
                }
                _ => {}
            }
        }
        report.events = self.events.number();
        report
    }

    /// Packets of the messages of a flow that have ended.
    fn packets(&self, flow: usize) -> u64 {
        let flow = &self.flows[flow];
        flow.done * u64::from(flow.length.div_ceil(self.shape.options.mtu.bytes()).max(1))
    }

    fn at(&mut self, after: Duration, event: Event) {
        self.events.push(self.now + after, event);
    }

    fn step(&mut self) {
        let Some((time, event)) = self.events.pop() else { return };
        self.now = time;
        match event {
            Event::Arrives(packet) => self.arrives(packet),
            Event::Free(line) => {
                self.lines[line].is_busy = false;
                self.send_on(line);
            }
            Event::Pause(line, is_paused) => {
                self.lines[line].is_paused = is_paused;
                self.send_on(line);
            }
            Event::Timer(end) => self.timer(end),
            Event::Reroute => self.routes += 1,
        }
    }

    /// Posts what a flow may have outstanding.
    fn post(&mut self, flow: usize) {
        let it = &mut self.flows[flow];
        if let Kind::Qp(qp, ..) = &mut self.ends[2 * flow].kind {
            while it.posted < it.messages && it.posted - it.done < it.depth {
                let wr: SendWr = build::write(it.posted, 0, it.length, 0);
                qp.post_send(wr).expect("the send queue takes the depth");
                it.posted += 1;
            }
        }
        self.ready(2 * flow);
    }

    /// An end may have something to send.
    fn ready(&mut self, end: usize) {
        let host = self.ends[end].host;
        if !self.ends[end].is_ready {
            self.ends[end].is_ready = true;
            self.ports[host].ready.push_back(end);
        }
        self.poll(host);
    }

    /// Lets the QPs of a host send while its port has room.
    fn poll(&mut self, host: usize) {
        let line = self.topology.up(host);
        while !self.ports[host].is_stopped
            && self.lines[line].bytes < PORT
            && let Some(end) = self.ports[host].ready.pop_front()
        {
            let (mut out, path) = (Vec::new(), self.route(end));
            let mut add = |cargo, length| {
                out.push(Packet { end, path, hop: 0, cargo, length, is_marked: false });
            };
            let has_more = match &mut self.ends[end].kind {
                Kind::Qp(qp, env, _) => {
                    qp.release_ack();
                    let poll = qp.poll_transmit(env, self.now, TURN);
                    env.out.drain(..).for_each(|(headers, length)| add(Cargo::Ib(headers), length));
                    poll != Poll::Idle
                }
                Kind::Other(other) => {
                    let mtu = self.shape.options.mtu.bytes();
                    let said = std::iter::from_fn(|| other.poll(self.now)).take(TURN);
                    let length = |say| if matches!(say, Say::Data(..)) { mtu } else { 0 };
                    said.map(|say| add(Cargo::Other(say), length(say))).count() == TURN
                }
                Kind::Stream(stream) => {
                    let mtu = self.shape.options.mtu.bytes();
                    let segments = std::iter::from_fn(|| stream.poll(self.now)).take(TURN);
                    let add = |segment: Segment| add(Cargo::Stream(segment), segment.length(mtu));
                    let count = segments.map(add).count();
                    count == TURN
                }
            };
            // The line may ask for more meanwhile, of other ends: this one's packets keep in order.
            out.into_iter().for_each(|packet| self.enqueue(line, packet));
            self.ends[end].is_ready = has_more;
            if has_more {
                self.ports[host].ready.push_back(end);
            }
            self.watch(end);
        }
    }

    /// Queues the timer of an end, if it is due before the one that is queued.
    fn watch(&mut self, end: usize) {
        let End { kind, timer, is_ready, .. } = &mut self.ends[end];
        if let Some(due) = kind.timeout(*is_ready)
            && timer.is_none_or(|timer| due < timer)
        {
            *timer = Some(due);
            self.events.push(due.max(self.now), Event::Timer(end));
        }
    }

    fn timer(&mut self, end: usize) {
        let End { kind, timer, host, is_ready, .. } = &mut self.ends[end];
        if timer.is_none_or(|timer| timer > self.now) {
            return;
        }
        *timer = None;
        if self.ports[*host].is_stopped {
            return;
        }
        if kind.timeout(*is_ready).is_some_and(|due| due <= self.now) {
            match kind {
                Kind::Qp(qp, env, _) => qp.handle_timeout(env, self.now),
                Kind::Other(other) => other.handle_timeout(self.now),
                Kind::Stream(stream) => stream.handle_timeout(self.now),
            }
            self.happened(end);
        }
        self.watch(end);
    }

    /// Something happened to an end: takes what completed, and lets it send.
    fn happened(&mut self, end: usize) {
        let (flow, mut has_some) = (end / 2, false);
        let it = &mut self.flows[flow];
        match &mut self.ends[end].kind {
            Kind::Qp(_, env, _) => {
                for completion in env.completions.drain(..) {
                    has_some = true;
                    if completion.status == WcStatus::Success {
                        it.done += 1;
                    } else if it.failed.is_none() {
                        it.failed = Some(completion.status);
                        self.open -= 1;
                    }
                }
            }
            Kind::Other(other) => it.done = it.done.max(other.acknowledged()),
            Kind::Stream(stream) => it.done = it.done.max(stream.acknowledged()),
        }
        if it.done == it.messages && it.ended.is_none() {
            it.ended = Some(self.now);
            self.open -= 1;
        }
        if has_some && it.failed.is_none() {
            self.post(flow);
        } else {
            self.ready(end);
        }
    }

    /// The lines of what an end sends now.
    fn route(&mut self, end: usize) -> Path {
        if self.ends[end].routed == self.routes {
            return self.ends[end].path;
        }
        let (from, to) = (self.ends[end].host, self.ends[self.ends[end].peer].host);
        // As the source port of RoCE's datagrams, by which switches choose.
        let flow = Rng::new(self.shape.seed ^ ((end as u64) << 20)).next();
        let lines = &self.lines;
        let path = self.topology.path(from, to, flow, |line| !lines[line].is_cut);
        let end = &mut self.ends[end];
        (end.path, end.routed) = (path, self.routes);
        path
    }

    /// A packet is to be sent on a line.
    fn enqueue(&mut self, line: usize, mut packet: Packet) {
        let is_of_host = line < self.shape.hosts();
        let size = packet.size();
        let is_capable = match &self.ends[packet.end].kind {
            Kind::Other(other) => other.is_capable_of_marks(),
            Kind::Qp(..) | Kind::Stream(_) => self.shape.options.ecn,
        };
        let may_be_marked = is_capable && packet.may_be_marked();
        let it = &mut self.lines[line];
        let is_full = !is_of_host && self.shape.pfc.is_none() && it.bytes + size > self.shape.queue;
        if it.is_cut || is_full {
            if is_full {
                self.report.dropped += 1;
            }
            self.lost(&[packet]);
            return;
        }
        if let Some(red) = self.shape.red.filter(|_| !is_of_host && may_be_marked) {
            packet.is_marked |= self.rng.chance(red.chance(it.bytes));
        }
        it.push(packet);
        self.report.longest = self.report.longest.max(if is_of_host { 0 } else { it.bytes });
        self.send_on(line);
    }

    /// Begins to send what waits for a line, if it is free.
    fn send_on(&mut self, line: usize) {
        let host = line < self.shape.hosts();
        let it = &mut self.lines[line];
        if it.is_busy || it.is_paused || it.is_cut {
            return;
        }
        if let Some(packet) = it.pop() {
            it.is_busy = true;
            let rate = Rate { bytes: self.shape.rate, queue: 0, mark: None };
            let time = rate.time(packet.length as usize);
            self.leaves(packet);
            self.at(time, Event::Free(line));
            self.at(
                time + self.shape.delay,
                Event::Arrives(Packet { hop: packet.hop + 1, ..packet }),
            );
        }
        if host {
            self.poll(line);
        }
    }

    /// The switch that a packet came to holds it no more, or the packet is lost.
    fn leaves(&mut self, packet: Packet) {
        let Some(pfc) = self.shape.pfc else { return };
        let before = packet.hop.checked_sub(1);
        let Some(line) = before.and_then(|before| packet.path.line(before)) else { return };
        let it = &mut self.lines[line];
        it.held = it.held.saturating_sub(packet.size());
        if it.asked && it.held <= pfc.resume {
            it.asked = false;
            self.at(self.shape.delay, Event::Pause(line, false));
        }
    }

    /// A switch holds a packet, and perhaps too many of that neighbour.
    fn holds(&mut self, packet: Packet) {
        let Some(pfc) = self.shape.pfc else { return };
        let Some(line) = packet.path.line(packet.hop - 1) else { return };
        let it = &mut self.lines[line];
        it.held += packet.size();
        if !it.asked && it.held > pfc.pause {
            it.asked = true;
            self.report.pauses += 1;
            self.at(self.shape.delay, Event::Pause(line, true));
        }
    }

    fn lost(&mut self, packets: &[Packet]) {
        self.report.lost += packets.len() as u64;
        for packet in packets {
            self.leaves(*packet);
        }
    }

    /// A packet comes out of a line, at a switch or at its host.
    fn arrives(&mut self, packet: Packet) {
        let (came, next) = (packet.path.line(packet.hop - 1), packet.path.line(packet.hop));
        if came.is_none_or(|line| self.lines[line].is_cut) {
            self.report.lost += 1;
            return;
        }
        if let Some(next) = next {
            self.holds(packet);
            return self.enqueue(next, packet);
        }
        let to = self.ends[packet.end].peer;
        let host = self.ends[to].host;
        if self.ports[host].is_stopped {
            if self.ports[host].kept.len() < KEPT {
                self.ports[host].kept.push(packet);
            } else {
                self.report.lost += 1;
            }
            return;
        }
        self.report.marked += u64::from(packet.is_marked);
        match (&mut self.ends[to].kind, packet.cargo) {
            (Kind::Qp(qp, env, early), Cargo::Ib(headers)) => {
                let rx = Rx {
                    headers: &headers,
                    payload: &(),
                    length: packet.length,
                    skipped: Default::default(),
                    packets: 1,
                    grh: None,
                    marked: packet.is_marked,
                };
                if self.shape.options.keeps_early && qp.is_early(&headers, packet.length) {
                    early.keep(qp, headers, packet.length, ());
                }
                qp.handle_packet(env, self.now, &rx);
                while let Some(packet) = early.next(qp) {
                    qp.handle_packet(env, self.now, &packet.rx(&()));
                }
            }
            (Kind::Other(other), Cargo::Other(say)) => other.take(say, packet.is_marked, self.now),
            (Kind::Stream(stream), Cargo::Stream(segment)) => stream.take(segment, self.now),
            _ => unreachable!("both ends of a connection are of a kind"),
        }
        self.happened(to);
        self.watch(to);
    }
}
