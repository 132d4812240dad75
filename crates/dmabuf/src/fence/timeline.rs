//! The producer of fences.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

use rustix::io::Errno;

use super::{AlreadySignaled, DeadlineHook, Fence, FenceStatus, Kind};

/// One context and its fences, in the order in which they are signaled: an engine that does one job
/// after the other. Dropping it fails the remaining fences with ECANCELED, so that no thread waits
/// forever.
///
/// ```
/// use dmabuf::{FenceStatus, Timeline};
///
/// let engine = Timeline::new("gpu", "copy0");
/// let (first, second) = (engine.point(), engine.point());
/// engine.signal(1);
/// assert_eq!((first.status(), second.status()), (FenceStatus::Signaled, FenceStatus::Active));
/// ```
pub struct Timeline {
    context: u64,
    driver: Arc<str>,
    name: Arc<str>,
    hook: Option<DeadlineHook>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// The highest point handed out.
    last: u64,
    /// The highest point signaled.
    signaled: u64,
    /// Points that are not signaled.
    pending: BTreeMap<u64, Fence>,
}

impl Timeline {
    /// A context of its own. `driver` and `name` are what lists of fences show.
    pub fn new(driver: &str, name: &str) -> Self {
        Self::make(driver, name, None)
    }

    /// As [`new`](Self::new), with a function that is called with the deadlines that users set.
    pub fn with_deadline_hook(
        driver: &str,
        name: &str,
        hook: impl Fn(&Fence, Instant) + Send + Sync + 'static,
    ) -> Self {
        Self::make(driver, name, Some(Arc::new(hook)))
    }

    /// The context of all its fences.
    pub fn context(&self) -> u64 {
        self.context
    }

    /// The next point.
    #[doc(alias = "dma_fence_init")]
    pub fn point(&self) -> Fence {
        let mut state = self.state();
        let seqno = state.last + 1;
        state.last = seqno;
        let (driver, name) = (Arc::clone(&self.driver), Arc::clone(&self.name));
        let kind = Kind::Work(self.hook.clone());
        let fence = Fence::with_names(self.context, seqno, driver, name, kind);
        state.pending.insert(seqno, fence.clone());
        fence
    }

    /// Signals all points up to `seqno`, in order. Points that do not exist yet are not signaled.
    #[doc(alias = "dma_fence_signal")]
    pub fn signal(&self, seqno: u64) {
        self.signal_with(seqno, None);
    }

    /// Signals all points up to `fence`, which failed with `errno`; the points before it succeeded.
    ///
    /// # Errors
    ///
    /// [`AlreadySignaled`]: it was signaled without an error.
    #[doc(alias = "dma_fence_set_error")]
    pub fn fail(&self, fence: &Fence, errno: Errno) -> Result<(), AlreadySignaled> {
        self.set_error(fence, errno)?;
        self.signal(fence.seqno());
        Ok(())
    }

    /// Sets the error of `fence`, whose work failed, before it is signaled. The first error stays.
    ///
    /// # Errors
    ///
    /// [`AlreadySignaled`]: too late.
    ///
    /// # Panics
    ///
    /// If `fence` is not of this timeline: only its producer knows of failures.
    #[doc(alias = "dma_fence_set_error")]
    pub fn set_error(&self, fence: &Fence, errno: Errno) -> Result<(), AlreadySignaled> {
        assert_eq!(fence.context(), self.context, "the fence is of another timeline");
        let mut state = fence.state();
        if state.done.is_some() {
            return Err(AlreadySignaled);
        }
        state.error.get_or_insert(errno);
        Ok(())
    }

    /// The highest point that is signaled.
    pub fn signaled(&self) -> u64 {
        self.state().signaled
    }

    /// The last point that was made.
    pub fn last(&self) -> u64 {
        self.state().last
    }

    /// The earliest deadline of the points that are not signaled.
    pub fn deadline(&self) -> Option<Instant> {
        self.state().pending.values().filter_map(Fence::deadline).min()
    }

    fn make(driver: &str, name: &str, hook: Option<DeadlineHook>) -> Self {
        Self {
            context: Fence::new_context(),
            driver: driver.into(),
            name: name.into(),
            hook,
            state: Mutex::default(),
        }
    }

    fn signal_with(&self, seqno: u64, error: Option<Errno>) {
        let mut state = self.state();
        let seqno = seqno.min(state.last);
        let later = state.pending.split_off(&seqno.saturating_add(1));
        let reached = std::mem::replace(&mut state.pending, later);
        state.signaled = state.signaled.max(seqno);
        // Marked under the lock, so that no thread sees a later point signaled before an earlier
        // one; reported without the lock, so that a callback may use the timeline.
        let told: Vec<_> = reached.into_values().map(|fence| (fence.mark(error), fence)).collect();
        drop(state);
        for (callbacks, fence) in told {
            debug_assert_ne!(fence.status(), FenceStatus::Active, "just marked");
            fence.call(callbacks);
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Timeline {
    fn drop(&mut self) {
        self.signal_with(u64::MAX, Some(Errno::CANCELED));
    }
}

impl fmt::Debug for Timeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state();
        f.debug_struct("Timeline")
            .field("driver", &self.driver)
            .field("name", &self.name)
            .field("signaled", &state.signaled)
            .field("last", &state.last)
            .finish()
    }
}
