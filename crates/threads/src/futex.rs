//! A mutex in one word, which nothing but the kernel's futex stands behind.
//!
//! The locks of `parking_lot` keep those that wait in a table of the process. A fork copies that as
//! it is: with a part of it locked, or with threads in it that the child does not have, to which a
//! lock is then handed. Here the child has to forget the waiters of the locks that it holds, and no
//! more ([`forget_waiters`]).
//!
//! A thread that unlocks and locks again at once would keep all others out. So one that has waited
//! for long becomes impatient, and is handed the lock when it is unlocked next.

#![allow(unsafe_code, reason = "a lock promises that one holds it at a time")]

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use lock_api::GuardNoSend;
use rustix::thread::futex;

/// A value behind a [`RawMutex`].
pub type Mutex<T> = lock_api::Mutex<RawMutex, T>;
/// The value, locked.
pub type MutexGuard<'a, T> = lock_api::MutexGuard<'a, RawMutex, T>;

/// For the child of a fork, which holds the lock and has no other thread: nobody waits for it.
pub fn forget_waiters<T>(guard: &MutexGuard<'_, T>) {
    // SAFETY: the raw lock is not unlocked.
    unsafe { MutexGuard::mutex(guard).raw() }.forget_waiters();
}

/// Somebody holds it.
const LOCKED: u32 = 1;
/// A thread that waits is impatient.
const IMPATIENT: u32 = 2;
/// Nobody holds it, and only a thread that has waited may lock it. At least one waits.
const HANDED: u32 = 4;
/// One thread that waits; the state counts them.
const ONE: u32 = 8;

/// How long a thread waits before it is impatient.
const PATIENCE: Duration = Duration::from_micros(500);
/// How often a thread looks before it sleeps.
const LOOKS: u32 = 40;

/// The lock.
#[derive(Debug)]
pub struct RawMutex {
    state: AtomicU32,
}

impl RawMutex {
    /// For the thread that holds the lock, and is the only one: nobody waits for it.
    pub(crate) fn forget_waiters(&self) {
        // ORDERING: there is no other thread.
        self.state.store(LOCKED, Ordering::Relaxed);
    }

    fn change(&self, from: u32, to: u32) -> bool {
        let (order, failed) = (Ordering::Acquire, Ordering::Relaxed);
        self.state.compare_exchange_weak(from, to, order, failed).is_ok()
    }

    /// Looks a few times whether it becomes free.
    fn look(&self) -> bool {
        for _ in 0..LOOKS {
            match self.state.load(Ordering::Relaxed) {
                0 if self.change(0, LOCKED) => return true,
                // Others sleep already: it takes longer.
                state if state >= ONE => return false,
                _ => std::hint::spin_loop(),
            }
        }
        false
    }

    /// Waits for it. False after the deadline.
    #[cold]
    fn lock_slowly(&self, deadline: Option<Instant>) -> bool {
        if self.look() {
            return true;
        }
        let began = Instant::now();
        // It is handed to no thread that comes later, as the one that unlocks it may.
        let mut has_waited = false;
        self.state.fetch_add(ONE, Ordering::Relaxed);
        loop {
            let state = self.state.load(Ordering::Relaxed);
            let now = Instant::now();
            let is_late = deadline.is_some_and(|deadline| now >= deadline);
            let is_locked = state & LOCKED != 0;
            has_waited |= is_locked;
            // The last one that waits may not leave a lock that was handed over.
            if !is_locked && (state & HANDED == 0 || has_waited || is_late) {
                if self.change(state, (state - ONE) & !(IMPATIENT | HANDED) | LOCKED) {
                    return true;
                }
                continue;
            }
            if is_late {
                if self.change(state, (state - ONE) & !IMPATIENT) {
                    return false;
                }
                continue;
            }
            let is_impatient = is_locked && now.duration_since(began) >= PATIENCE;
            let wanted = state | if is_impatient { IMPATIENT } else { 0 };
            if state != wanted && !self.change(state, wanted) {
                continue;
            }
            let left = deadline.map(|deadline| deadline.duration_since(now));
            let patience = (!is_impatient).then_some(PATIENCE);
            self.sleep(wanted, left.into_iter().chain(patience).min());
            has_waited = true;
        }
    }

    /// Sleeps while the state is this, until it is woken, or some time has passed.
    fn sleep(&self, state: u32, time: Option<Duration>) {
        let time = time.and_then(|time| rustix::time::Timespec::try_from(time).ok());
        // Whatever ended it, the caller looks again.
        let _ = futex::wait(&self.state, futex::Flags::PRIVATE, state, time.as_ref());
    }

    /// Unlocks it, and hands it to a thread that waits, if one is impatient or `is_fair`.
    #[cold]
    fn unlock_slowly(&self, is_fair: bool) {
        let (order, failed) = (Ordering::Release, Ordering::Relaxed);
        let next = |state: u32| {
            let is_handed = state >= ONE && (is_fair || state & IMPATIENT != 0);
            Some(state & !(LOCKED | IMPATIENT) | if is_handed { HANDED } else { 0 })
        };
        let was = self.state.fetch_update(order, failed, next);
        if was.is_ok_and(|state| state >= ONE) {
            let _ = futex::wake(&self.state, futex::Flags::PRIVATE, 1);
        }
    }
}

// SAFETY: of all threads that change the state to one with LOCKED, from one without it, one
// succeeds, and until it unlocks no other does.
unsafe impl lock_api::RawMutex for RawMutex {
    const INIT: Self = Self { state: AtomicU32::new(0) };

    type GuardMarker = GuardNoSend;

    #[inline]
    fn lock(&self) {
        if !self.change(0, LOCKED) {
            self.lock_slowly(None);
        }
    }

    #[inline]
    fn try_lock(&self) -> bool {
        loop {
            let state = self.state.load(Ordering::Relaxed);
            if state & (LOCKED | HANDED) != 0 {
                return false;
            }
            if self.change(state, state | LOCKED) {
                return true;
            }
        }
    }

    #[inline]
    unsafe fn unlock(&self) {
        let (order, failed) = (Ordering::Release, Ordering::Relaxed);
        if self.state.compare_exchange(LOCKED, 0, order, failed).is_err() {
            self.unlock_slowly(false);
        }
    }
}

// SAFETY: as above.
unsafe impl lock_api::RawMutexFair for RawMutex {
    unsafe fn unlock_fair(&self) {
        self.unlock_slowly(true);
    }
}

// SAFETY: as above.
unsafe impl lock_api::RawMutexTimed for RawMutex {
    type Duration = Duration;
    type Instant = Instant;

    fn try_lock_for(&self, patience: Duration) -> bool {
        self.try_lock_until(Instant::now() + patience)
    }

    fn try_lock_until(&self, deadline: Instant) -> bool {
        lock_api::RawMutex::try_lock(self) || self.lock_slowly(Some(deadline))
    }
}

#[cfg(test)]
mod tests;
