//! Completion queues.

use std::iter;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use descriptors::Known;
use device::ids::{ChannelId, CqId, CtxId};
use device::{Engine, EngineGuard, Waiting};
use iba::{Qpn, RKey, WcFlags, WcOpcode, WcStatus};
pub use sysverbs::Clock;
use sysverbs::QueueId;
use transport::env::Reason;

use crate::arm::{Arm, On, refused};
use crate::wait::{
    Bell, Waited, clone_for_waiting, readable, readable_either, take_one, wait_for_event,
};
use crate::{Context, Kind, Refusal, Result};

/// A completion queue with an event descriptor. Clones are the same one.
#[derive(Clone, Debug)]
#[doc(alias = "ibv_cq")]
pub struct Cq(Arc<Queue>);

#[derive(Debug)]
struct Queue {
    arm: Arm<Soft, Hard>,
    context: Context,
    /// Threads that sleep in [`Cq::wait_timeout`], or are about to.
    waiters: AtomicU32,
}

#[derive(Debug)]
struct Soft {
    on: On<CqId>,
    /// What events name it by.
    id: QueueId,
    channel: ChannelId,
    /// The clock that completions have their time of.
    clock: Option<Clock>,
    /// Does not block: if several threads wait, one takes an event.
    fd: Known,
    waiting: Waiting,
}

impl Drop for Soft {
    fn drop(&mut self) {
        let mut engine = self.on.lock();
        // Every QP that completes here holds the queue, so nothing uses it any more.
        let _ = engine.destroy_cq(self.on.id);
        let _ = engine.destroy_channel(self.channel);
    }
}

#[derive(Debug)]
struct Hard {
    cq: sysverbs::Cq,
    /// Wakes a thread that waits for completions which an event of another thread announced.
    bell: Bell,
}

/// A finished work request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[doc(alias = "ibv_wc")]
#[non_exhaustive]
pub struct Wc {
    /// The id that the work request was posted with.
    pub wr_id: u64,
    /// The outcome. If it is not success, only `wr_id`, `qpn`, `reason` and `vendor_err` are valid
    /// too.
    pub status: WcStatus,
    /// What completed.
    pub opcode: WcOpcode,
    /// Bytes received or read; for a datagram, including its 40-byte GRH.
    pub byte_len: u32,
    /// Immediate data, if the peer sent any.
    pub imm: Option<u32>,
    /// The key of ours that the peer's message invalidated, if it did.
    #[doc(alias = "IBV_WC_WITH_INV")]
    pub invalidated: Option<RKey>,
    /// The local QP.
    pub qpn: Qpn,
    /// The sender of a datagram.
    pub src_qpn: Qpn,
    /// For a datagram: whether the first 40 bytes of the receive's memory are a global route
    /// header. Of other messages it says nothing; rxe sets it for all.
    #[doc(alias = "IBV_WC_GRH")]
    pub has_grh: bool,
    /// When it completed successfully, by the clock of the queue ([`Clock`]).
    pub time: Option<u64>,
    /// Why it failed, in more detail than the status.
    pub reason: Reason,
    /// The same as the provider's own number; what it means, only the provider's manual says.
    pub vendor_err: u32,
}

impl Wc {
    /// Whether the request succeeded.
    pub fn is_success(&self) -> bool {
        self.status == WcStatus::Success
    }
}

impl From<sysverbs::Wc> for Wc {
    fn from(wc: sysverbs::Wc) -> Self {
        Self {
            wr_id: wc.wr_id,
            status: wc.status,
            opcode: wc.opcode,
            byte_len: wc.byte_len,
            imm: wc.imm,
            invalidated: wc.invalidated,
            qpn: wc.qpn,
            src_qpn: wc.src_qpn,
            has_grh: wc.has_grh,
            time: wc.time,
            // The number is the provider's own.
            reason: Reason::None,
            vendor_err: wc.vendor_err,
        }
    }
}

impl From<device::Wc> for Wc {
    fn from(wc: device::Wc) -> Self {
        Self {
            wr_id: wc.wr_id,
            status: wc.status,
            opcode: wc.opcode,
            byte_len: wc.byte_len,
            imm: wc.flags.contains(WcFlags::WITH_IMM).then_some(wc.imm),
            invalidated: wc.flags.contains(WcFlags::WITH_INV).then_some(RKey(wc.imm)),
            qpn: wc.qpn,
            src_qpn: wc.src_qpn,
            has_grh: wc.flags.contains(WcFlags::GRH),
            time: None,
            reason: Reason::from_vendor_err(wc.vendor_err).unwrap_or(Reason::None),
            vendor_err: wc.vendor_err,
        }
    }
}

impl Context {
    /// Creates a completion queue of at least `entries` entries.
    #[doc(alias = "ibv_create_cq")]
    pub fn create_cq(&self, entries: u32) -> Result<Cq> {
        Cq::new(self, entries, None)
    }

    /// The same, and each completion has the time of a clock ([`Wc::time`]).
    ///
    /// # Errors
    ///
    /// [`Kind::NotSupported`] if the library or its NIC does not have this; otherwise the device's.
    #[doc(alias("ibv_create_cq_ex", "IBV_WC_EX_WITH_COMPLETION_TIMESTAMP"))]
    pub fn create_timed_cq(&self, entries: u32, clock: Clock) -> Result<Cq> {
        Cq::new(self, entries, Some(clock))
    }
}

/// How long [`Cq::wait`] polls before it sleeps: as long as it takes to wake the background thread
/// and then the waiter.
const SPIN: Duration = Duration::from_micros(200);

impl Cq {
    fn new(context: &Context, entries: u32, clock: Option<Clock>) -> Result<Self> {
        let arm = match context.arm() {
            Arm::Soft(soft) => Arm::Soft(Soft::new(soft, entries, clock)?),
            Arm::Hard(hard) => {
                let channel = hard.create_channel().map_err(refused)?;
                let cq = match clock {
                    Some(clock) => hard.create_timed_cq(entries, &channel, clock),
                    None => hard.create_cq(entries, &channel),
                };
                let cq = cq.map_err(refused)?;
                Arm::Hard(Hard { cq, bell: Bell::new()? })
            }
        };
        let (context, waiters) = (context.clone(), AtomicU32::new(0));
        Ok(Self(Arc::new(Queue { arm, context, waiters })))
    }

    pub(crate) fn soft_id(&self) -> Option<CqId> {
        self.0.arm.same_soft().map(|soft| soft.on.id)
    }

    pub(crate) fn hard(&self) -> Option<&sysverbs::Cq> {
        self.0.arm.same_hard().map(|hard| &hard.cq)
    }

    pub(crate) fn queue_id(&self) -> QueueId {
        match &self.0.arm {
            Arm::Soft(soft) => soft.id,
            Arm::Hard(hard) => hard.cq.id(),
        }
    }

    pub(crate) fn context(&self) -> &Context {
        &self.0.context
    }

    /// The oldest completion, if there is one. Polling makes progress. A library that fails to poll
    /// has none; [`Cq::wait`] returns its error.
    #[doc(alias = "ibv_poll_cq")]
    #[inline]
    pub fn poll(&self) -> Option<Wc> {
        match &self.0.arm {
            Arm::Soft(soft) => soft.poll(),
            Arm::Hard(hard) => hard.cq.poll().ok().flatten().map(Wc::from),
        }
    }

    /// Takes completions, the oldest first, until there are none or it has taken `most`, and adds
    /// them to `into`; how many they were. One call costs less than one for each. A library that
    /// fails to poll has none; [`Cq::wait`] returns its error.
    #[doc(alias = "ibv_poll_cq")]
    pub fn poll_many(&self, most: usize, into: &mut Vec<Wc>) -> usize {
        let before = into.len();
        match &self.0.arm {
            Arm::Soft(soft) => {
                let mut engine = soft.on.hca.poll(soft.on.id);
                into.extend(iter::from_fn(|| soft.pop(&mut engine)).take(most));
            }
            // What it took before it failed counts.
            Arm::Hard(hard) => {
                let _ = hard.cq.poll_many(most, |wc| into.push(wc.into()));
            }
        }
        into.len() - before
    }

    /// [`soft::explain`](crate::soft::explain).
    pub(crate) fn explain(&self, wc: &Wc) -> Option<String> {
        let soft = self.0.arm.same_soft()?;
        soft.on.lock().explain(wc.qpn, wc.wr_id, wc.status)
    }

    /// The oldest completion; waits for it, first by polling and then by sleeping. Any number of
    /// threads may wait at once.
    ///
    /// # Errors
    ///
    /// The queue overran, or the device failed: requests that have not completed by now never will.
    pub fn wait(&self) -> Result<Wc> {
        loop {
            if let Some(wc) = self.wait_timeout(Duration::from_secs(3600))? {
                return Ok(wc);
            }
        }
    }

    /// The oldest completion; waits up to `timeout` for it.
    ///
    /// # Errors
    ///
    /// As for [`Cq::wait`].
    pub fn wait_timeout(&self, timeout: Duration) -> Result<Option<Wc>> {
        let start = Instant::now();
        while start.elapsed() < SPIN.min(timeout) {
            for _ in 0..64 {
                if let Some(wc) = self.look()? {
                    return Ok(Some(wc));
                }
                std::hint::spin_loop();
            }
        }
        let deadline = start + timeout;
        let _waiter = Waiter::new(&self.0.waiters);
        loop {
            self.req_notify(false)?;
            // Completions from before the queue was armed raise no event; an event may be for a
            // completion that an earlier call took.
            if let Some(wc) = self.look()? {
                self.pass_on();
                return Ok(Some(wc));
            }
            self.check()?;
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() || !self.sleep(left)? {
                return Ok(None);
            }
        }
    }

    /// One event may stand for several completions, and wakes one thread. If others sleep and more
    /// completions are here, the next thread is woken.
    fn pass_on(&self) {
        // ORDERING: a thread that counts itself checks the queue afterwards, under the lock of the
        // device, as does the line below.
        if self.0.waiters.load(Ordering::Relaxed) > 1 {
            match &self.0.arm {
                Arm::Soft(soft) => soft.on.lock().repeat_cq_event(soft.on.id),
                Arm::Hard(hard) => hard.bell.ring(),
            }
        }
    }

    /// Waits up to `timeout` for an event, or for another thread to pass one on.
    fn sleep(&self, timeout: Duration) -> Result<bool> {
        let Arm::Hard(hard) = &self.0.arm else { return self.event(timeout) };
        let began = Instant::now();
        loop {
            if hard.cq.channel().take_event().map_err(refused)? || hard.bell.take() {
                return Ok(true);
            }
            let left = timeout.saturating_sub(began.elapsed());
            if !readable_either(hard.cq.channel(), &hard.bell, left)? {
                return Ok(false);
            }
        }
    }

    /// The oldest completion, or the error of a library that cannot poll any more.
    #[inline]
    fn look(&self) -> Result<Option<Wc>> {
        match &self.0.arm {
            Arm::Soft(soft) => Ok(soft.poll()),
            Arm::Hard(hard) => Ok(hard.cq.poll().map_err(refused)?.map(Wc::from)),
        }
    }

    /// Whether anything can still complete here. A library says so when it is polled.
    fn check(&self) -> Result<()> {
        self.0.arm.same_soft().map_or(Ok(()), Soft::check)
    }

    /// Requests one event on the descriptor at the next completion, or at the next solicited one.
    #[doc(alias = "ibv_req_notify_cq")]
    pub fn req_notify(&self, solicited_only: bool) -> Result<()> {
        match &self.0.arm {
            Arm::Soft(soft) => soft.on.hca.req_notify_cq(soft.on.id, solicited_only),
            Arm::Hard(hard) => hard.cq.req_notify(solicited_only).map_err(refused),
        }
    }

    /// Waits up to `timeout` for an event that [`Cq::req_notify`] asked for, and takes it.
    #[doc(alias = "ibv_get_cq_event")]
    pub fn event(&self, timeout: Duration) -> Result<bool> {
        match &self.0.arm {
            Arm::Soft(soft) => soft.event(timeout),
            Arm::Hard(hard) => {
                let began = Instant::now();
                loop {
                    if hard.cq.channel().take_event().map_err(refused)? {
                        return Ok(true);
                    }
                    let left = timeout.saturating_sub(began.elapsed());
                    if !readable(hard.cq.channel(), left)? {
                        return Ok(false);
                    }
                }
            }
        }
    }
}

impl Soft {
    fn new(on: &On<CtxId>, entries: u32, clock: Option<Clock>) -> Result<Self> {
        let mut engine = on.alive()?;
        if clock.is_some() {
            engine.stamp_completions();
        }
        let channel = engine.create_channel(on.id)?;
        let id = QueueId::new();
        let cq = engine.create_cq(on.id, entries, Some(channel), 0, id.value())?;
        let fd = engine.channel_fd(channel).map(clone_for_waiting);
        drop(engine);
        let Some(Ok(fd)) = fd else {
            return Err(Refusal::new(Kind::NoMemory, "create_cq: no descriptor for its events"));
        };
        Ok(Self { on: on.with(cq), id, channel, clock, fd, waiting: Waiting::default() })
    }

    #[inline]
    fn poll(&self) -> Option<Wc> {
        self.pop(&mut self.on.hca.poll(self.on.id))
    }

    #[inline]
    fn pop(&self, engine: &mut EngineGuard<'_>) -> Option<Wc> {
        let wc = engine.pop_wc(self.on.id)?;
        let mut told = Wc::from(wc);
        if let Some(clock) = self.clock
            && told.is_success()
        {
            told.time = Some(match clock {
                Clock::Device => wc.timestamp,
                Clock::Wall => engine.wall_nanos(wc.timestamp),
            });
        }
        Some(told)
    }

    /// Waits for an event of the channel, and takes it.
    fn event(&self, timeout: Duration) -> Result<bool> {
        let began = Instant::now();
        let take = |engine: &mut Engine| engine.take_cq_event_unread(self.channel).is_some();
        if take(&mut self.on.lock()) {
            return Ok(true);
        }
        let mut wait = Duration::ZERO;
        loop {
            if take_one(&self.fd, wait)? && self.on.lock().take_cq_event(self.channel).is_some() {
                return Ok(true);
            }
            let left = timeout.saturating_sub(began.elapsed());
            if left.is_zero() {
                return Ok(false);
            }
            wait = match wait_for_event(&self.waiting, &self.on.hca, &self.fd, take, left) {
                Waited::Found => return Ok(true),
                Waited::NotYet => Duration::ZERO,
                Waited::Unable => left,
            };
        }
    }

    fn check(&self) -> Result<()> {
        let engine = self.on.alive()?;
        // Completions from before the overrun can be taken.
        if engine.cq_is_broken(self.on.id) && engine.cq_is_empty(self.on.id) {
            let what = "poll_cq: the queue overran: completions were lost, and no more will come";
            return Err(Refusal::new(Kind::Io, what));
        }
        Ok(())
    }
}

/// Counts a thread that may sleep.
struct Waiter<'a>(&'a AtomicU32);

impl<'a> Waiter<'a> {
    fn new(waiters: &'a AtomicU32) -> Self {
        waiters.fetch_add(1, Ordering::Relaxed);
        Self(waiters)
    }
}

impl Drop for Waiter<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl AsFd for Cq {
    /// Readable while an event waits, for poll and epoll; [`Cq::event`] takes it.
    fn as_fd(&self) -> BorrowedFd<'_> {
        match &self.0.arm {
            Arm::Soft(soft) => soft.fd.as_fd(),
            Arm::Hard(hard) => hard.cq.channel().as_fd(),
        }
    }
}

impl AsRawFd for Cq {
    /// The same descriptor, for `tokio::io::unix::AsyncFd`, which takes a queue as it is.
    fn as_raw_fd(&self) -> RawFd {
        self.as_fd().as_raw_fd()
    }
}
