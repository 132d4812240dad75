//! What must hold when there are no more events.
//!
//! For each side there is a number of messages that its peer carried out, whole and in order: at
//! least those that completed. Completions, receives, memory, counters and sequence numbers must
//! all agree on one such number.

use std::collections::VecDeque;

use iba::{QpState, SendFlags, WcOpcode, WcStatus, WrOpcode};
use transport::{Completion, Side};

use crate::{COUNTER, LAST, Op, Run};

/// How a run failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    /// The peer refused an operation.
    Refused,
    /// An end got no answer, however often it asked.
    GaveUp,
    /// An operation did not fit the path MTUs of both ends.
    Misfit,
}

impl Run {
    /// Checks both sides, and records how they ended.
    pub(crate) fn check(&mut self) {
        let done = [0, 1].map(|node| self.check_completions(node));
        for node in 0..2 {
            let (done, posted) = (done[node], self.posted[node].len());
            let mut why = "counter, last byte or receives";
            // The largest such number: a later operation that leaves a trace at the peer was not
            // carried out.
            let mut agreeing = (done..=posted).rev().filter(|count| self.agrees(node, *count));
            let count = agreeing.find(|count| {
                self.check_memory(node, done, *count).map_err(|what| why = what).is_ok()
            });
            let Some(count) = count else {
                panic!(
                    "end {node}: {done} of {posted} are done, and no number of operations carried out fits: {why}"
                );
            };
            self.check_receives(1 - node, &self.posted[node], count);
        }
    }

    /// The sends of a side: those that succeeded, at most one that failed, for a valid reason, and
    /// the others flushed. Returns the number of those that are done.
    fn check_completions(&mut self, node: usize) -> usize {
        let qp = &self.net.nodes[node].qp;
        let ops = &self.posted[node];
        assert_eq!(qp.sends(), 0, "end {node} has sends left");
        let completions: Vec<&Completion> = self.net.nodes[node].host.of(Side::Send).collect();
        let failed = completions.iter().position(|done| done.status != WcStatus::Success);
        let Some(failed) = failed else {
            self.check_sends(node, ops.len(), completions.into());
            assert!(ops.iter().all(|op| op.bad.is_none()), "what had to be refused succeeded");
            if qp.state() == QpState::Rts {
                let mtu = self.mtus[node];
                let packets: u32 = ops.iter().map(|op| mtu.packets(op.length)).sum();
                let next = self.net.first_psn(node).add(packets);
                assert_eq!(qp.query().sq_psn, next, "numbers used");
            }
            return ops.len();
        };
        let first = *completions[failed];
        let at = first.wr_id as usize;
        assert_eq!(qp.state(), QpState::Err);
        self.check_sends(node, at, completions[..failed].to_vec().into());
        let flushed = &completions[failed + 1..];
        assert_eq!(flushed.len(), ops.len() - at - 1, "everything after it is flushed, once");
        for (done, op) in flushed.iter().zip(&ops[at + 1..]) {
            assert_eq!((done.wr_id, done.status), (op.wr.wr_id, WcStatus::WrFlushErr));
        }
        let other = &self.net.nodes[1 - node].qp;
        match first.status {
            // The peer refused it, or sent an invalid answer.
            status if Some(status) == ops[at].bad => {
                let is_misfit = status != WcStatus::RemAccessErr;
                self.ending = Some(if is_misfit { Ending::Misfit } else { Ending::Refused });
            }
            WcStatus::RetryExcErr => {
                let may = self.net.link.loss > 0
                    || self.net.link.corrupt > 0
                    || self.net.link.rate.is_some()
                    || self.weather.was_cut()
                    || self.restarts > 0
                    || other.state() == QpState::Err;
                assert!(may, "{first:?}, and every packet arrived");
                self.ending.get_or_insert(Ending::GaveUp);
            }
            // This end refused a request of the other, which ends both.
            WcStatus::WrFlushErr => {
                let refused = |op: &Op| op.bad.is_some_and(|bad| bad != WcStatus::BadRespErr);
                let has_refused = self.posted[1 - node].iter().any(refused);
                assert!(has_refused, "{first:?} without a reason");
            }
            status => panic!("{status:?} of {first:?}"),
        }
        at
    }

    /// The first `count` sends succeeded: those that are signaled completed, in order.
    fn check_sends(&self, node: usize, count: usize, mut completions: VecDeque<&Completion>) {
        for op in &self.posted[node][..count] {
            if !self.options[node].sq_sig_all && !op.wr.flags.contains(SendFlags::SIGNALED) {
                continue;
            }
            let next = completions.pop_front().expect("a signaled send completes");
            assert_eq!((next.wr_id, next.status), (op.wr.wr_id, WcStatus::Success));
            assert_eq!(next.byte_len, op.length);
        }
        assert!(completions.is_empty(), "completed too often: {completions:?}");
    }

    /// Whether the first `count` operations of a side can have been carried out, and no others,
    /// judging by what each of them leaves at the peer.
    fn agrees(&self, node: usize, count: usize) -> bool {
        let (mut counter, mut last, mut received) = (0u64, 0, 0);
        for op in &self.posted[node][..count] {
            match op.wr.opcode {
                _ if op.bad.is_some() => return false,
                WrOpcode::RdmaWrite if op.wr.remote_addr == LAST => {
                    last = self.pattern(node, op.wr.wr_id, 1)[0];
                }
                WrOpcode::AtomicFetchAndAdd => counter += op.wr.compare_add,
                WrOpcode::Send | WrOpcode::SendWithImm | WrOpcode::RdmaWriteWithImm => {
                    received += 1;
                }
                _ => {}
            }
        }
        let peer = 1 - node;
        let successes = self.net.nodes[peer]
            .host
            .of(Side::Recv)
            .take_while(|done| done.status == WcStatus::Success)
            .count();
        self.net.read_memory(peer, COUNTER, 8) == counter.to_ne_bytes()
            && self.net.read_memory(peer, LAST, 1) == [last]
            && successes == received
    }

    /// The receives of a side hold the first `count` messages of the other, in order. The next
    /// message may have taken one and been refused; all others were flushed.
    fn check_receives(&self, node: usize, ops: &[Op], count: usize) {
        let mut completions = self.net.nodes[node].host.of(Side::Recv).peekable();
        for op in &ops[..count] {
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
                let addr = self.areas.receive(next.wr_id);
                let got = self.net.read_memory(node, addr, op.length as usize);
                let sent = self.pattern(1 - node, op.wr.wr_id, op.length.into());
                assert!(got == sent, "message {} is not what was sent", op.wr.wr_id);
            }
        }
        let refused = ops.get(count).filter(|op| op.needs_receive()).and_then(|op| op.bad);
        completions.next_if(|next| Some(next.status) == refused);
        for next in completions {
            assert_eq!(next.status, WcStatus::WrFlushErr, "{next:?}");
        }
    }

    /// A side knows that `done` of its operations are done, and `carried_out` of them were carried
    /// out: every byte in the areas of both ends is what they leave there.
    fn check_memory(
        &self,
        node: usize,
        done: usize,
        carried_out: usize,
    ) -> Result<(), &'static str> {
        let area = |side, index| self.pattern(side, index, self.areas.size);
        let mut counter = 0u64;
        for (place, op) in self.posted[node].iter().enumerate() {
            let index = op.wr.wr_id;
            let length = op.length as usize;
            let size = self.areas.size as usize;
            let here = self.net.read_memory(node, self.areas.local(index), size);
            let there = self.net.read_memory(1 - node, self.areas.remote(index), size);
            // The initial contents of its own area and the peer's.
            let (own, peers) = (area(node, index), area(3 - node, index));
            let (mut want_here, mut want_there) = (own.clone(), peers.clone());
            let (mut part_here, mut part_there) = (false, false);
            match op.wr.opcode {
                // An answer that does not fit may come behind a part of one that does.
                WrOpcode::RdmaRead if op.bad == Some(WcStatus::BadRespErr) && place == done => {
                    want_here[..length].copy_from_slice(&peers[..length]);
                    part_here = true;
                }
                _ if op.bad.is_some() => {}
                WrOpcode::RdmaWrite if op.wr.remote_addr == LAST => {}
                WrOpcode::RdmaWrite | WrOpcode::RdmaWriteWithImm if place <= carried_out => {
                    want_there[..length].copy_from_slice(&own[..length]);
                    part_there = place == carried_out;
                }
                WrOpcode::RdmaRead if place <= done => {
                    want_here[..length].copy_from_slice(&peers[..length]);
                    part_here = place == done;
                }
                WrOpcode::AtomicFetchAndAdd if place < done => {
                    want_here[..8].copy_from_slice(&counter.to_ne_bytes());
                    counter += op.wr.compare_add;
                }
                _ => {}
            }
            if !is_between(&here, &own, &want_here, part_here) {
                return Err("own memory");
            }
            if !is_between(&there, &peers, &want_there, part_there) {
                return Err("the peer's memory");
            }
        }
        Ok(())
    }
}

/// Whether bytes are `new`; or, for a message that may have arrived in part, `new` up to some
/// offset and `old` from there.
pub(crate) fn is_between(got: &[u8], old: &[u8], new: &[u8], may_be_part: bool) -> bool {
    if !may_be_part {
        return got == new;
    }
    let same = got.iter().zip(new).take_while(|(got, new)| got == new).count();
    got[same..] == old[same..]
}
