//! Messages of the unreliable services, over the same bad networks.
//!
//! Each end posts SENDs, and on UC WRITEs, with and without immediate data. On UC a message is
//! delivered whole or not at all (IBA 9.8.2): never torn, never assembled from two. On UD each
//! datagram is either right byte by byte, with the right sender, or missing. Neither service
//! detects duplicates: the first packet of a message is accepted with any number. So a packet that
//! the network repeats may arrive twice, and one that it reorders may be overtaken; a network that
//! does neither delivers nothing twice and nothing late. A harmless network delivers everything
//! that fits and finds a receive. A message that was sent is done, whatever happens to it.

use std::time::Instant;

use fabric_sim::build::{self, Build};
use fabric_sim::link::Rng;
use fabric_sim::net::Net;
use fabric_sim::options::PEER;
use fabric_sim::{Options, options::QPN};
use iba::{Mtu, Psn, QKey, QpState, QpType, WcFlags, WcOpcode, WcStatus, WrOpcode};
use transport::{Completion, Counter, Side};
use wire::Opcode;

use crate::oracle::is_between;
use crate::weather::{self, Weather};
use crate::{Areas, OPS, Op, length_of, pattern, seeds};

/// The header in front of each datagram, as [`Net`] builds it.
const GRH: [u8; 40] = [0x60; 40];

/// What happened in the runs, over all seeds.
#[derive(Debug, Default)]
struct Tally {
    runs: u64,
    operations: u64,
    packets: u64,
    /// Messages that needed a receive, that were delivered, and that were delivered again.
    messages: u64,
    delivered: u64,
    again: u64,
    /// WRITEs of which only a part arrived.
    parts: u64,
    /// Runs in which the ends disagreed about the path MTU, and in which the network did no harm.
    mismatched: u64,
    harmless: u64,
    damaged: u64,
    forged: u64,
    partitions: u64,
    moves: u64,
}

struct Run {
    rng: Rng,
    net: Net,
    qp_type: QpType,
    mtus: [Mtu; 2],
    areas: Areas,
    sq_sig_all: bool,
    posted: [Vec<Op>; 2],
    left: [u64; 2],
    receives: [u64; 2],
    weather: Weather,
}

#[test]
fn uc_delivers_whole_messages_or_none() {
    let tally = run_all(QpType::Uc);
    if tally.runs >= 1_000 {
        assert!(tally.parts > tally.runs / 10, "{tally:?}");
    }
}

#[test]
fn ud_delivers_datagrams_as_they_were_sent_or_not_at_all() {
    let _ = run_all(QpType::Ud);
}

fn run_all(qp_type: QpType) -> Tally {
    let mut tally = Tally::default();
    let begin = Instant::now();
    for seed in seeds() {
        let run = std::panic::catch_unwind(|| Run::new(seed, qp_type).go());
        let Ok((run, seen)) = run else { panic!("{qp_type:?} failed with TRANSPORT_SEED={seed}") };
        tally.runs += 1;
        tally.operations += 2 * OPS;
        tally.packets += run.net.carried;
        tally.messages += seen.messages;
        tally.delivered += seen.delivered;
        tally.again += seen.again;
        tally.parts += seen.parts;
        tally.mismatched += u64::from(run.mtus[0] != run.mtus[1]);
        tally.harmless += u64::from(run.is_harmless());
        tally.damaged += run.net.damaged;
        tally.forged += run.weather.forged;
        tally.partitions += run.weather.partitions;
        tally.moves += run.weather.moves;
    }
    println!("{qp_type:?}: {tally:?} in {:?}", begin.elapsed());
    if tally.runs >= 1_000 {
        // The networks are as bad as they are meant to be, and not worse.
        assert!(tally.delivered > tally.messages / 4 && tally.again > tally.runs / 10, "{tally:?}");
        assert!(tally.damaged > tally.runs / 4 && tally.forged > tally.runs, "{tally:?}");
        assert!(
            tally.mismatched > tally.runs / 30 && tally.harmless > tally.runs / 30,
            "{tally:?}"
        );
        assert!(tally.partitions > tally.runs / 10 && tally.moves > tally.runs / 30, "{tally:?}");
    }
    tally
}

/// The outcome of the messages of a run.
#[derive(Debug, Default)]
struct Seen {
    messages: u64,
    delivered: u64,
    again: u64,
    parts: u64,
}

impl Run {
    fn new(seed: u64, qp_type: QpType) -> Self {
        let mut rng = Rng::new(seed + 3);
        let mtu = weather::mtu(&mut rng);
        let areas = Areas::new(mtu);
        let mut options = Options { qp_type, mtu, seed, ..Options::rc() };
        options.sq_sig_all = rng.chance(300);
        options.memory = areas.memory();
        options.sq_psn = if rng.chance(500) { Psn::new(0xff_fff0) } else { Psn::new(7) };
        let weather =
            if rng.chance(100) { Weather::FINE } else { weather::roll(&mut rng, &mut options) };
        let mut other = options.clone();
        if rng.chance(100) {
            other.mtu = weather::mtu(&mut rng);
        }
        let sq_sig_all = options.sq_sig_all;
        let mut net = Net::unequal_pair(options, &other);
        net.fast = rng.chance(500).then(|| Rng::new(seed + 4));
        net.joins = rng.chance(500);
        let mut run = Self {
            rng,
            net,
            qp_type,
            mtus: [mtu, other.mtu],
            areas,
            sq_sig_all,
            posted: [Vec::new(), Vec::new()],
            left: [OPS; 2],
            receives: [0; 2],
            weather,
        };
        for node in 0..2 {
            for op in 0..OPS {
                let area = run.pattern(node, op, areas.size);
                run.net.write_memory(node, areas.local(op), &area);
            }
        }
        run
    }

    fn pattern(&self, side: usize, op: u64, length: u64) -> Vec<u8> {
        (0..length).map(|at| pattern(side, op, at)).collect()
    }

    fn go(mut self) -> (Self, Seen) {
        while self.left != [0, 0] {
            let node = self.rng.below(2) as usize;
            match self.rng.below(40) {
                0 => self.weather.change(&mut self.rng, &mut self.net),
                1 => self.forge(node),
                2..12 if self.left[node] > 0 => self.post(node),
                // Sometimes too late.
                12..24 if self.receives[node] < OPS => self.post_recv(node),
                _ => {
                    let steps = self.rng.below(20);
                    self.net.drive_bounded(steps);
                }
            }
        }
        self.net.drive();
        let mut seen = Seen::default();
        for node in 0..2 {
            self.check_sends(node);
            self.check_receives(node, &mut seen);
            self.check_written(node, &mut seen);
            self.check_count(node);
        }
        (self, seen)
    }

    fn post(&mut self, node: usize) {
        let index = OPS - self.left[node];
        self.left[node] -= 1;
        let (local, remote) = (self.areas.local(index), self.areas.remote(index));
        let (mtu, is_ud) = (self.mtus[node].bytes(), self.qp_type == QpType::Ud);
        let length = match self.rng.below(4) {
            0 => 0,
            1 => self.rng.below(64) as u32,
            2 => mtu * self.rng.below(4) as u32,
            _ => self.rng.below(self.areas.size) as u32,
        }
        .min(if is_ud { mtu } else { self.areas.size as u32 });
        let imm = index as u32;
        let mut wr = match self.rng.below(if is_ud { 2 } else { 4 }) {
            // At least one byte, as the first byte tells which message it is.
            0 => build::send(index, local, length.max(1)),
            1 => build::wr(index, WrOpcode::SendWithImm, local, length),
            2 => build::write(index, local, length, remote),
            _ => {
                let write = build::write(index, local, length, remote);
                transport::SendWr { opcode: WrOpcode::RdmaWriteWithImm, ..write }
            }
        };
        wr.imm = imm;
        if self.rng.chance(300) {
            wr.flags |= iba::SendFlags::SIGNALED;
        }
        let length = length_of(&wr.data);
        self.posted[node].push(Op { wr: wr.clone(), length, bad: None });
        self.net.post(node, wr);
    }

    fn post_recv(&mut self, node: usize) {
        let index = self.receives[node];
        self.receives[node] += 1;
        self.net.recv(node, index, self.areas.receive(index), self.areas.size as u32);
    }

    /// A packet from an attacker that cannot see the connection: of another service, without the
    /// key, or from the middle of a message.
    fn forge(&mut self, to: usize) {
        if !self.weather.is_forged {
            return;
        }
        self.weather.forged += 1;
        let psn = self.net.nodes[to].qp.query().rq_psn.add(weather::FAR);
        let packet = build::packet;
        let headers = match (self.rng.below(4), self.qp_type) {
            (0, _) => packet(Opcode::RcSendOnly, psn),
            (1, _) => build::ack(psn, 1),
            (2, QpType::Uc) => packet(Opcode::UcSendMiddle, psn),
            (_, QpType::Uc) => packet(Opcode::UcWriteLast, psn),
            _ => packet(Opcode::UdSendOnly, psn).with_deth(QKey(1), PEER),
        };
        self.net.forge(to, headers, vec![0xee; 64]);
    }

    /// A network that loses, repeats and reorders nothing.
    fn is_harmless(&self) -> bool {
        let link = &self.net.link;
        let harm = link.loss + link.corrupt + link.duplicate + link.reorder;
        harm == 0
            && link.jitter.is_zero()
            && link.rate.is_none()
            && !self.weather.was_cut()
            && self.weather.forged == 0
    }

    fn fits(&self, op: &Op) -> bool {
        op.length <= self.mtus[0].min(self.mtus[1]).bytes() || self.mtus[0] == self.mtus[1]
    }

    /// Everything that was sent is done, and used the sequence numbers of its packets.
    fn check_sends(&self, node: usize) {
        let qp = &self.net.nodes[node].qp;
        assert_eq!((qp.state(), qp.sends()), (QpState::Rts, 0));
        let mut completions = self.net.nodes[node].host.of(Side::Send);
        for op in &self.posted[node] {
            if self.sq_sig_all || op.wr.flags.contains(iba::SendFlags::SIGNALED) {
                let next = completions.next().expect("a signaled send completes");
                assert_eq!((next.wr_id, next.status), (op.wr.wr_id, WcStatus::Success));
            }
        }
        assert_eq!(completions.next(), None, "completed too often");
        let mtu = self.mtus[node];
        let packets: u32 = self.posted[node].iter().map(|op| mtu.packets(op.length)).sum();
        assert_eq!(qp.query().sq_psn, self.net.first_psn(node).add(packets), "numbers used");
        assert!(self.net.nodes[node].host.events.is_empty());
    }

    /// Every completed receive has a whole message, none too often, and in order if the network
    /// keeps the order.
    fn check_receives(&self, node: usize, seen: &mut Seen) {
        let link = &self.net.link;
        let most = if link.duplicate > 0 { 2 } else { 1 };
        let keeps_order = link.reorder == 0 && link.jitter.is_zero();
        let mut times = vec![0; OPS as usize];
        let mut latest = 0;
        for (place, done) in (0..).zip(self.net.nodes[node].host.of(Side::Recv)) {
            assert_eq!((done.wr_id, done.status), (place, WcStatus::Success), "{done:?}");
            let index = self.check_message(node, done);
            times[index] += 1;
            assert!(times[index] <= most, "message {index} came {} times", times[index]);
            assert!(index >= latest || !keeps_order, "message {index} came after {latest}");
            latest = index;
        }
        let needed = self.posted[1 - node].iter().filter(|op| op.needs_receive()).count();
        seen.messages += needed as u64;
        seen.delivered += times.iter().filter(|times| **times > 0).count() as u64;
        seen.again += times.iter().filter(|times| **times > 1).count() as u64;
        if self.qp_type == QpType::Ud {
            for index in
                self.net.nodes[node].host.of(Side::Recv).count() as u64..self.receives[node]
            {
                self.check_untouched(node, self.areas.receive(index), self.areas.size);
            }
        }
    }

    /// A receive has one of the peer's messages, whole. Returns which one.
    fn check_message(&self, node: usize, done: &Completion) -> usize {
        let (at, is_ud) = (self.areas.receive(done.wr_id), self.qp_type == QpType::Ud);
        let header = if is_ud { GRH.len() } else { 0 };
        let got = self.net.read_memory(node, at, self.areas.size as usize);
        let (grh, got) = got.split_at(header);
        let length = done.byte_len as usize - header;
        let ops = &self.posted[1 - node];
        let index = if done.flags.contains(WcFlags::WITH_IMM) {
            done.imm as usize
        } else {
            let first = |op: &Op| self.pattern(1 - node, op.wr.wr_id, 1)[0];
            ops.iter().position(|op| first(op) == got[0]).expect("the first byte of a message")
        };
        let op = ops.get(index).expect("a message that was sent");
        let (opcode, has_imm) = match op.wr.opcode {
            WrOpcode::Send => (WcOpcode::Recv, false),
            WrOpcode::SendWithImm => (WcOpcode::Recv, true),
            WrOpcode::RdmaWriteWithImm => (WcOpcode::RecvRdmaWithImm, true),
            other => panic!("{other:?} met a receive"),
        };
        assert!(self.fits(op), "message {index} does not fit both ends");
        assert_eq!((done.opcode, length), (opcode, op.length as usize), "message {index}");
        assert_eq!(done.flags.contains(WcFlags::WITH_IMM), has_imm, "message {index}");
        let sent = self.pattern(1 - node, op.wr.wr_id, length as u64);
        if opcode == WcOpcode::Recv {
            assert!(got[..length] == sent, "message {index} is not what was sent");
        } else {
            let written = self.net.read_memory(node, op.wr.remote_addr, length);
            assert!(written == sent, "message {index} is not what was sent");
        }
        if is_ud {
            assert_eq!((grh, done.src_qpn), (&GRH[..], [QPN, PEER][1 - node]), "its sender");
            assert!(done.flags.contains(WcFlags::GRH));
            let end = at + (header + length) as u64;
            self.check_untouched(node, end, at + self.areas.size - end);
        }
        index
    }

    fn check_untouched(&self, node: usize, addr: u64, length: u64) {
        let got = self.net.read_memory(node, addr, length as usize);
        assert!(got.iter().all(|byte| *byte == 0), "bytes beside a datagram");
    }

    /// What was written to an end: whole packets from the start of a message, and on a harmless
    /// network all of it.
    fn check_written(&self, node: usize, seen: &mut Seen) {
        for op in self.posted[1 - node].iter().filter(|op| op.wr.opcode.names_remote()) {
            let got = self.net.read_memory(node, op.wr.remote_addr, self.areas.size as usize);
            let (old, length) = (vec![0; got.len()], op.length as usize);
            let mut new = old.clone();
            new[..length].copy_from_slice(&self.pattern(1 - node, op.wr.wr_id, length as u64));
            // With immediate data, the last packet does not wait for a receive, and is not written
            // without one.
            if self.is_harmless() && op.wr.opcode == WrOpcode::RdmaWrite {
                assert!(got == if self.fits(op) { &new } else { &old }[..], "{op:?}");
                continue;
            }
            assert!(is_between(&got, &old, &new, true), "{op:?}");
            let there = got.iter().rposition(|byte| *byte != 0).map_or(0, |at| at + 1);
            let packet = self.mtus[1 - node].bytes() as usize;
            let is_whole = got == new;
            // Bytes of a message may be 0, even at the end of a packet.
            let cut = there.next_multiple_of(packet).min(length);
            assert!(is_whole || got[..cut] == new[..cut], "a packet in part: {op:?}");
            seen.parts += u64::from(!is_whole && there > 0);
        }
    }

    /// On a harmless network, everything is delivered except messages that find no receive or fit
    /// only one end.
    fn check_count(&self, node: usize) {
        if !self.is_harmless() {
            return;
        }
        let host = &self.net.nodes[node].host;
        let needed = |op: &&Op| op.needs_receive() && self.fits(op);
        let messages = self.posted[1 - node].iter().filter(needed).count() as u64;
        let delivered = host.of(Side::Recv).count() as u64;
        // A message that fits only one end may also have found no receive.
        let missed = host.counted(Counter::OutOfBuffer);
        let misfits = self.posted[1 - node].iter().filter(|op| !self.fits(op)).count() as u64;
        assert!(delivered + missed >= messages, "{delivered} and {missed} of {messages}");
        assert!(delivered + missed <= messages + misfits, "{delivered} and {missed} of {messages}");
    }
}
