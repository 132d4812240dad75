//! Random operations over a bad network, checked against an oracle.
//!
//! Both ends of an RC connection post sends, writes, reads and atomics at random moments, with receives that are often
//! late. Whatever the network does: every operation happens exactly once, in order, every byte is right, and the
//! completions say so. In some runs one operation is one that the peer must refuse; then everything before it
//! succeeds, it fails as the standard prescribes, and everything after it is flushed.
//!
//! `TRANSPORT_RANDOM` is `small` (the default, seconds), `medium` (a minute) or `large` (ten). A failure names its
//! seed, and `TRANSPORT_SEED=n` runs that one alone.

use std::collections::VecDeque;

use fabric_sim::link::{Link, Rng};
use fabric_sim::net::{Net, Node};
use fabric_sim::options::{BASE, KEY};
use fabric_sim::{Options, build};
use iba::{Access, AttrMask, Mtu, Psn, QpAttr, QpState, SendFlags, WcOpcode, WcStatus, WrOpcode};
use transport::{Completion, Data, SendWr, Side};

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

fn seeds() -> core::ops::Range<u64> {
    if let Some(seed) = std::env::var("TRANSPORT_SEED").ok().and_then(|seed| seed.parse().ok()) {
        return seed..seed + 1;
    }
    match std::env::var("TRANSPORT_RANDOM").as_deref() {
        Ok("large") => 0..200_000,
        Ok("medium") => 0..20_000,
        _ => 0..1_500,
    }
}

#[test]
fn rc_does_everything_exactly_once_and_in_order() {
    for seed in seeds() {
        let run = std::panic::catch_unwind(|| Run::new(seed).go());
        assert!(run.is_ok(), "failed with TRANSPORT_SEED={seed}");
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
        if rng.chance(400) {
            // A reliable carrier neither loses nor repeats.
            options = options.over_memory(1024 << rng.below(4));
            options.direct = rng.chance(500);
        } else {
            let bad = |rng: &mut Rng| if rng.chance(500) { rng.below(80) as u32 } else { 0 };
            options.link = Link {
                loss: bad(&mut rng),
                duplicate: bad(&mut rng),
                reorder: bad(&mut rng),
                ..Link::GOOD
            };
        }
        let sq_sig_all = options.sq_sig_all;
        // Memory that is now and then absent for a moment, at both ends.
        let absent = if rng.chance(300) { 2 + rng.below(30) as u32 } else { 0 };
        let bad = rng.chance(250).then(|| (rng.below(2) as usize, rng.below(OPS)));
        let mut net = Net::pair(options);
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
        }
    }

    fn go(mut self) {
        while self.left != [0, 0] || self.receives != self.needed {
            let node = self.rng.below(2) as usize;
            match self.rng.below(40) {
                0 => self.toggle_drain(node),
                1..10 if self.left[node] > 0 => self.post(node),
                10..20 if self.receives[node] < self.needed[node] => self.post_recv(node),
                _ => {
                    let steps = self.rng.below(20);
                    self.net.drive_bounded(steps);
                }
            }
        }
        for node in 0..2 {
            if self.net.nodes[node].qp.state() == QpState::Sqd {
                self.toggle_drain(node);
            }
        }
        self.net.drive();
        match self.bad.filter(|(node, at)| (self.posted[*node].len() as u64) > *at) {
            None => {
                for node in 0..2 {
                    self.check_success(node);
                }
            }
            Some((node, at)) => self.check_refusal(node, at as usize),
        }
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

    fn check_success(&self, node: usize) {
        self.check_sends(node, self.posted[node].len());
        self.check_receives(1 - node, &self.posted[node]);
        self.check_memory(node, self.posted[node].len());
        let qp = &self.net.nodes[node].qp;
        assert_eq!(qp.state(), QpState::Rts);
        assert_eq!(qp.sends(), 0);
        let packets: u32 = self.posted[node].iter().map(|op| self.mtu.packets(op.length)).sum();
        assert_eq!(qp.query().sq_psn, self.net.first_psn(node).add(packets), "numbers used");
    }

    /// The first `count` sends succeeded: those that are signaled completed, in order.
    fn check_sends(&self, node: usize, count: usize) {
        let mut completions: VecDeque<&Completion> =
            self.net.nodes[node].host.of(Side::Send).collect();
        for op in &self.posted[node][..count] {
            if !self.sq_sig_all && !op.wr.flags.contains(SendFlags::SIGNALED) {
                continue;
            }
            let next = completions.pop_front().expect("a signaled send completes");
            assert_eq!((next.wr_id, next.status), (op.wr.wr_id, WcStatus::Success));
            assert_eq!(next.byte_len, op.length);
        }
        if count == self.posted[node].len() {
            assert!(completions.is_empty(), "completed too often: {completions:?}");
        }
    }

    /// The receives of a node hold the messages of the other, in order.
    fn check_receives(&self, node: usize, ops: &[Op]) {
        let mut completions = self.net.nodes[node].host.of(Side::Recv);
        for op in ops {
            let (opcode, imm) = match op.wr.opcode {
                WrOpcode::Send => (WcOpcode::Recv, 0),
                WrOpcode::SendWithImm => (WcOpcode::Recv, op.wr.imm),
                WrOpcode::RdmaWriteWithImm => (WcOpcode::RecvRdmaWithImm, op.wr.imm),
                _ => continue,
            };
            let next = completions.next().expect("a receive completes");
            assert_eq!(next.status, WcStatus::Success);
            assert_eq!((next.opcode, next.byte_len, next.imm), (opcode, op.length, imm));
            if opcode == WcOpcode::Recv {
                let addr = RECEIVES + next.wr_id * AREA;
                let got = self.net.read_memory(node, addr, op.length as usize);
                let sent: Vec<u8> =
                    (0..op.length.into()).map(|at| pattern(1 - node, op.wr.wr_id, at)).collect();
                assert!(got == sent, "message {} is not what was sent", op.wr.wr_id);
            }
        }
    }

    /// The first `count` operations of a node had their effect on memory.
    fn check_memory(&self, node: usize, count: usize) {
        let (mut counter, mut last) = (0u64, 0);
        for op in &self.posted[node][..count] {
            let index = op.wr.wr_id;
            let (local, remote) = (BASE + index * AREA, REMOTE + index * AREA);
            let length = op.length as usize;
            let expected = |side: usize| -> Vec<u8> {
                (0..length as u64).map(|at| pattern(side, index, at)).collect()
            };
            match op.wr.opcode {
                WrOpcode::RdmaWrite if op.wr.remote_addr == LAST => last = pattern(node, index, 0),
                WrOpcode::RdmaWrite | WrOpcode::RdmaWriteWithImm => {
                    let got = self.net.read_memory(1 - node, remote, length);
                    assert!(got == expected(node), "write {index} is not what was written");
                }
                WrOpcode::RdmaRead => {
                    let got = self.net.read_memory(node, local, length);
                    assert!(got == expected(3 - node), "read {index} is not what was there");
                }
                WrOpcode::AtomicFetchAndAdd => {
                    let got = self.net.read_memory(node, local, 8);
                    assert_eq!(got, counter.to_ne_bytes(), "old value of atomic {index}");
                    counter += op.wr.compare_add;
                }
                _ => {}
            }
        }
        if count == self.posted[node].len() {
            let got = self.net.read_memory(1 - node, COUNTER, 8);
            assert_eq!(got, counter.to_ne_bytes(), "every atomic ran once");
            assert_eq!(self.net.read_memory(1 - node, LAST, 1), [last], "the last write is last");
        }
    }

    /// Everything before the bad operation succeeded, it failed, and everything after it was flushed.
    fn check_refusal(&self, node: usize, at: usize) {
        let ops = &self.posted[node];
        assert_eq!(self.net.nodes[node].qp.state(), QpState::Err);
        assert_eq!(self.net.nodes[node].qp.sends(), 0);
        let completions: Vec<_> = self.net.nodes[node].host.of(Side::Send).collect();
        let failed = completions.iter().position(|done| done.status != WcStatus::Success);
        let failed = failed.expect("the bad operation fails");
        let first = completions[failed];
        if first.status == WcStatus::WrFlushErr || (first.wr_id as usize) < at {
            // The peer's own QP may have gone first, if its requests were refused no more or its NAK was lost.
            assert!(
                matches!(first.status, WcStatus::RetryExcErr | WcStatus::RnrRetryExcErr),
                "{first:?} before the bad operation {at}"
            );
            return;
        }
        assert_eq!(first.wr_id as usize, at);
        assert!(
            Some(first.status) == ops[at].bad || first.status == WcStatus::RetryExcErr,
            "{first:?}, expected {:?}",
            ops[at].bad
        );
        for (done, op) in completions[failed + 1..].iter().zip(&ops[at + 1..]) {
            assert_eq!((done.wr_id, done.status), (op.wr.wr_id, WcStatus::WrFlushErr));
        }
        assert_eq!(completions.len() - failed, ops.len() - at, "everything after it is flushed");
        self.check_sends(node, at);
        self.check_memory(node, at);
        self.check_receives(1 - node, &ops[..at]);
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
