//! Several QPs, a clock, and the network between them.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use iba::{Psn, QpState, QpType, Qpn, WrOpcode};
use transport::{AckPolicy, AckWay, Completion, Early, FastPacket, Poll, PostError, Qp};
use transport::{RecvWr, Rx, SendWr, Time, UdDest};
use wire::{Headers, Opcode};

use crate::build;
use crate::corrupt::damage;
use crate::host::{Host, Sent};
use crate::link::{Line, Link, Rng};
use crate::options::{Options, PEER, QKEY, QPN, RQ_PSN};
use crate::queue::Queue;
use crate::station::{line, take_turns};

/// When to try again memory that was absent.
const LOOK_AGAIN: Duration = Duration::from_micros(10);

/// One end of a connection.
#[derive(Debug)]
#[non_exhaustive]
pub struct Node {
    /// The QP.
    pub qp: Qp,
    /// What surrounds it.
    pub host: Host,
    /// The address of its port. A test may change it.
    pub address: u32,
    /// Where it sends to, and the only place it takes packets from, if its service connects.
    pub peer_address: u32,
    /// Packets that overtook a lost one, if it keeps them.
    pub early: Option<Early<Vec<u8>>>,
}

/// Several QPs and the network between them.
///
/// With `FABRIC_SIM_TRACE` in the environment it prints every packet as it is sent.
#[derive(Debug)]
#[non_exhaustive]
pub struct Net {
    /// The ends.
    pub nodes: Vec<Node>,
    /// The time.
    pub now: Time,
    /// The network. A test may change it.
    pub link: Link,
    /// Packets that the network carried.
    pub carried: u64,
    /// Packets that the network damaged.
    pub damaged: u64,
    /// Packets that found a line's queue full.
    pub overflowed: u64,
    /// Packets that were marked, as they found a line's queue long.
    pub marked: u64,
    /// Packets that came to a port from an address other than that of its QP's peer, and were not
    /// passed to the QP.
    pub wrong_source: u64,
    /// Ends whose packets go nowhere and to which nothing arrives: they died.
    pub dead: Vec<usize>,
    /// Ends whose packets go nowhere, though they hear others: a partition in one direction.
    pub mute: Vec<usize>,
    /// Decides at random whether a packet may take the fast path; without it, none does. A test may
    /// set it.
    pub fast: Option<Rng>,
    /// Packets that took the fast path, sent and received.
    pub fasts: [u64; 2],
    /// A hash of every packet that was sent, so that two networks can be compared. A test may set
    /// it.
    pub digest: Option<u64>,
    /// Whether packets of a message that arrive at the same time are processed in one pass, where
    /// that is allowed.
    pub joins: bool,
    /// Packets that were processed together with the one before them.
    pub joined: u64,
    /// Whether a packet that came is answered before the next is examined.
    pub is_prompt: bool,
    /// Whether an acknowledgement may then wait for a request to travel with.
    pub acks_stay: bool,
    /// Whether an end found memory that it sends from absent, and will soon try again.
    awaits_memory: bool,
    first_psns: [Psn; 2],
    trace: bool,
    ecn: bool,
    rng: Rng,
    /// How many more packets the current loss takes.
    burst: u32,
    lines: [Line; 2],
    flying: Queue<Flying>,
}

/// A packet in flight.
#[derive(Debug)]
struct Flying {
    /// From which address to which.
    way: (u32, u32),
    /// Whether it passed a long queue.
    marked: bool,
    sent: Sent,
}

impl Net {
    /// Two QPs in RTS, connected with each other if their service connects.
    pub fn pair(options: Options) -> Self {
        Self::unequal_pair(options.clone(), &options)
    }

    /// Several connections; ends 0, 2, 4 and so on share one line, and the others another.
    pub fn pairs(options: Options, count: usize) -> Self {
        let mut net = Self::pair(options.clone());
        for pair in 1..count as u32 {
            let qpns = [QPN, PEER].map(|qpn| Qpn::new(qpn.value() + 2 * pair));
            for (end, sq_psn, rq_psn) in [(0, options.sq_psn, RQ_PSN), (1, RQ_PSN, options.sq_psn)]
            {
                let (mut qp, mut host) = (options.qp(qpns[end]), options.host());
                options.bring_to(&mut qp, &mut host, QpState::Rts, qpns[1 - end], sq_psn, rq_psn);
                let [address, peer_address] = [end as u32, 1 - end as u32];
                net.nodes.push(Node { qp, host, address, peer_address, early: options.early() });
            }
        }
        net
    }

    /// Two QPs in RTS with different options. The network and the sequence numbers are the first
    /// one's.
    pub fn unequal_pair(options: Options, other: &Options) -> Self {
        let mut nodes: Vec<Node> = [(QPN, &options, 0), (PEER, other, 1)]
            .map(|(qpn, options, address)| Node {
                early: options.early(),
                qp: options.qp(qpn),
                host: options.host(),
                address,
                peer_address: 1 - address,
            })
            .into_iter()
            .collect();
        for (index, options, peer, sq_psn, rq_psn) in
            [(0, &options, PEER, options.sq_psn, RQ_PSN), (1, other, QPN, RQ_PSN, options.sq_psn)]
        {
            let Node { qp, host, .. } = &mut nodes[index];
            let stays = index == 1 && options.only_receives;
            let state = if stays { QpState::Rtr } else { QpState::Rts };
            options.bring_to(qp, host, state, peer, sq_psn, rq_psn);
        }
        if options.direct {
            nodes[0].host.direct = Some(nodes[1].host.memory.clone());
            nodes[1].host.direct = Some(nodes[0].host.memory.clone());
        }
        Self {
            nodes,
            now: Time::ZERO,
            link: options.link,
            carried: 0,
            damaged: 0,
            overflowed: 0,
            marked: 0,
            wrong_source: 0,
            dead: Vec::new(),
            mute: Vec::new(),
            fast: None,
            fasts: [0; 2],
            digest: None,
            joins: false,
            joined: 0,
            is_prompt: false,
            acks_stay: false,
            awaits_memory: false,
            first_psns: [options.sq_psn, RQ_PSN],
            trace: std::env::var_os("FABRIC_SIM_TRACE").is_some(),
            ecn: options.ecn,
            rng: Rng::new(options.seed),
            burst: 0,
            lines: [Line::default(); 2],
            flying: Queue::new(),
        }
    }

    /// Puts a new QP with the number of the old one at an end, as if the program was started again,
    /// connected to the other end's. The old one's memory stays, its completions are forgotten, and
    /// its packets are still in flight.
    #[track_caller]
    pub fn restart(&mut self, node: usize, options: &Options, sq_psn: Psn, rq_psn: Psn) {
        let peer = self.nodes[1 - node].qp.qpn();
        let Node { qp, host, .. } = &mut self.nodes[node];
        *qp = options.qp(qp.qpn());
        host.completions.clear();
        host.events.clear();
        options.bring_to(qp, host, QpState::Rts, peer, sq_psn, rq_psn);
        self.first_psns[node] = sq_psn;
    }

    /// Moves an end's port to another address.
    pub fn readdress(&mut self, node: usize, address: u32) {
        self.nodes[node].address = address;
    }

    /// Lets a third party send a packet to an end, as if it came from the end's peer.
    pub fn forge(&mut self, to: usize, mut headers: Headers, payload: Vec<u8>) {
        headers.bth.dest_qp = self.nodes[to].qp.qpn();
        headers.bth.pad = wire::bth::pad_for(payload.len());
        let way = (self.nodes[to].peer_address, self.nodes[to].address);
        let arrival = self.now + self.link.delay;
        self.fly(arrival, way, false, Sent { headers, payload, skipped: Default::default() });
    }

    /// Runs until there are no more events.
    ///
    /// # Panics
    ///
    /// If it takes more than a million steps.
    #[track_caller]
    pub fn drive(&mut self) {
        assert!(self.drive_bounded(1_000_000), "the QPs never become idle");
    }

    /// Runs until there are no more events, or `steps` events have happened. True if none is left.
    pub fn drive_bounded(&mut self, steps: u64) -> bool {
        for _ in 0..steps {
            self.poll();
            let Some(next) = self.next_event() else { return true };
            self.now = self.now.max(next);
            self.deliver();
            for (index, node) in self.nodes.iter_mut().enumerate() {
                let due = node.qp.poll_timeout().is_some_and(|due| due <= self.now);
                if due && !self.dead.contains(&index) {
                    node.qp.handle_timeout(&mut node.host, self.now);
                }
            }
        }
        false
    }

    /// Sets when acknowledgements may wait at both ends, and lets them ([`Net::acks_stay`]).
    pub fn set_ack_policy(&mut self, policy: &'static AckPolicy) {
        self.nodes.iter_mut().for_each(|node| node.qp.set_ack_policy(policy));
        self.acks_stay = true;
    }

    /// Lets every QP send what it can, and puts that on the network.
    pub fn poll(&mut self) {
        self.awaits_memory = false;
        for index in 0..self.nodes.len() {
            if !self.dead.contains(&index) {
                self.nodes[index].qp.release_ack();
                self.poll_node(index);
                let Node { qp, host, early, .. } = &mut self.nodes[index];
                if early.as_ref().is_some_and(|early| !early.is_empty()) {
                    take_turns(early, qp, host, self.now);
                    self.poll_node(index);
                }
            }
        }
    }

    fn poll_node(&mut self, index: usize) {
        loop {
            let Node { qp, host, .. } = &mut self.nodes[index];
            let poll = qp.poll_transmit(host, self.now, 16);
            let is_stuck = poll == Poll::Blocked && (host.room == Some(0) || host.out.is_empty());
            self.awaits_memory |= is_stuck && host.room.is_none();
            while let Some(sent) = self.nodes[index].host.out.pop_front() {
                self.carry(index, sent);
            }
            if poll == Poll::Idle || is_stuck {
                break;
            }
        }
    }

    fn may_be_fast(&mut self) -> bool {
        self.fast.as_mut().is_some_and(|rng| rng.chance(500))
    }

    fn carry(&mut self, from: usize, sent: Sent) {
        if self.trace {
            println!("{:>12} ns  {}", self.now.as_nanos(), line(&sent.headers, &sent.payload));
        }
        if let Some(digest) = &mut self.digest {
            let mut hasher = DefaultHasher::new();
            (&*digest, from, line(&sent.headers, &sent.payload), &sent.payload).hash(&mut hasher);
            *digest = hasher.finish();
        }
        if self.mute.contains(&from) || !self.link.passes(sent.payload.len()) {
            return;
        }
        let way = (self.nodes[from].address, self.nodes[from].peer_address);
        let (mut left, mut marked) = (self.now, false);
        if let Some(rate) = self.link.rate {
            let line = &mut self.lines[from % 2];
            let wait = line.wait(self.now);
            let Some(time) = line.take(rate, self.now, sent.payload.len()) else {
                self.overflowed += 1;
                return;
            };
            let is_long = rate.mark.is_some_and(|mark| wait > rate.wait(mark));
            marked = is_long && self.ecn && sent.headers.bth.opcode != Opcode::Cnp;
            self.marked += u64::from(marked);
            left = time;
        }
        for delay in self.link.carry(&mut self.rng, &mut self.burst) {
            if !self.rng.chance(self.link.corrupt) {
                self.fly(left + delay, way, marked, sent.clone());
                continue;
            }
            self.damaged += 1;
            if let Some(sent) = damage(&mut self.rng, &sent) {
                self.fly(left + delay, way, marked, sent);
            }
        }
    }

    fn fly(&mut self, arrival: Time, way: (u32, u32), marked: bool, sent: Sent) {
        self.carried += 1;
        self.flying.push(arrival, Flying { way, marked, sent });
    }

    fn next_event(&self) -> Option<Time> {
        let timers = self
            .nodes
            .iter()
            .enumerate()
            .filter(|(index, _)| !self.dead.contains(index))
            .filter_map(|(_, node)| node.qp.poll_timeout());
        let arrival = self.flying.peek().map(|(arrival, _)| arrival);
        let look = self.awaits_memory.then(|| self.now + LOOK_AGAIN);
        arrival.into_iter().chain(look).chain(timers).min()
    }

    fn deliver(&mut self) {
        while self.flying.peek().is_some_and(|(arrival, _)| arrival <= self.now) {
            let Some((_, Flying { sent, way: (from, to), marked })) = self.flying.pop() else {
                break;
            };
            let dest = sent.headers.bth.dest_qp;
            let may_be_fast = self.may_be_fast() && sent.skipped == Default::default();
            for index in 0..self.nodes.len() {
                let node = &mut self.nodes[index];
                if node.qp.qpn() != dest || node.address != to || self.dead.contains(&index) {
                    continue;
                }
                if node.qp.qp_type().is_connected() && from != node.peer_address {
                    self.wrong_source += 1;
                    continue;
                }
                let Node { qp, host, early, .. } = &mut *node;
                let mut sent = sent.clone();
                let mut packets = 1;
                let most = if self.joins && !marked { qp.joinable(&sent.headers) } else { 0 };
                while packets < most
                    && let Some((arrival, next)) = self.flying.peek()
                    && arrival <= self.now
                    && next.way == (from, to)
                    && !next.marked
                    && next.sent.continues(&sent, packets)
                    && let Some((_, next)) = self.flying.pop()
                {
                    sent.payload.extend(next.sent.payload);
                    packets += 1;
                    self.joined += 1;
                }
                let length = sent.payload.len() as u32;
                let fast = FastPacket::of(&sent.headers, length).filter(|_| may_be_fast && !marked);
                let way =
                    if self.fasts[1].is_multiple_of(2) { AckWay::AtOnce } else { AckWay::Together };
                let is_taken = fast.is_some_and(|fast| {
                    qp.handle_fast(host, self.now, fast, (&sent.payload, length), way)
                });
                self.fasts[1] += u64::from(is_taken);
                if !is_taken {
                    let grh = [0x60; 40];
                    let rx = Rx {
                        headers: &sent.headers,
                        payload: &sent.payload,
                        length,
                        skipped: sent.skipped,
                        packets,
                        grh: Some(&grh),
                        marked,
                    };
                    let keeper = early.as_mut().filter(|_| packets == 1);
                    if let Some(keeper) = keeper.filter(|_| qp.is_early(&sent.headers, length)) {
                        keeper.keep(qp, sent.headers, length, sent.payload.clone());
                    }
                    qp.handle_packet(host, self.now, &rx);
                    take_turns(early, qp, host, self.now);
                }
                let qp = &mut self.nodes[index].qp;
                if self.acks_stay {
                    qp.delay_ack(self.now);
                }
                if self.is_prompt {
                    self.poll_node(index);
                }
            }
        }
    }

    /// Posts a send. A datagram goes to the other end.
    #[track_caller]
    pub fn post(&mut self, node: usize, mut wr: SendWr) {
        if self.nodes[node].qp.qp_type() == QpType::Ud && wr.ud.is_none() {
            wr.ud = Some(self.to(1 - node));
        }
        self.try_post(node, wr).expect("the send queue takes it");
    }

    /// Posts a send, if the queue takes it. It may take the fast path at once, and its packets
    /// travel when its node is polled.
    ///
    /// # Errors
    /// As [`Qp::post_send`].
    pub fn try_post(&mut self, node: usize, wr: SendWr) -> Result<(), PostError> {
        let may_be_fast = self.may_be_fast();
        let Node { qp, host, .. } = &mut self.nodes[node];
        if !may_be_fast {
            return qp.post_send(wr);
        }
        let before = host.out.len();
        qp.post_fast(host, wr)?;
        qp.watch(|| self.now);
        self.fasts[0] += u64::from(host.out.len() > before);
        Ok(())
    }

    /// Posts a SEND of `length` bytes at `addr`.
    #[track_caller]
    pub fn send(&mut self, node: usize, wr_id: u64, addr: u64, length: u32) {
        self.post(node, build::wr(wr_id, WrOpcode::Send, addr, length));
    }

    /// Posts a receive of `length` bytes at `addr`.
    #[track_caller]
    pub fn recv(&mut self, node: usize, wr_id: u64, addr: u64, length: u32) {
        self.post_recv(node, build::recv(wr_id, addr, length));
    }

    /// Posts a receive.
    #[track_caller]
    pub fn post_recv(&mut self, node: usize, wr: RecvWr) {
        self.nodes[node].qp.post_recv(wr).expect("the receive queue takes it");
    }

    /// The address of a datagram QP.
    pub fn to(&self, node: usize) -> UdDest {
        let remote_qpn: Qpn = self.nodes[node].qp.qpn();
        UdDest { av: iba::Av::default(), remote_qpn, remote_qkey: QKEY }
    }

    /// The first sequence number that a node sends.
    pub fn first_psn(&self, node: usize) -> Psn {
        self.first_psns[node]
    }

    /// What completed at a node so far.
    pub fn completions(&self, node: usize) -> &[Completion] {
        &self.nodes[node].host.completions
    }

    /// Takes what completed at a node so far.
    pub fn take_completions(&mut self, node: usize) -> Vec<Completion> {
        core::mem::take(&mut self.nodes[node].host.completions)
    }

    /// Writes to a node's memory.
    #[track_caller]
    pub fn write_memory(&mut self, node: usize, addr: u64, bytes: &[u8]) {
        let mut memory = self.nodes[node].host.memory.borrow_mut();
        memory.bytes_mut(addr, bytes.len()).copy_from_slice(bytes);
    }

    /// Reads a node's memory.
    #[track_caller]
    pub fn read_memory(&self, node: usize, addr: u64, length: usize) -> Vec<u8> {
        self.nodes[node].host.memory.borrow_mut().bytes_mut(addr, length).to_vec()
    }
}
