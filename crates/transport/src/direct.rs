//! The direct path: one-sided operations carried out by the initiator, without a packet.

use std::slice;

use iba::{CompCntrOps, QpState, QpType, SendFlags, WcOpcode, WrOpcode};
use smallvec::SmallVec;

use crate::count::Ended;
use crate::env::{
    AtomicOp, Completion, Direct, Env, Local, LocalError, OneSided, OneSidedKind, Side,
};
use crate::post::MAX_MESSAGE;
use crate::qp::Qp;
use crate::req::Begin;
use crate::wqe::{Failure, Wqe};
use crate::wr::{Data, PlainOneSided};

/// An operation of this many bytes waits for requests in flight rather than being sent as packets:
/// packets are copied twice, and the operations after them would also have to be packets. Waiting
/// takes a round trip.
const LONG: u32 = 32 << 10;

/// How many operations are carried out together, at most. More gain little, and nothing else of the
/// engine happens meanwhile.
pub const RUN: usize = 64;

/// The longest operation that is carried out together with others: for a longer one the copy takes
/// more time than the call.
const SHORT: u32 = 4 << 10;

impl Qp {
    /// Offers the work request at the cursor to [`Env::one_sided`]. It is done if the environment
    /// carried it out.
    ///
    /// Only when nothing of this QP is in flight, so that it cannot overtake anything (IBA 10.8.3
    /// orders a WRITE after the SENDs before it). The peer learns of it with the next packet, from
    /// [`Skipped`](crate::env::Skipped): its sequence numbers are used as if packets had been sent.
    pub(crate) fn carry_out_directly<E: Env>(&mut self, env: &mut E) -> Begin {
        if !self.path.reliable || self.pace.is_limited() {
            return Begin::Send;
        }
        let wqe = &self.sq[self.req.index];
        if self.req.index > 0 || !self.req.is_quiet() {
            let is_long = wqe.length >= LONG;
            if !is_long && self.req.is_direct {
                return Begin::Send;
            }
            // For the acknowledgement of a request that did not ask for one it could wait too long.
            let may_wait = is_long && self.req.unasked == 0;
            let is_direct = one_sided(wqe).is_some_and(|op| env.is_direct(&op));
            self.req.is_direct |= is_direct;
            return if is_direct && may_wait { Begin::Wait } else { Begin::Send };
        }
        if !self.has_met_peer() {
            return Begin::Send;
        }
        if self.sq.len() > 1 && self.carry_out_run(env) {
            return Begin::Done;
        }
        let wqe = &self.sq[0];
        let Some(op) = one_sided(wqe) else { return Begin::Send };
        match env.one_sided(&op) {
            // An operation that the peer refuses is sent to it: its NAK ends both QPs, as the
            // standard requires.
            Direct::Declined | Direct::Remote(_) | Direct::Local(LocalError::NotPresent) => {
                return Begin::Send;
            }
            Direct::Local(error) => self.fail_front(env, Failure::local(error)),
            Direct::Done => self.skip_front(env),
        }
        Begin::Done
    }

    /// Carries out a request that is posted now without putting it on the send queue, if it is a
    /// WRITE or READ, nothing is unusual, and all that it needs is at hand. Otherwise it is still
    /// to be posted.
    ///
    /// This does what [`Qp::post_send`] and [`Qp::poll_transmit`] would have done, which find what
    /// is wrong with the others. A request is large, and one that was just built is slow to copy.
    #[inline]
    pub fn post_at_hand<E: Env>(&mut self, env: &mut E, request: &PlainOneSided) -> bool {
        let PlainOneSided { wr_id, is_read, flags, sge, remote_addr, rkey } = *request;
        let is_valid = sge.length > 0 && u64::from(sge.length) <= MAX_MESSAGE;
        if !is_valid || !self.sq.is_empty() || !self.may_begin_direct() {
            return false;
        }
        let (kind, opcode, counted) = if is_read {
            (OneSidedKind::Read, WcOpcode::RdmaRead, CompCntrOps::RDMA_READ)
        } else {
            (OneSidedKind::Write, WcOpcode::RdmaWrite, CompCntrOps::RDMA_WRITE)
        };
        let local = Local::Sges(slice::from_ref(&sge));
        let op = OneSided { kind, local, length: sge.length, remote_addr, rkey };
        if !env.one_sided_at_hand(&op) {
            return false;
        }
        self.skip(sge.length);
        env.ended(counted, Ended::Well { bytes: sge.length });
        if self.sq_sig_all || flags.contains(SendFlags::SIGNALED) {
            let completion =
                Completion { opcode, byte_len: sge.length, ..Completion::new(Side::Send, wr_id) };
            Self::complete(env, &completion);
        }
        true
    }

    /// Offers the short operations at the front of the queue together. Returns whether any is done.
    fn carry_out_run<E: Env>(&mut self, env: &mut E) -> bool {
        let Some(first) = self.sq.front().and_then(gathered) else { return false };
        if !env.gathers(&first) {
            return false;
        }
        let run = self.sq.iter().take(RUN).map_while(gathered);
        let ops: SmallVec<[OneSided<'_>; RUN]> = run.take_while(|op| first.is_alike(op)).collect();
        let done = if ops.len() > 1 { env.one_sided_run(&ops) } else { 0 };
        drop(ops);
        for _ in 0..done {
            self.skip_front(env);
        }
        done > 0
    }

    /// The request at the front was carried out.
    fn skip_front<E: Env>(&mut self, env: &mut E) {
        let Some(wqe) = self.sq.front() else { return };
        self.skip(wqe.length);
        self.retire_front(env);
    }

    /// Uses the sequence numbers of a message of this length.
    fn skip(&mut self, length: u32) {
        let psns = self.path.path_mtu.packets(length);
        let req = &mut self.req;
        req.psn = req.psn.add(psns);
        (req.una, req.max) = (req.psn, req.psn);
        req.skipped.psns = req.skipped.psns.wrapping_add(psns);
        req.skipped.messages = req.skipped.messages.wrapping_add(1);
        req.is_direct = true;
    }

    /// The last request of the send queue, if the queue has nothing but operations that could be
    /// carried out together with it later, without packets.
    ///
    /// The caller knows that of the requests before it if there are any.
    pub fn last_that_may_wait(&self) -> Option<OneSided<'_>> {
        // The queue is not full because of what waits in it.
        let is_clear = self.may_begin_direct() && self.req.index == 0;
        let op = self.sq.back().filter(|_| is_clear).and_then(gathered)?;
        let is_alike = self.sq.front().and_then(gathered).is_some_and(|first| first.is_alike(&op));
        is_alike.then_some(op)
    }

    /// Whether the peer takes part in the connection. The first operation is a packet, which tells
    /// whether the peer is ready to receive and awaits our sequence numbers, and raises its event
    /// that the connection is established. Nobody acknowledges on UC.
    #[inline]
    fn has_met_peer(&self) -> bool {
        self.req.is_met || !self.qp_type.is_reliable()
    }

    /// Whether nothing but the queue itself keeps an operation from being carried out without
    /// packets, and the queue takes one more.
    #[inline]
    fn may_begin_direct(&self) -> bool {
        self.qp_type == QpType::Rc
            && self.state() == QpState::Rts
            && self.path.reliable
            && self.has_met_peer()
            && self.req.is_quiet()
            && self.req.rnr_until.is_none()
            && !self.pace.is_limited()
            && !self.owes_answers()
            && self.attr.max_rd_atomic > 0
            && self.cap.max_send_sge > 0
            && self.sq.len() < self.cap.max_send_wr as usize
    }
}

/// A request that may be carried out together with others like it.
fn gathered(wqe: &Wqe) -> Option<OneSided<'_>> {
    // IBA 10.8.3: a fenced request waits for the READs before it.
    let is_alone = wqe.begun
        || wqe.failure.is_some()
        || wqe.length > SHORT
        || wqe.wr.flags.contains(SendFlags::FENCE);
    let op = one_sided(wqe).filter(|_| !is_alone)?;
    matches!(op.kind, OneSidedKind::Write | OneSidedKind::Read).then_some(op)
}

fn one_sided(wqe: &Wqe) -> Option<OneSided<'_>> {
    let wr = &wqe.wr;
    let kind = match wr.opcode {
        WrOpcode::RdmaWrite => OneSidedKind::Write,
        WrOpcode::RdmaRead => OneSidedKind::Read,
        WrOpcode::AtomicCmpAndSwp => {
            OneSidedKind::Atomic(AtomicOp::CompareSwap { compare: wr.compare_add, swap: wr.swap })
        }
        WrOpcode::AtomicFetchAndAdd => {
            OneSidedKind::Atomic(AtomicOp::FetchAdd { add: wr.compare_add })
        }
        _ => return None,
    };
    let local = match &wr.data {
        Data::Sges(sges) => Local::Sges(sges),
        Data::Inline(bytes) => Local::Bytes(bytes),
        Data::Bind(_) | Data::Flush(_) => return None,
    };
    let length = wqe.length;
    Some(OneSided { kind, local, length, remote_addr: wr.remote_addr, rkey: wr.rkey })
}
