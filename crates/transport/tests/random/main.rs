//! Random operations over a bad network, checked against an oracle.
//!
//! Both ends of an RC connection post sends, writes, reads and atomics at random moments, with
//! receives that are often late. The network loses, one by one or in bursts, repeats, reorders,
//! damages and delays packets, has a line that is too slow, and falls silent in one direction;
//! ports move to other addresses, and an attacker that does not see the packets forges some
//! ([`weather`]). Whatever happens, every operation is carried out exactly once, in order, every
//! byte is right, and the completions say so; or a connection ends with the error that the standard
//! prescribes, everything before it was carried out, and everything after it is flushed
//! ([`oracle`]). In some runs the peer must refuse one operation; in some the ends have different
//! path MTUs, and an operation that does not fit both ends the connection; and in some both
//! programs restart with the same QPNs while packets of their old connections are on their way,
//! none of which reaches the new ones.
//!
//! The unreliable services have oracles of their own ([`unreliable`]).
//!
//! `TRANSPORT_RANDOM` is `small` (the default, 72,000 operations), `medium` (a million) or `large`
//! (ten million: minutes; the default of `cargo xtask test --full`). A failure names its seed, and
//! `TRANSPORT_SEED=n` runs that one alone.

mod oracle;
mod unreliable;
mod weather;

use std::time::Instant;

use fabric_sim::Options;
use fabric_sim::build;
use fabric_sim::link::Rng;
use fabric_sim::net::{Net, Node};
use fabric_sim::options::{BASE, KEY};
use iba::{Access, AttrMask, Mtu, Psn, QpAttr, QpState, SendFlags, WcStatus, WrOpcode};
use transport::{Data, SendWr};

use oracle::Ending;
use weather::Weather;

/// Operations of each side in a run.
const OPS: u64 = 24;
/// Two shared words: a counter for FETCH_ADD, and the target of every WRITE of one byte.
const COUNTER: u64 = BASE;
const LAST: u64 = COUNTER + 8;

/// Each host: the shared words, areas that its own operations use locally, areas that the peer's
/// use remotely, receives.
#[derive(Clone, Copy, Debug)]
struct Areas {
    /// Bytes of each area.
    size: u64,
}

impl Areas {
    /// Areas for messages of several packets.
    fn new(mtu: Mtu) -> Self {
        Self { size: 4096.max(3 * u64::from(mtu.bytes())) }
    }

    const fn local(self, index: u64) -> u64 {
        BASE + self.size * (1 + index)
    }

    const fn remote(self, index: u64) -> u64 {
        self.local(OPS + index)
    }

    const fn receive(self, index: u64) -> u64 {
        self.local(2 * OPS + index)
    }

    /// Bytes of memory that a host needs.
    const fn memory(self) -> usize {
        (self.receive(OPS) - BASE) as usize
    }
}

const SMALL: core::ops::Range<u64> = 0..1_500;
const LARGE: core::ops::Range<u64> = 0..210_000;

fn seeds() -> core::ops::Range<u64> {
    if let Some(seed) = std::env::var("TRANSPORT_SEED").ok().and_then(|seed| seed.parse().ok()) {
        return seed..seed + 1;
    }
    let is_full = std::env::var("PEERDMA_FULL").is_ok_and(|value| value == "1");
    match std::env::var("TRANSPORT_RANDOM").as_deref() {
        Ok("small") => SMALL,
        Ok("medium") => 0..21_000,
        Ok("large") => LARGE,
        Ok(size) => panic!("TRANSPORT_RANDOM={size}: must be small, medium or large"),
        Err(_) if is_full => LARGE,
        Err(_) => SMALL,
    }
}

/// What happened in the runs, over all seeds.
#[derive(Debug, Default)]
struct Tally {
    runs: u64,
    operations: u64,
    packets: u64,
    damaged: u64,
    forged: u64,
    partitions: u64,
    /// Packets that took the fast path, sent and received.
    fasts: [u64; 2],
    /// Packets that were handled together with the one before them.
    joined: u64,
    /// Runs with an operation that was refused, and runs that ended without an answer.
    refused: u64,
    gave_up: u64,
    /// Of the latter, those in which packets were lost by chance alone, and with nothing to refuse.
    gave_up_early: u64,
    /// Runs by path MTU, runs in which the ends disagreed about it, and runs in which that ended
    /// one of them.
    mtus: [u64; 5],
    mismatched: u64,
    misfits: u64,
    /// Ports that moved, and programs that restarted.
    moves: u64,
    restarts: u64,
}

impl Tally {
    fn add(&mut self, run: &Run) {
        self.runs += 1;
        self.operations += 2 * OPS;
        self.packets += run.net.carried;
        self.damaged += run.net.damaged;
        self.forged += run.weather.forged;
        self.partitions += run.weather.partitions;
        self.fasts = [0, 1].map(|way| self.fasts[way] + run.net.fasts[way]);
        self.joined += run.net.joined;
        let ended = |ending| u64::from(run.ending == Some(ending));
        self.refused += ended(Ending::Refused);
        self.gave_up += ended(Ending::GaveUp);
        self.misfits += ended(Ending::Misfit);
        let [own, other] = run.mtus;
        self.mtus[Mtu::ALL.iter().position(|mtu| *mtu == own).expect("one of them")] += 1;
        self.mismatched += u64::from(own != other);
        self.moves += run.weather.moves;
        self.restarts += run.restarts;
        let by_chance = !run.weather.was_cut() && run.restarts == 0;
        let alone = by_chance && run.posted.iter().flatten().all(|op| op.bad.is_none());
        self.gave_up_early += ended(Ending::GaveUp) * u64::from(alone);
    }
}

#[test]
fn rc_does_everything_exactly_once_and_in_order_or_fails_as_prescribed() {
    let mut tally = Tally::default();
    let begin = Instant::now();
    for seed in seeds() {
        let run = std::panic::catch_unwind(|| Run::new(seed).go());
        let Ok(run) = run else { panic!("failed with TRANSPORT_SEED={seed}") };
        tally.add(&run);
    }
    println!("{tally:?} in {:?}", begin.elapsed());
    if tally.runs >= 1_000 {
        // The networks are as bad as they are meant to be, and a connection that is only slow does
        // not end.
        assert!(tally.damaged > tally.runs && tally.forged > tally.runs, "{tally:?}");
        assert!(tally.partitions > tally.runs / 10 && tally.refused > tally.runs / 10, "{tally:?}");
        assert!(tally.gave_up > tally.runs / 100, "{tally:?}");
        assert!(tally.fasts.iter().all(|count| *count > tally.runs / 20), "{tally:?}");
        assert!(tally.joined > tally.runs, "{tally:?}");
        assert!(tally.gave_up_early <= tally.runs / 200, "{tally:?}");
        assert!(tally.mtus.iter().all(|runs| *runs > tally.runs / 30), "{tally:?}");
        assert!(tally.mismatched > tally.runs / 30 && tally.misfits > tally.runs / 60, "{tally:?}");
        assert!(tally.moves > tally.runs / 30 && tally.restarts > tally.runs / 30, "{tally:?}");
    }
}

/// The expected outcome of a send.
#[derive(Clone, Debug)]
struct Op {
    wr: SendWr,
    length: u32,
    /// What the peer must answer if this is a bad operation.
    bad: Option<WcStatus>,
}

struct Run {
    rng: Rng,
    net: Net,
    /// The options of each end.
    options: [Options; 2],
    mtus: [Mtu; 2],
    areas: Areas,
    /// Each side's operations, in the order of posting.
    posted: [Vec<Op>; 2],
    /// Operations that each side has still to post.
    left: [u64; 2],
    /// Receives that each side has posted.
    receives: [u64; 2],
    /// The side that will post a bad operation, and when.
    bad: Option<(usize, u64)>,
    weather: Weather,
    /// How many steps happen before both programs restart, if they do.
    old_life: Option<u64>,
    restarts: u64,
    /// How it failed, if it did.
    ending: Option<Ending>,
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed + 1);
        let mtu = weather::mtu(&mut rng);
        let areas = Areas::new(mtu);
        let mut options = Options::rc();
        options.mtu = mtu;
        options.seed = seed;
        options.keeps_early = !seed.is_multiple_of(4);
        options.sq_sig_all = rng.chance(300);
        options.rd_atomic = 1 + rng.below(4) as u8;
        options.timeout = 4;
        options.memory = areas.memory();
        options.sq_psn = if rng.chance(500) { Psn::new(0xff_fff0) } else { Psn::new(7) };
        let is_wire = !rng.chance(300);
        let weather = if is_wire {
            weather::roll(&mut rng, &mut options)
        } else {
            // A reliable carrier neither loses nor repeats packets.
            options = options.over_memory(1024 << rng.below(4));
            options.direct = rng.chance(500);
            Weather::FINE
        };
        let mut other = options.clone();
        if is_wire && rng.chance(100) {
            other.mtu = weather::mtu(&mut rng);
        }
        let old_life = (is_wire && rng.chance(100)).then(|| rng.below(200));
        // Memory that is sometimes absent for a moment, at both ends.
        let absent = if rng.chance(300) { 2 + rng.below(30) as u32 } else { 0 };
        // Mostly for longer than an answer waits.
        let absent_for = Rng::new(seed + 3).below(32);
        let bad = rng.chance(250).then(|| (rng.below(2) as usize, rng.below(OPS)));
        let mut net = Net::unequal_pair(options.clone(), &other);
        // Some packets take the fast path, where there is one.
        net.fast = rng.chance(500).then(|| Rng::new(seed + 1));
        // Some arrive together and are handled together.
        net.joins = Rng::new(seed + 2).chance(500);
        // So do some that wait in their queue.
        let takes_fast = Rng::new(seed + 4).chance(500);
        for node in &mut net.nodes {
            node.host.takes_fast = takes_fast;
            let mut memory = node.host.memory.borrow_mut();
            memory.absent = absent;
            memory.absent_for = absent_for;
            // No peer may access this region.
            memory.register(KEY + 1, 0x7000_0000, 64, Access::LOCAL_WRITE);
        }
        let mut run = Self {
            rng,
            net,
            mtus: [mtu, other.mtu],
            options: [options, other],
            areas,
            posted: [Vec::new(), Vec::new()],
            left: [OPS; 2],
            receives: [0; 2],
            bad,
            weather,
            old_life,
            restarts: 0,
            ending: None,
        };
        (0..2).for_each(|node| run.fill(node));
        run
    }

    /// Fills the memory of an end with its initial contents.
    fn fill(&mut self, node: usize) {
        self.net.write_memory(node, BASE, &vec![0; self.areas.memory()]);
        for op in 0..OPS {
            // The peer reads from the area that is remote to it.
            let areas = [(node, self.areas.local(op)), (node + 2, self.areas.remote(op))];
            for (side, addr) in areas {
                let area = self.pattern(side, op, self.areas.size);
                self.net.write_memory(node, addr, &area);
            }
        }
    }

    /// The initial contents of an area of a side, or of what the other side may read (`node + 2`):
    /// different bytes after each restart.
    fn pattern(&self, side: usize, op: u64, length: u64) -> Vec<u8> {
        let side = if self.restarts > 0 { side + 4 } else { side };
        (0..length).map(|at| pattern(side, op, at)).collect()
    }

    fn go(mut self) -> Self {
        if let Some(things) = self.old_life {
            (0..things).for_each(|_| self.happen());
            self.restart();
        }
        while self.left != [0, 0] || (0..2).any(|node| self.wants_receive(node)) {
            self.happen();
        }
        self.weather.settle(&mut self.rng, &mut self.net);
        for node in 0..2 {
            if self.net.nodes[node].qp.state() == QpState::Sqd {
                self.toggle_drain(node);
            }
        }
        self.net.drive();
        self.check();
        self
    }

    fn happen(&mut self) {
        let node = self.rng.below(2) as usize;
        match self.rng.below(40) {
            0 => self.toggle_drain(node),
            30 => self.weather.change(&mut self.rng, &mut self.net),
            31 => self.weather.forge(&mut self.rng, &mut self.net, node),
            1..10 if self.left[node] > 0 => self.post(node),
            10..20 if self.wants_receive(node) => self.post_recv(node),
            _ => self.pass(),
        }
    }

    /// Lets a little time pass.
    fn pass(&mut self) {
        let steps = self.rng.below(20);
        self.net.drive_bounded(steps);
    }

    /// Both programs restart, one after the other, and connect again: the numbers begin beyond all
    /// those of the old connection (IBA 12.4.1). Until the second has restarted, requests of the
    /// first reach what is left of the other's old connection.
    fn restart(&mut self) {
        let far = |rng: &mut Rng| (1 << 20) + rng.below(1 << 20) as u32;
        let psns = [0, 1].map(|node| self.net.first_psn(node).add(far(&mut self.rng)));
        let first = self.rng.below(2) as usize;
        for node in [first, 1 - first] {
            self.net.restart(node, &self.options[node], psns[node], psns[1 - node]);
            self.restarts += 1;
            self.fill(node);
            (self.posted[node], self.left[node], self.receives[node]) = (Vec::new(), OPS, 0);
            for _ in 0..self.rng.below(8) {
                if self.left[node] > 0 {
                    self.post(node);
                }
                self.pass();
            }
        }
    }

    /// Whether more messages that need a receive were sent to an end than it has posted receives.
    fn wants_receive(&self, node: usize) -> bool {
        let needed = self.posted[1 - node].iter().filter(|op| op.needs_receive()).count();
        self.receives[node] < needed as u64
    }

    /// Stops the send queue, or resumes it.
    fn toggle_drain(&mut self, node: usize) {
        let Node { qp, host, .. } = &mut self.net.nodes[node];
        let state = match qp.state() {
            QpState::Rts => QpState::Sqd,
            QpState::Sqd => QpState::Rts,
            _ => return,
        };
        let attr = QpAttr { state, ..QpAttr::default() };
        qp.modify(host, &attr, AttrMask::STATE).expect("RTS and SQD lead to each other");
    }

    fn post(&mut self, node: usize) {
        let index = OPS - self.left[node];
        self.left[node] -= 1;
        let (local, remote) = (self.areas.local(index), self.areas.remote(index));
        let size = self.areas.size;
        let length = match self.rng.below(4) {
            0 => 0,
            1 => self.rng.below(64) as u32,
            2 => self.mtus[node].bytes() * self.rng.below(4) as u32,
            _ => self.rng.below(size) as u32,
        }
        .min(size as u32);
        let mut op = match self.rng.below(8) {
            0 => build::send(index, local, length),
            1 => SendWr {
                imm: index as u32,
                ..build::wr(index, WrOpcode::SendWithImm, local, length)
            },
            2 | 3 => build::write(index, local, length, remote),
            4 => SendWr {
                opcode: WrOpcode::RdmaWriteWithImm,
                imm: index as u32,
                ..build::write(index, local, length, remote)
            },
            5 => build::read(index, local, length, remote),
            6 => build::fetch_add(index, local, COUNTER, 1 + index),
            // All WRITEs of one byte have the same target.
            _ => build::write(index, local, 1, LAST),
        };
        let mut bad = self.misfit(node, op.opcode, length_of(&op.data));
        if self.bad == Some((node, index)) {
            // A key without rights, or a READ of an address outside the region: both are access
            // errors.
            op = build::write(index, local, 8, 0x7000_0000);
            op.rkey = iba::RKey(KEY + 1);
            bad = Some(WcStatus::RemAccessErr);
        }
        if self.rng.chance(300) {
            op.flags |= SendFlags::SIGNALED;
        }
        if self.rng.chance(100) {
            op.flags |= SendFlags::FENCE;
        }
        let length = length_of(&op.data);
        self.posted[node].push(Op { wr: op.clone(), length, bad });
        self.net.post(node, op);
    }

    /// How an operation ends that does not fit the path MTUs of both ends: its packets are invalid
    /// (IBA 9.7.4), requests and responses to a READ alike.
    fn misfit(&mut self, node: usize, opcode: WrOpcode, length: u32) -> Option<WcStatus> {
        let [own, peers] = [self.mtus[node], self.mtus[1 - node]];
        if own == peers || length <= own.min(peers).bytes() {
            return None;
        }
        if opcode != WrOpcode::RdmaRead {
            return Some(WcStatus::RemInvReqErr);
        }
        // The ends no longer agree about later sequence numbers: an operation may be carried out
        // although it is flushed.
        self.left[node] = 0;
        Some(WcStatus::BadRespErr)
    }

    fn post_recv(&mut self, node: usize) {
        let index = self.receives[node];
        self.receives[node] += 1;
        self.net.recv(node, index, self.areas.receive(index), self.areas.size as u32);
    }
}

impl Op {
    fn needs_receive(&self) -> bool {
        use WrOpcode::{RdmaWriteWithImm, Send, SendWithImm};
        matches!(self.wr.opcode, Send | SendWithImm | RdmaWriteWithImm)
    }
}

fn length_of(data: &Data) -> u32 {
    match data {
        Data::Sges(sges) => sges.iter().map(|sge| sge.length).sum(),
        Data::Inline(bytes) => bytes.len() as u32,
        Data::Bind(_) | Data::Flush(_) => 0,
    }
}

/// The byte at `at` in an area: no other offset has the same pattern.
fn pattern(side: usize, op: u64, at: u64) -> u8 {
    (side as u64 * 67 + op * 31 + at * 7 + at / 256 * 13) as u8
}
