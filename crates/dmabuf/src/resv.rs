//! The reservation lock of a buffer.
//!
//! Holding it is a value: an operation that needs the lock takes a [`ResvGuard`], and an operation that must not be
//! called with it takes none. Rules: `docs/semantics.md` 1.5.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

/// The reservation object of one buffer, or of several that share it: the lock under which buffers are pinned, mapped,
/// moved and revoked. A clone is the same object.
///
/// The lock is not recursive. A thread that holds it must not take it again; in particular an
/// [`invalidate_mappings`](crate::Importer::invalidate_mappings) callback, which is handed the guard.
#[doc(alias = "dma_resv")]
#[derive(Clone, Default)]
pub struct Resv {
    inner: Arc<Inner>,
}

/// Proof that a [`Resv`] is locked by this thread. Dropping it unlocks.
#[must_use = "the lock is released when the guard is dropped"]
pub struct ResvGuard<'a> {
    resv: &'a Resv,
    /// Taken out when the guard goes.
    lock: Option<MutexGuard<'a, ()>>,
}

#[derive(Default)]
struct Inner {
    lock: Mutex<()>,
    /// What guards that were dropped while the lock was held leave for its holder to do.
    left: Mutex<LeftWork>,
}

#[derive(Default)]
struct LeftWork {
    locked: Vec<LockedWork>,
    unlocked: Vec<UnlockedWork>,
}

type LockedWork = Box<dyn FnOnce(&ResvGuard<'_>) + Send>;
type UnlockedWork = Box<dyn FnOnce() + Send>;

impl Resv {
    /// A lock of its own.
    pub fn new() -> Self {
        Self::default()
    }

    /// Waits for the lock.
    #[doc(alias = "dma_resv_lock")]
    pub fn lock(&self) -> ResvGuard<'_> {
        let lock = self.inner.lock.lock().unwrap_or_else(PoisonError::into_inner);
        ResvGuard { resv: self, lock: Some(lock) }
    }

    /// Takes the lock if nobody has it.
    #[doc(alias = "dma_resv_trylock")]
    pub fn try_lock(&self) -> Option<ResvGuard<'_>> {
        let lock = match self.inner.lock.try_lock() {
            Ok(lock) => lock,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(ResvGuard { resv: self, lock: Some(lock) })
    }

    /// Whether both are the same object.
    pub fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.inner, &other.inner)
    }

    /// Does `work` under the lock: now, or, when somebody holds it (perhaps this very thread, in a callback), just
    /// before that holder lets go. This is how the drop of a guard that needs the lock works everywhere.
    pub(crate) fn when_locked(&self, work: impl FnOnce(&ResvGuard<'_>) + Send + 'static) {
        self.left().locked.push(Box::new(work));
        self.settle();
    }

    /// Does `work` without the lock: now, or just after the present holder let go.
    pub(crate) fn when_unlocked(&self, work: impl FnOnce() + Send + 'static) {
        self.left().unlocked.push(Box::new(work));
        self.settle();
    }

    /// Does what is left to do, unless somebody holds the lock and will do it.
    ///
    /// Nothing is forgotten: whoever finds the lock taken pushed its work before the holder released, and the holder
    /// looks once more after releasing.
    fn settle(&self) {
        let idle = {
            let left = self.left();
            left.locked.is_empty() && left.unlocked.is_empty()
        };
        if !idle {
            drop(self.try_lock());
        }
    }

    fn left(&self) -> MutexGuard<'_, LeftWork> {
        self.inner.left.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ResvGuard<'_> {
    /// Whether this guard holds `resv`, and not the lock of some other buffer.
    #[doc(alias = "dma_resv_assert_held")]
    pub fn protects(&self, resv: &Resv) -> bool {
        self.resv.is_same(resv)
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
        self.lock = None;
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

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    #[test]
    fn a_guard_knows_what_it_protects() {
        let (one, other) = (Resv::new(), Resv::new());
        let guard = one.lock();
        assert!(guard.protects(&one.clone()));
        assert!(!guard.protects(&other));
        assert!(one.try_lock().is_none());
        drop(guard);
        assert!(one.try_lock().is_some());
    }

    #[test]
    fn work_waits_for_the_holder_and_keeps_its_order() {
        let resv = Resv::new();
        let log = Arc::new(Mutex::new(Vec::new()));
        let note = |word: &'static str| {
            let log = Arc::clone(&log);
            move || log.lock().expect("no panic").push(word)
        };
        let guard = resv.lock();
        let (unlocked, first, second) = (note("unlocked"), note("first"), note("second"));
        let inner = resv.clone();
        resv.when_unlocked(move || {
            assert!(inner.try_lock().is_some(), "the lock is free");
            unlocked();
        });
        resv.when_locked(move |_| first());
        resv.when_locked(move |_| second());
        assert!(log.lock().expect("no panic").is_empty());
        drop(guard);
        assert_eq!(*log.lock().expect("no panic"), ["first", "second", "unlocked"]);
    }

    #[test]
    fn no_work_is_lost_between_threads() {
        let resv = Resv::new();
        let done = Arc::new(AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..2000 {
                        let done = Arc::clone(&done);
                        resv.when_locked(move |_| {
                            done.fetch_add(1, Ordering::Relaxed);
                        });
                        drop(resv.lock());
                    }
                });
            }
        });
        assert_eq!(done.load(Ordering::Relaxed), 8000);
    }
}
