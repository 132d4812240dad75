//! Completion queues.

use std::collections::VecDeque;
use std::time::Duration;

use iba::{Qpn, WcFlags, WcOpcode, WcStatus};
use transport::Time;
use transport::env::Completion;
use transport::tm::TmInfo;

use super::charges::Charge;
use super::uses::{Use, Uses};
use crate::ids::{ChannelId, CtxId};

/// A finished work request, as a program sees it.
#[derive(Clone, Copy, Debug)]
#[doc(alias = "ibv_wc")]
#[non_exhaustive]
pub struct Wc {
    /// From the work request.
    pub wr_id: u64,
    /// The outcome.
    pub status: WcStatus,
    /// What completed.
    pub opcode: WcOpcode,
    /// A [`transport::env::Reason`] as a number.
    pub vendor_err: u32,
    /// Bytes moved.
    pub byte_len: u32,
    /// Immediate data, a number whose most significant byte travels first, or the key that the peer
    /// invalidated.
    pub imm: u32,
    /// The local QP.
    pub qpn: Qpn,
    /// For a datagram, the sender's QP.
    pub src_qpn: Qpn,
    /// For a datagram, what it came in (see [`Completion::sl`]).
    pub sl: u8,
    /// For a message with a tag.
    pub tm: TmInfo,
    /// What is valid.
    pub flags: WcFlags,
    /// When it completed, in nanoseconds of the device's clock
    /// ([`Engine::stamp_completions`](crate::engine::Engine)).
    pub timestamp: u64,
}

/// What a queue waits for before it notifies its channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Armed {
    No,
    Solicited,
    Any,
}

/// How many completions one event stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Moderation {
    /// An event comes with this many completions,
    pub(crate) count: u32,
    /// or this long after the first of them.
    pub(crate) period: Duration,
}

/// A completion queue.
#[derive(Debug)]
pub(crate) struct Cq {
    pub(crate) ctx: CtxId,
    pub(crate) channel: Option<ChannelId>,
    pub(crate) channel_use: Option<Use>,
    pub(crate) cookie: u64,
    pub(crate) capacity: u32,
    pub(crate) armed: Armed,
    /// `None` if every event comes at once.
    pub(crate) moderation: Option<Moderation>,
    /// Completions of an event that is held back, and when it comes at the latest.
    pub(crate) held: u32,
    pub(crate) report_at: Option<Time>,
    /// Queues that complete here.
    pub(crate) uses: Uses,
    pub(crate) overrun: bool,
    /// Whether the next completion must find it full, for tests of programs.
    pub(crate) is_to_overrun: bool,
    ring: VecDeque<Wc>,
    _charge: Charge,
}

impl Cq {
    pub(crate) fn new(
        ctx: CtxId,
        channel: Option<ChannelId>,
        cookie: u64,
        capacity: u32,
        charge: Charge,
    ) -> Self {
        Self {
            ctx,
            channel,
            cookie,
            capacity,
            armed: Armed::No,
            moderation: None,
            held: 0,
            report_at: None,
            uses: Uses::default(),
            channel_use: None,
            overrun: false,
            is_to_overrun: false,
            ring: VecDeque::new(),
            _charge: charge,
        }
    }

    /// Adds a completion; `false` when the queue is full, which is an error of the queue (IBA
    /// 10.8.2, o10-45).
    #[inline]
    pub(crate) fn push(
        &mut self,
        completion: &Completion,
        flags: WcFlags,
        qpn: Qpn,
        timestamp: u64,
    ) -> bool {
        if self.ring.len() >= self.capacity as usize || self.is_to_overrun {
            self.is_to_overrun = false;
            self.overrun = true;
            return false;
        }
        self.ring.push_back(Wc {
            wr_id: completion.wr_id,
            status: completion.status,
            opcode: completion.opcode,
            vendor_err: completion.vendor_err,
            byte_len: completion.byte_len,
            imm: completion.imm,
            qpn,
            src_qpn: completion.src_qpn,
            sl: completion.sl,
            tm: completion.tm,
            flags,
            timestamp,
        });
        true
    }

    /// Whether the event for one more completion must wait. Returns until when if it is the first
    /// that waits.
    pub(crate) fn holds_back(&mut self, now: Time) -> Option<Option<Time>> {
        let Moderation { count, period } = self.moderation?;
        self.held += 1;
        if self.held >= count {
            return None;
        }
        let is_first = self.report_at.is_none();
        let at = *self.report_at.get_or_insert(now + period);
        Some(is_first.then_some(at))
    }

    /// Takes the oldest completion; `read` reads it in place.
    #[inline]
    pub(crate) fn pop<R>(&mut self, read: impl FnOnce(&Wc) -> R) -> Option<R> {
        let answer = read(self.ring.front()?);
        self.ring.pop_front();
        Some(answer)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ring.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.ring.len()
    }

    /// Removes the completions of a QP that is destroyed, as mlx5 does.
    pub(crate) fn clean(&mut self, qpn: Qpn) {
        self.ring.retain(|wc| wc.qpn != qpn);
    }
}
