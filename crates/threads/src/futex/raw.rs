//! The lock as `lock_api` wants it.

use std::time::{Duration, Instant};

use lock_api::GuardNoSend;

use super::state::State;

/// A value behind a [`RawMutex`].
pub type Mutex<T> = lock_api::Mutex<RawMutex, T>;
/// The value, locked.
pub type MutexGuard<'a, T> = lock_api::MutexGuard<'a, RawMutex, T>;

/// For the child of a fork, which holds the lock and has no other thread: nobody waits for it.
pub fn forget_waiters<T>(guard: &MutexGuard<'_, T>) {
    // SAFETY: the raw lock is not unlocked.
    unsafe { MutexGuard::mutex(guard).raw() }.forget_waiters();
}

/// The lock.
#[derive(Debug)]
pub struct RawMutex {
    state: State,
}

impl RawMutex {
    /// For the thread that holds the lock, and is the only one: nobody waits for it.
    pub(crate) fn forget_waiters(&self) {
        self.state.forget_waiters();
    }

    #[cfg(test)]
    pub(super) fn state(&self) -> &State {
        &self.state
    }
}

// SAFETY: of all threads that change the state to one with LOCKED, from one without it, one
// succeeds, and until it unlocks no other does (see its models).
unsafe impl lock_api::RawMutex for RawMutex {
    const INIT: Self = Self { state: State::new() };

    type GuardMarker = GuardNoSend;

    #[inline]
    fn lock(&self) {
        self.state.lock();
    }

    #[inline]
    fn try_lock(&self) -> bool {
        self.state.try_lock()
    }

    #[inline]
    unsafe fn unlock(&self) {
        self.state.unlock();
    }
}

// SAFETY: as above.
unsafe impl lock_api::RawMutexFair for RawMutex {
    unsafe fn unlock_fair(&self) {
        self.state.unlock_slowly(true);
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
        self.state.try_lock() || self.state.lock_slowly(Some(deadline))
    }
}
