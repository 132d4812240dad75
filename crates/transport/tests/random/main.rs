//! Random operations over a bad network, checked against an oracle.
//!
//! Both ends of an RC connection post sends, writes, reads and atomics at random moments, with receives that are often
//! late. The network loses, one by one or in bursts, repeats, reorders, damages, delays, has a line that is too slow, falls
//! silent in one direction, and somebody who does not see the packets forges some ([`weather`]). Whatever it does: every
//! operation happens exactly once, in order, every byte is right, and the completions say so; or a connection ends with the
//! error that the standard prescribes, everything before it happened, and everything after it is flushed ([`oracle`]). In some
//! runs one operation is one that the peer must refuse.
//!
//! `TRANSPORT_RANDOM` is `small` (the default, 72,000 operations), `medium` (a million) or `large` (ten million: minutes; the
//! default of `cargo xtask test --full`). A failure names its seed, and `TRANSPORT_SEED=n` runs that one alone.

mod oracle;
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

/// Bytes of each operation's own area, here and at the peer.
const AREA: u64 = 4096;
/// Operations of each side in a run.
const OPS: u64 = 24;
/// Each host: areas that its own operations use locally, then areas that the peer's use remotely, then two shared
/// words: a counter for FETCH_ADD, and a place that every WRITE of one byte ends in.
const REMOTE: u64 = BASE + OPS * AREA;
const COUNTER: u64 = REMOTE + OPS * AREA;
const LAST: u64 = COUNTER + 8;
const RECEIVES: u64 = COUNTER + AREA;

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
        Ok(size) => panic!("TRANSPORT_RANDOM={size}: it is small, medium or large"),
        Err(_) if is_full => LARGE,
        Err(_) => SMALL,
    }
}

/// What runs did and met, over all seeds.
#[derive(Debug, Default)]
struct Tally {
    runs: u64,
    operations: u64,
    packets: u64,
    damaged: u64,
    forged: u64,
    partitions: u64,
    /// Packets that went the short way, sent and received.
    shorts: [u64; 3],
    /// Packets that were taken together with the one before them.
    joined: u64,
    /// Runs with an operation that was refused, and runs that ended for want of answers.
    refused: u64,
    gave_up: u64,
    /// Of the latter, those without a silence and without anything to refuse.
    gave_up_early: u64,
}

#[test]
fn rc_does_everything_exactly_once_and_in_order_or_fails_as_prescribed() {
    let mut tally = Tally::default();
    let begin = Instant::now();
    for seed in seeds() {
        let run = std::panic::catch_unwind(|| Run::new(seed).go());
        let Ok(run) = run else { panic!("failed with TRANSPORT_SEED={seed}") };
        tally.runs += 1;
        tally.operations += 2 * OPS;
        tally.packets += run.net.carried;
        tally.damaged += run.net.damaged;
        tally.forged += run.weather.forged;
        tally.partitions += run.weather.partitions;
        tally.shorts = [0, 1, 2].map(|way| tally.shorts[way] + run.net.shorts[way]);
        tally.joined += run.net.joined;
        tally.refused += u64::from(run.ending == Some(Ending::Refused));
        tally.gave_up += u64::from(run.ending == Some(Ending::GaveUp));
        let alone = run.weather.partitions == 0 && run.bad.is_none();
        tally.gave_up_early += u64::from(run.ending == Some(Ending::GaveUp) && alone);
    }
    println!("{tally:?} in {:?}", begin.elapsed());
    if tally.runs >= 1_000 {
        // The runs are as bad as they are meant to be, and what the network only makes slow does not end.
        assert!(tally.damaged > tally.runs && tally.forged > tally.runs, "{tally:?}");
        assert!(tally.partitions > tally.runs / 10 && tally.refused > tally.runs / 10, "{tally:?}");
        assert!(tally.gave_up > tally.runs / 100, "{tally:?}");
        assert!(tally.shorts.iter().all(|count| *count > tally.runs / 20), "{tally:?}");
        assert!(tally.joined > tally.runs, "{tally:?}");
        assert!(tally.gave_up_early <= tally.runs / 200, "{tally:?}");
    }
}

/// What must become of a send.
#[derive(Clone, Debug)]
struct Op {
    wr: SendWr,
    length: u32,
    /// What the peer must answer if this operation is a bad one.
    bad: Option<WcStatus>,
}

struct Run {
    rng: Rng,
    net: Net,
    mtu: Mtu,
    sq_sig_all: bool,
    /// Each side's operations, in the order they were posted.
    posted: [Vec<Op>; 2],
    /// Operations that each side has still to post.
    left: [u64; 2],
    /// Receives that each side has posted.
    receives: [u64; 2],
    /// Receives that each side needs by now.
    needed: [u64; 2],
    /// The side that will post a bad operation, and when.
    bad: Option<(usize, u64)>,
    weather: Weather,
    /// How it ended, if not well.
    ending: Option<Ending>,
}

impl Run {
    fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed + 1);
        let mtu = Mtu::ALL[rng.below(3) as usize];
        let mut options = Options::rc();
        options.mtu = mtu;
        options.seed = seed;
        options.sq_sig_all = rng.chance(300);
        options.rd_atomic = 1 + rng.below(4) as u8;
        options.timeout = 4;
        options.memory = (RECEIVES - BASE + OPS * AREA) as usize;
        options.sq_psn = if rng.chance(500) { Psn::new(0xff_fff0) } else { Psn::new(7) };
        let weather = if rng.chance(300) {
            // A reliable carrier neither loses nor repeats.
            options = options.over_memory(1024 << rng.below(4));
            options.direct = rng.chance(500);
            Weather::FINE
        } else {
            weather::roll(&mut rng, &mut options)
        };
        let sq_sig_all = options.sq_sig_all;
        // Memory that is now and then absent for a moment, at both ends.
        let absent = if rng.chance(300) { 2 + rng.below(30) as u32 } else { 0 };
        let bad = rng.chance(250).then(|| (rng.below(2) as usize, rng.below(OPS)));
        let mut net = Net::pair(options);
        // Some packets go the short way, where there is one.
        net.short = rng.chance(500).then(|| Rng::new(seed + 1));
        // Some come together and are taken together.
        net.joins = Rng::new(seed + 2).chance(500);
        for node in 0..2 {
            net.nodes[node].host.memory.borrow_mut().absent = absent;
            for op in 0..OPS {
                let area: Vec<u8> = (0..AREA).map(|at| pattern(node, op, at)).collect();
                net.write_memory(node, BASE + op * AREA, &area);
                // What the peer reads.
                let area: Vec<u8> = (0..AREA).map(|at| pattern(node + 2, op, at)).collect();
                net.write_memory(node, REMOTE + op * AREA, &area);
            }
            // Nobody may touch this one from afar.
            let mut memory = net.nodes[node].host.memory.borrow_mut();
            memory.register(KEY + 1, 0x7000_0000, 64, Access::LOCAL_WRITE);
        }
        Self {
            rng,
            net,
            mtu,
            sq_sig_all,
            posted: [Vec::new(), Vec::new()],
            left: [OPS; 2],
            receives: [0; 2],
            needed: [0; 2],
            bad,
            weather,
            ending: None,
        }
    }

    fn go(mut self) -> Self {
        while self.left != [0, 0] || self.receives != self.needed {
            let node = self.rng.below(2) as usize;
            match self.rng.below(40) {
                0 => self.toggle_drain(node),
                30 => self.weather.change(&mut self.rng, &mut self.net),
                31 => self.weather.forge(&mut self.rng, &mut self.net, node),
                1..10 if self.left[node] > 0 => self.post(node),
                10..20 if self.receives[node] < self.needed[node] => self.post_recv(node),
                _ => {
                    let steps = self.rng.below(20);
                    self.net.drive_bounded(steps);
                }
            }
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

    /// Holds the send queue, or lets it go on.
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
        let (local, remote) = (BASE + index * AREA, REMOTE + index * AREA);
        let length = match self.rng.below(4) {
            0 => 0,
            1 => self.rng.below(64) as u32,
            2 => self.mtu.bytes() * self.rng.below(4) as u32,
            _ => self.rng.below(AREA) as u32,
        }
        .min(AREA as u32);
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
            // Each WRITE of one byte goes to the same place.
            _ => build::write(index, local, 1, LAST),
        };
        let mut bad = None;
        if self.bad == Some((node, index)) {
            // A key without rights, or a READ where there is nothing: both are access errors.
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
        if matches!(op.opcode, WrOpcode::Send | WrOpcode::SendWithImm | WrOpcode::RdmaWriteWithImm)
        {
            self.needed[1 - node] += 1;
        }
        let length = length_of(&op.data);
        self.posted[node].push(Op { wr: op.clone(), length, bad });
        self.net.post(node, op);
    }

    fn post_recv(&mut self, node: usize) {
        let index = self.receives[node];
        self.receives[node] += 1;
        self.net.recv(node, index, RECEIVES + index * AREA, AREA as u32);
    }
}

fn length_of(data: &Data) -> u32 {
    match data {
        Data::Sges(sges) => sges.iter().map(|sge| sge.length).sum(),
        Data::Inline(bytes) => bytes.len() as u32,
        Data::Bind(_) | Data::Flush(_) => 0,
    }
}

/// What lies at `at` in an area: nothing that another place has too.
fn pattern(side: usize, op: u64, at: u64) -> u8 {
    (side as u64 * 67 + op * 31 + at * 7 + at / 256 * 13) as u8
}
