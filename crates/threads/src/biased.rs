//! A lock that is free of charge for the thread that mostly takes it.
//!
//! A lock takes two locked instructions, and each waits until every line written before is this
//! processor's own: at the end of a message that is the wait for the peer, once more. So the thread
//! that takes the lock again and again, the one that polls, becomes its *bias owner*: it says with
//! a plain store that it is inside, and looks whether it still is the bias owner. All others take a
//! mutex among themselves first, then revoke the bias, and wait until the bias owner has left. That
//! costs them microseconds, so the bias is gained only by taking the lock many times in a row;
//! until then all are like the rest.

#![allow(unsafe_code, reason = "a lock promises that one holds it at a time")]

#[cfg(any(test, not(loom)))]
mod bias;
#[cfg(all(test, loom))]
mod models;

#[cfg(not(loom))]
pub use self::raw::{ArcMutexGuard, Mutex, MutexGuard, RawBiased, forget_others, is_held_here};

#[cfg(not(loom))]
mod raw {
    use std::fmt;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::{Duration, Instant};

    use lock_api::{GuardNoSend, RawMutex, RawMutexFair, RawMutexTimed};

    use super::bias::Bias;
    use crate::futex;
    use crate::number::this_thread;

    /// A value behind a [`RawBiased`] lock.
    pub type Mutex<T> = lock_api::Mutex<RawBiased, T>;
    /// The value, locked.
    pub type MutexGuard<'a, T> = lock_api::MutexGuard<'a, RawBiased, T>;
    /// The same, which keeps the lock itself from being dropped.
    pub type ArcMutexGuard<T> = lock_api::ArcMutexGuard<RawBiased, T>;

    /// The lock. Of two locks that one thread takes, one inside the other, the inner one waits for
    /// ever, as of any mutex.
    pub struct RawBiased {
        bias: Bias,
        mutex: futex::RawMutex,
        /// The thread that holds the mutex, or 0. Of use to that thread only: to any other it says
        /// nothing.
        holder: AtomicUsize,
    }

    /// Whether the calling thread holds the lock, or is about to: a signal handler that it runs
    /// would wait for ever.
    pub fn is_held_here<T>(mutex: &Mutex<T>) -> bool {
        // SAFETY: the raw lock is not unlocked.
        let raw = unsafe { mutex.raw() };
        let me = this_thread();
        raw.bias.is_inside(me) || raw.holder.load(Ordering::Relaxed) == me
    }

    /// In the child of a fork, which the thread that holds the lock came through alone: another may
    /// have been about to enter, or have waited for the mutex, and is gone.
    pub fn forget_others<T>(guard: &ArcMutexGuard<T>) {
        // SAFETY: the raw lock is not unlocked.
        let raw = unsafe { ArcMutexGuard::mutex(guard).raw() };
        let me = this_thread();
        raw.bias.forget_others(me);
        let is_holder = raw.holder.load(Ordering::Relaxed) == me;
        raw.mutex.forget_waiters();
        if !is_holder {
            raw.holder.store(0, Ordering::Relaxed);
            // SAFETY: the only thread of this process holds the lock as its bias owner. Whoever
            // held the mutex is gone.
            unsafe { raw.mutex.unlock() };
        }
    }

    impl RawBiased {
        /// Leaves, if the lock is held as only its bias owner holds it.
        #[inline]
        fn leave(&self) -> bool {
            self.bias.leave(this_thread())
        }

        /// Takes the lock with the mutex held, unless the bias owner stays inside until the
        /// deadline.
        fn take_over(&self, deadline: Option<Instant>) -> bool {
            self.holder.store(this_thread(), Ordering::Relaxed);
            let is_over = self.bias.take_over(this_thread(), deadline);
            if !is_over {
                self.holder.store(0, Ordering::Relaxed);
                // SAFETY: the caller locked it, and nobody else unlocks it.
                unsafe { self.mutex.unlock() };
            }
            is_over
        }

        #[cold]
        fn lock_slowly(&self) {
            self.mutex.lock();
            self.take_over(None);
        }
    }

    // SAFETY: `Bias` tells who of the bias owner and the holder of the mutex holds the lock, never
    // both (see its models), and the mutex is held by one at a time.
    unsafe impl RawMutex for RawBiased {
        const INIT: Self =
            Self { bias: Bias::new(), mutex: futex::RawMutex::INIT, holder: AtomicUsize::new(0) };

        type GuardMarker = GuardNoSend;

        #[inline]
        fn lock(&self) {
            if !self.bias.enter(this_thread()) {
                self.lock_slowly();
            }
        }

        fn try_lock(&self) -> bool {
            self.bias.enter(this_thread())
                || self.mutex.try_lock() && self.take_over(Some(Instant::now()))
        }

        #[inline]
        unsafe fn unlock(&self) {
            if !self.leave() {
                self.bias.consider(this_thread());
                self.holder.store(0, Ordering::Relaxed);
                // SAFETY: the lock is held, and not by its bias owner's way, so that its holder
                // holds the mutex.
                unsafe { self.mutex.unlock() };
            }
        }
    }

    // SAFETY: as above.
    unsafe impl RawMutexFair for RawBiased {
        unsafe fn unlock_fair(&self) {
            if !self.leave() {
                self.holder.store(0, Ordering::Relaxed);
                // SAFETY: as in `unlock`.
                unsafe { self.mutex.unlock_fair() };
            }
        }
    }

    // SAFETY: as above.
    unsafe impl RawMutexTimed for RawBiased {
        type Duration = Duration;
        type Instant = Instant;

        fn try_lock_for(&self, patience: Duration) -> bool {
            self.try_lock_until(Instant::now() + patience)
        }

        fn try_lock_until(&self, deadline: Instant) -> bool {
            self.bias.enter(this_thread())
                || self.mutex.try_lock_until(deadline) && self.take_over(Some(deadline))
        }
    }

    impl fmt::Debug for RawBiased {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.debug_struct("RawBiased").field("bias", &self.bias).finish_non_exhaustive()
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests;
