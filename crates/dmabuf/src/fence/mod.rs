//! Fences: points in time at which work on memory is done.
//!
//! ```text
//!     Timeline (producer) --point()--> Fence 1, 2, 3, ... on one context, signaled in this order
//!
//!     FenceArray  [1, 1', 1'']   signaled with all of them (or the first)
//!     FenceChain  1 <- 2 <- 3    the points of a timeline semaphore
//! ```
//!
//! Rules: `docs/semantics.md` 1.7. A fence is signaled in finite time without outside help: only a
//! [`Timeline`] signals, and dropping it fails its remaining fences. A fence cannot be made of
//! something that a user may never do.

mod array;
mod chain;
mod timeline;

use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::time::ClockId;

use crate::resv::{SignallingSection, assert_not_signalling};

pub use array::{ArrayError, FenceArray};
pub use chain::{ChainError, FenceChain};
pub use timeline::Timeline;

/// A point in time at which some work is done. A fence is signaled once, and stays signaled. A
/// clone is the same fence.
#[doc(alias = "dma_fence")]
#[derive(Clone)]
pub struct Fence {
    inner: Arc<Inner>,
}

/// The status of a fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "the three answers of dma_fence_get_status")]
pub enum FenceStatus {
    /// Not signaled.
    Active,
    /// Signaled without an error.
    Signaled,
    /// Signaled, and the work failed.
    Failed(Errno),
}

/// Identifies a callback, so that it can be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct CallbackId(u64);

/// The fence is signaled: there is nothing to wait for (ENOENT).
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the fence is signaled already")]
#[expect(clippy::exhaustive_structs, reason = "these are all the facts")]
pub struct AlreadySignaled;

/// A fence was not signaled in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the fence was not signaled in time")]
#[expect(clippy::exhaustive_structs, reason = "these are all the facts")]
pub struct TimedOut;

type Callback = Box<dyn FnOnce(&Fence) + Send>;
type DeadlineHook = Arc<dyn Fn(&Fence, Instant) + Send + Sync>;

struct Inner {
    context: u64,
    seqno: u64,
    driver: Arc<str>,
    timeline: Arc<str>,
    kind: Kind,
    /// Set after `state.done`, so that a check needs no lock.
    signaled: AtomicBool,
    state: Mutex<State>,
    changed: Condvar,
}

enum Kind {
    /// The producer of the work, which may use a deadline.
    Work(Option<DeadlineHook>),
    Array(array::Parts),
    Chain(chain::Link),
}

#[derive(Default)]
struct State {
    done: Option<Done>,
    error: Option<Errno>,
    callbacks: Vec<(u64, Callback)>,
    next_callback: u64,
    /// Whether a container listens to its parts.
    is_armed: bool,
    deadline: Option<Instant>,
}

#[derive(Clone, Copy)]
struct Done {
    /// CLOCK_MONOTONIC in nanoseconds.
    timestamp: u64,
}

impl Fence {
    /// A new context: fences of one context are totally ordered.
    #[doc(alias = "dma_fence_context_alloc")]
    pub fn new_context() -> u64 {
        // 1 is the signaled stub's.
        static NEXT: AtomicU64 = AtomicU64::new(2);
        NEXT.fetch_add(1, Ordering::Relaxed)
    }

    /// The signaled fence. There is only one.
    #[doc(alias = "dma_fence_get_stub")]
    pub fn signaled_stub() -> Self {
        static STUB: LazyLock<Fence> = LazyLock::new(|| {
            let stub = Fence::new(1, 0, "stub", "stub", Kind::Work(None));
            stub.signal(None);
            stub
        });
        STUB.clone()
    }

    /// One fence for all of `fences`: containers are unwrapped, signaled fences are left out, and
    /// of one context only the latest counts. The result is a signaled fence if none is left, the
    /// fence itself if one is left, and otherwise an array.
    #[doc(alias = "dma_fence_unwrap_merge")]
    pub fn all_of(fences: impl IntoIterator<Item = Self>) -> Self {
        let mut parts: Vec<Self> = Vec::new();
        for fence in fences.into_iter().flat_map(|fence| fence.unwrap_parts()) {
            if fence.is_signaled() {
                continue;
            }
            match parts.iter_mut().find(|part| part.context() == fence.context()) {
                Some(part) if fence.is_later_or_same(part) => *part = fence,
                Some(_) => {}
                None => parts.push(fence),
            }
        }
        match parts.len() {
            0 => Self::signaled_stub(),
            1 => parts.remove(0),
            _ => array::of(parts, false),
        }
    }

    /// The context, in which fences are ordered by [`seqno`](Self::seqno).
    pub fn context(&self) -> u64 {
        self.inner.context
    }

    /// The sequence number in the context.
    pub fn seqno(&self) -> u64 {
        self.inner.seqno
    }

    /// The driver that produces it.
    #[doc(alias = "dma_fence_driver_name")]
    pub fn driver_name(&self) -> &str {
        &self.inner.driver
    }

    /// The producer's name for the context.
    #[doc(alias = "dma_fence_timeline_name")]
    pub fn timeline_name(&self) -> &str {
        &self.inner.timeline
    }

    /// Whether it is in the same context as `other` and not earlier.
    #[doc(alias = "dma_fence_is_later_or_same")]
    pub fn is_later_or_same(&self, other: &Self) -> bool {
        self.context() == other.context() && self.seqno() >= other.seqno()
    }

    /// Whether both are the same fence.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Whether it is an array or a chain.
    #[doc(alias = "dma_fence_is_container")]
    pub fn is_container(&self) -> bool {
        !matches!(self.inner.kind, Kind::Work(_))
    }

    /// The fences in this one that are not containers: itself, or those that an array or chain
    /// holds, at any depth.
    #[doc(alias = "dma_fence_unwrap_for_each")]
    pub fn unwrap_parts(&self) -> Vec<Self> {
        let mut parts = Vec::new();
        let mut todo = vec![self.clone()];
        while let Some(fence) = todo.pop() {
            match &fence.inner.kind {
                Kind::Work(_) => parts.push(fence),
                Kind::Array(array) => todo.extend(array.fences().iter().rev().cloned()),
                Kind::Chain(_) => {
                    todo.extend(FenceChain::walk(&fence).into_iter().rev().map(|link| link.work()));
                }
            }
        }
        parts
    }

    /// Whether it is signaled.
    #[doc(alias = "dma_fence_is_signaled")]
    pub fn is_signaled(&self) -> bool {
        // ORDERING: pairs with the store in `mark`: a thread that sees it signaled sees what the
        // work wrote.
        if self.inner.signaled.load(Ordering::Acquire) {
            return true;
        }
        let done = match &self.inner.kind {
            Kind::Work(_) => return false,
            Kind::Array(parts) => parts.is_done(),
            Kind::Chain(link) => link.is_done(),
        };
        if done {
            self.signal(self.parts_error());
        }
        done
    }

    /// Whether it is signaled, and with what result.
    #[doc(alias = "dma_fence_get_status")]
    pub fn status(&self) -> FenceStatus {
        if !self.is_signaled() {
            return FenceStatus::Active;
        }
        match self.state().error {
            None => FenceStatus::Signaled,
            Some(errno) => FenceStatus::Failed(errno),
        }
    }

    /// When it was signaled: nanoseconds of CLOCK_MONOTONIC.
    #[doc(alias = "dma_fence_timestamp")]
    pub fn timestamp(&self) -> Option<u64> {
        self.is_signaled().then(|| self.state().done.map_or(0, |done| done.timestamp))
    }

    /// Waits until it is signaled, at most for `limit`. A limit of zero only checks.
    ///
    /// # Errors
    ///
    /// [`TimedOut`].
    ///
    /// # Panics
    ///
    /// In debug builds, inside a [`SignallingSection`] if it would have to wait.
    #[doc(alias = "dma_fence_wait_timeout")]
    #[track_caller]
    pub fn wait(&self, limit: Option<Duration>) -> Result<(), TimedOut> {
        if self.is_signaled() {
            return Ok(());
        }
        if limit.is_some_and(|limit| limit.is_zero()) {
            return Err(TimedOut);
        }
        assert_not_signalling("waiting for a fence");
        let deadline = deadline_of(limit);
        self.arm();
        let mut state = self.state();
        while state.done.is_none() {
            let changed = &self.inner.changed;
            state = match left_until(deadline) {
                None => changed.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(left) if left.is_zero() => return Err(TimedOut),
                Some(left) => {
                    changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        Ok(())
    }

    /// Calls `callback` once when the fence is signaled, on the thread that signals it. The
    /// callback runs inside a
    /// [`SignallingSection`]: it must not take a reservation lock nor wait.
    ///
    /// # Errors
    ///
    /// [`AlreadySignaled`]: the callback was not and will not be called.
    #[doc(alias = "dma_fence_add_callback")]
    pub fn add_callback(
        &self,
        callback: impl FnOnce(&Self) + Send + 'static,
    ) -> Result<CallbackId, AlreadySignaled> {
        if self.is_signaled() {
            return Err(AlreadySignaled);
        }
        let id = {
            let mut state = self.state();
            if state.done.is_some() {
                return Err(AlreadySignaled);
            }
            let id = state.next_callback;
            state.next_callback += 1;
            state.callbacks.push((id, Box::new(callback)));
            id
        };
        self.arm();
        Ok(CallbackId(id))
    }

    /// Removes a callback; returns whether it was still there. `false` means that it has run, or
    /// is running.
    #[doc(alias = "dma_fence_remove_callback")]
    pub fn remove_callback(&self, id: CallbackId) -> bool {
        let mut state = self.state();
        let at = state.callbacks.iter().position(|(other, _)| *other == id.0);
        let callback = at.map(|at| state.callbacks.remove(at));
        drop(state);
        callback.is_some()
    }

    /// Tells the producer by when a user would like the work to be done. This is a hint; the
    /// earliest deadline counts.
    #[doc(alias = "dma_fence_set_deadline")]
    pub fn set_deadline(&self, deadline: Instant) {
        match &self.inner.kind {
            Kind::Array(parts) => {
                parts.fences().iter().for_each(|part| part.set_deadline(deadline))
            }
            Kind::Chain(_) => {
                FenceChain::walk(self).iter().for_each(|link| link.work().set_deadline(deadline));
            }
            Kind::Work(hook) => {
                {
                    let mut state = self.state();
                    if state.done.is_some() || state.deadline.is_some_and(|old| old <= deadline) {
                        return;
                    }
                    state.deadline = Some(deadline);
                }
                if let Some(hook) = hook {
                    hook(self, deadline);
                }
            }
        }
    }

    /// The earliest deadline that was set.
    pub fn deadline(&self) -> Option<Instant> {
        self.state().deadline
    }

    fn new(context: u64, seqno: u64, driver: &str, timeline: &str, kind: Kind) -> Self {
        Self::with_names(context, seqno, driver.into(), timeline.into(), kind)
    }

    fn with_names(
        context: u64,
        seqno: u64,
        driver: Arc<str>,
        timeline: Arc<str>,
        kind: Kind,
    ) -> Self {
        let inner = Inner {
            context,
            seqno,
            driver,
            timeline,
            kind,
            signaled: AtomicBool::new(false),
            state: Mutex::default(),
            changed: Condvar::new(),
        };
        Self { inner: Arc::new(inner) }
    }

    /// Signals the fence, unless it is signaled already: marks it, then calls the callbacks.
    fn signal(&self, error: Option<Errno>) {
        let callbacks = self.mark(error);
        self.call(callbacks);
    }

    /// The first half of signaling: from here on the fence is signaled for every caller that
    /// checks.
    fn mark(&self, error: Option<Errno>) -> Vec<(u64, Callback)> {
        let mut state = self.state();
        if state.done.is_some() {
            return Vec::new();
        }
        state.error = state.error.or(error);
        state.done = Some(Done { timestamp: now() });
        // ORDERING: pairs with the load in `is_signaled`.
        self.inner.signaled.store(true, Ordering::Release);
        let callbacks = std::mem::take(&mut state.callbacks);
        drop(state);
        self.inner.changed.notify_all();
        callbacks
    }

    /// The second half: runs the callbacks.
    fn call(&self, callbacks: Vec<(u64, Callback)>) {
        if callbacks.is_empty() {
            return;
        }
        let section = SignallingSection::begin();
        for (_, callback) in callbacks {
            callback(self);
        }
        drop(section);
    }

    /// Makes a container listen to its parts.
    fn arm(&self) {
        if !self.is_container() || std::mem::replace(&mut self.state().is_armed, true) {
            return;
        }
        match &self.inner.kind {
            Kind::Array(parts) if parts.is_any() => {
                for part in parts.fences() {
                    let whole = self.clone();
                    if part
                        .add_callback(move |_| {
                            whole.is_signaled();
                        })
                        .is_err()
                    {
                        self.is_signaled();
                    }
                }
            }
            _ => self.follow(),
        }
    }

    /// Listens to the first part that is not signaled, and then to the next.
    fn follow(&self) {
        loop {
            let part = match &self.inner.kind {
                Kind::Work(_) => return,
                Kind::Array(parts) => parts.first_active(),
                Kind::Chain(link) => link.first_active(),
            };
            let Some(part) = part else {
                self.is_signaled();
                return;
            };
            let whole = self.clone();
            if part.add_callback(move |_| whole.follow()).is_ok() {
                return;
            }
        }
    }

    /// The error of a container: that of the first part that failed.
    fn parts_error(&self) -> Option<Errno> {
        self.unwrap_parts().iter().find_map(|part| match part.status() {
            FenceStatus::Failed(errno) => Some(errno),
            FenceStatus::Active | FenceStatus::Signaled => None,
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.inner.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FenceStatus {
    /// The status as user space sees it: 1 signaled, 0 active, or a negative errno.
    pub fn as_i32(self) -> i32 {
        match self {
            Self::Active => 0,
            Self::Signaled => 1,
            Self::Failed(errno) => -errno.raw_os_error(),
        }
    }
}

/// As debugfs writes it.
impl fmt::Display for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let un = if self.is_signaled() { "" } else { "un" };
        let (driver, timeline) = (self.driver_name(), self.timeline_name());
        write!(f, "{driver} {timeline} seq {} {un}signalled", self.seqno())
    }
}

impl fmt::Debug for Fence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fence")
            .field("driver", &self.driver_name())
            .field("timeline", &self.timeline_name())
            .field("context", &self.context())
            .field("seqno", &self.seqno())
            .field("signaled", &self.inner.signaled.load(Ordering::Acquire))
            .finish()
    }
}

pub(crate) fn deadline_of(limit: Option<Duration>) -> Option<Instant> {
    // A limit beyond the range of the clock is no limit.
    limit.and_then(|limit| Instant::now().checked_add(limit))
}

pub(crate) fn left_until(deadline: Option<Instant>) -> Option<Duration> {
    deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()))
}

fn now() -> u64 {
    let now = rustix::time::clock_gettime(ClockId::Monotonic);
    // CAST: neither part of the time since boot is negative.
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

#[cfg(test)]
mod tests;
