//! The reservation object of a buffer: a lock, and the fences of the users of the memory.
//!
//! A value shows that the lock is held: an operation that needs it takes a [`ResvGuard`], and an
//! operation that must not be called with it takes none. Rules: `docs/semantics.md` 1.5 and 1.7.

mod ctx;
mod fences;
mod held;
mod ww;

use std::fmt;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub use ctx::AcquireCtx;
pub use fences::{AddFenceError, ReserveError, Usage};
pub use held::SignallingSection;
pub(crate) use held::assert_not_signalling;
pub use ww::LockError;

use fences::FenceList;
use ww::{Owner, WwLock};

/// The reservation object of one buffer, or of several that share it: the lock under which buffers
/// are pinned, mapped, moved and revoked, and the [fences](crate::Fence) that tell how long the
/// memory is in use. A clone is the same object.
///
/// The lock is not recursive. A thread that holds it must not take it again; in particular an
/// [`invalidate_mappings`](crate::Importer::invalidate_mappings) callback must not, since it gets
/// the guard. A thread that does so panics with a message, since it would otherwise wait for
/// itself. Several locks may be held at a time only through one [`AcquireCtx`]; debug builds panic
/// if a thread waits for a second lock in any other way.
#[doc(alias = "dma_resv")]
#[derive(Clone, Default)]
pub struct Resv {
    inner: Arc<Inner>,
}

/// Proof that a [`Resv`] is locked by this thread. Dropping it unlocks.
#[must_use = "the lock is released when the guard is dropped"]
pub struct ResvGuard<'a> {
    resv: &'a Resv,
    ctx: Option<&'a AcquireCtx>,
    /// Stays on its thread.
    thread: PhantomData<*const ()>,
}

struct Inner {
    lock: WwLock,
    /// Work left to the holder by guards that were dropped while the lock was held.
    left: Mutex<LeftWork>,
    /// The holder of the lock changes it; any thread may read it.
    fences: Mutex<FenceList>,
}

#[derive(Default)]
struct LeftWork {
    locked: Vec<LockedWork>,
    unlocked: Vec<UnlockedWork>,
}

type LockedWork = Box<dyn FnOnce(&ResvGuard<'_>) + Send>;
type UnlockedWork = Box<dyn FnOnce() + Send>;

impl Default for Inner {
    fn default() -> Self {
        Self { lock: WwLock::new(), left: Mutex::default(), fences: Mutex::default() }
    }
}

impl Resv {
    /// A new object with a lock of its own.
    pub fn new() -> Self {
        Self::default()
    }

    /// Waits for the lock, without a context.
    ///
    /// # Panics
    ///
    /// If this thread holds it already. In debug builds also if this thread holds another one, or
    /// runs code that completes a fence ([`SignallingSection`]).
    #[doc(alias = "dma_resv_lock")]
    #[track_caller]
    pub fn lock(&self) -> ResvGuard<'_> {
        held::assert_order(self.id(), None);
        match self.inner.lock.acquire(owner(None), false) {
            Ok(()) => self.guard(None),
            Err(error) => unreachable!("only a context is told to back off: {error}"),
        }
    }

    /// Takes the lock if it is free.
    #[doc(alias = "dma_resv_trylock")]
    pub fn try_lock(&self) -> Option<ResvGuard<'_>> {
        self.inner.lock.try_acquire(owner(None)).then(|| self.guard(None))
    }

    /// Waits for the lock as one of several that `ctx` takes.
    ///
    /// # Errors
    ///
    /// [`LockError::Deadlock`] if an older context has the lock or waits for it, and
    /// [`LockError::Already`] if `ctx` has it.
    ///
    /// # Panics
    ///
    /// As [`lock`](Self::lock); locks held under the same context do not matter.
    #[doc(alias = "dma_resv_lock")]
    #[track_caller]
    pub fn lock_with<'a>(&'a self, ctx: &'a AcquireCtx) -> Result<ResvGuard<'a>, LockError> {
        let ticket = Some(ctx.ticket());
        held::assert_order(self.id(), ticket);
        self.inner.lock.acquire(owner(ticket), ctx.acquired() > 0)?;
        Ok(self.guard(Some(ctx)))
    }

    /// Waits for the lock that made `ctx` back off. All other locks of `ctx` must have been given
    /// back, so that no thread waits for this one and the wait ends.
    ///
    /// # Panics
    ///
    /// As [`lock`](Self::lock), and in debug builds if `ctx` holds a lock.
    #[doc(alias = "dma_resv_lock_slow")]
    #[track_caller]
    pub fn lock_slow<'a>(&'a self, ctx: &'a AcquireCtx) -> ResvGuard<'a> {
        debug_assert_eq!(
            ctx.acquired(),
            0,
            "lock_slow starts over: the context gives its other locks back first"
        );
        let ticket = Some(ctx.ticket());
        held::assert_order(self.id(), ticket);
        match self.inner.lock.acquire(owner(ticket), false) {
            Ok(()) => self.guard(Some(ctx)),
            Err(error) => panic!("lock_slow of a context that did not back off: {error}"),
        }
    }

    /// Whether the calling thread holds the lock.
    pub fn is_held(&self) -> bool {
        held::holds(self.id())
    }

    /// Whether both are the same object.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Debug builds: panics if this thread holds the lock, because `what` is called without it
    /// (`docs/semantics.md` 1.5).
    #[track_caller]
    pub(crate) fn assert_unlocked(&self, what: &str) {
        debug_assert!(
            !self.is_held(),
            "{what} is called without the reservation lock, and this thread holds it (docs/semantics.md 1.5)"
        );
    }

    /// Does `work` under the lock: now, or, if the lock is held (perhaps by the calling thread, in
    /// a callback), just before its holder releases it. Every guard that needs the lock is dropped
    /// in this way.
    pub(crate) fn when_locked(&self, work: impl FnOnce(&ResvGuard<'_>) + Send + 'static) {
        self.left().locked.push(Box::new(work));
        self.settle();
    }

    /// Does `work` without the lock: now, or just after the current holder releases it.
    pub(crate) fn when_unlocked(&self, work: impl FnOnce() + Send + 'static) {
        self.left().unlocked.push(Box::new(work));
        self.settle();
    }

    /// Does the remaining work, unless a holder of the lock will do it.
    ///
    /// No work is lost: a thread that finds the lock taken pushed its work before the holder
    /// released the lock, and the holder checks once more after releasing it.
    fn settle(&self) {
        let idle = {
            let left = self.left();
            left.locked.is_empty() && left.unlocked.is_empty()
        };
        if !idle {
            drop(self.try_lock());
        }
    }

    fn guard<'a>(&'a self, ctx: Option<&'a AcquireCtx>) -> ResvGuard<'a> {
        held::took(self.id(), ctx.map(AcquireCtx::ticket));
        if let Some(ctx) = ctx {
            ctx.count(1);
        }
        ResvGuard { resv: self, ctx, thread: PhantomData }
    }

    fn left(&self) -> MutexGuard<'_, LeftWork> {
        self.inner.left.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The lock's identity. Not used as a pointer.
    fn id(&self) -> usize {
        Arc::as_ptr(&self.inner).addr()
    }
}

impl ResvGuard<'_> {
    /// Whether this guard holds `resv`, and not the lock of some other buffer.
    #[doc(alias = "dma_resv_assert_held")]
    pub fn protects(&self, resv: &Resv) -> bool {
        self.resv.is_same(resv)
    }

    /// What is locked.
    pub fn resv(&self) -> &Resv {
        self.resv
    }
}

impl Drop for ResvGuard<'_> {
    fn drop(&mut self) {
        loop {
            let work = std::mem::take(&mut self.resv.left().locked);
            if work.is_empty() {
                break;
            }
            for work in work {
                work(self);
            }
        }
        let after = std::mem::take(&mut self.resv.left().unlocked);
        self.resv.list().forget_reserved();
        if let Some(ctx) = self.ctx {
            ctx.count(-1);
        }
        held::gave_back(self.resv.id());
        self.resv.inner.lock.release();
        for work in after {
            work();
        }
        self.resv.settle();
    }
}

impl fmt::Debug for Resv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Resv").field("at", &Arc::as_ptr(&self.inner)).finish()
    }
}

impl fmt::Debug for ResvGuard<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ResvGuard").field(self.resv).finish()
    }
}

fn owner(ticket: Option<u64>) -> Owner {
    Owner { thread: held::thread_number(), ticket }
}

#[cfg(test)]
mod tests;
