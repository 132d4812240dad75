//! What a lock's word says, and how threads change it.

#[cfg(not(loom))]
use core::sync::atomic::{AtomicU32, Ordering};

#[cfg(loom)]
use loom::sync::atomic::{AtomicU32, Ordering};

use super::waiting::{Instant, Sleepers, Waiting, pause};

/// Somebody holds it.
pub(super) const LOCKED: u32 = 1;
/// A thread that waits is impatient.
pub(super) const IMPATIENT: u32 = 2;
/// Nobody holds it, and only a thread that has waited may lock it. At least one waits.
const HANDED: u32 = 4;
/// A thread that waits was woken, and has not looked since.
pub(super) const WOKEN: u32 = 8;
/// One thread that waits; the state counts them.
pub(super) const ONE: u32 = 16;

/// How often a thread looks before it sleeps.
#[cfg(not(loom))]
const LOOKS: u32 = 40;
#[cfg(loom)]
const LOOKS: u32 = 1;

/// Whether a thread has the lock, and how many wait for it.
#[derive(Debug)]
pub(super) struct State {
    word: AtomicU32,
    sleepers: Sleepers,
}

impl State {
    #[cfg(not(loom))]
    pub(super) const fn new() -> Self {
        Self { word: AtomicU32::new(0), sleepers: Sleepers }
    }

    #[cfg(loom)]
    pub(super) fn new() -> Self {
        Self { word: AtomicU32::new(0), sleepers: Sleepers::default() }
    }

    /// For the thread that holds the lock, and is the only one: nobody waits for it.
    #[cfg(not(loom))]
    pub(super) fn forget_waiters(&self) {
        // ORDERING: there is no other thread.
        self.word.store(LOCKED, Ordering::Relaxed);
    }

    #[cfg(test)]
    pub(super) fn word(&self) -> &AtomicU32 {
        &self.word
    }

    #[inline]
    pub(super) fn lock(&self) {
        if !self.change(0, LOCKED) {
            self.lock_slowly(None);
        }
    }

    #[inline]
    pub(super) fn try_lock(&self) -> bool {
        loop {
            let state = self.word.load(Ordering::Relaxed);
            if state & (LOCKED | HANDED) != 0 {
                return false;
            }
            if self.change(state, state | LOCKED) {
                return true;
            }
        }
    }

    #[inline]
    pub(super) fn unlock(&self) {
        let (order, failed) = (Ordering::Release, Ordering::Relaxed);
        if self.word.compare_exchange(LOCKED, 0, order, failed).is_err() {
            self.unlock_slowly(false);
        }
    }

    fn change(&self, from: u32, to: u32) -> bool {
        let (order, failed) = (Ordering::Acquire, Ordering::Relaxed);
        self.word.compare_exchange_weak(from, to, order, failed).is_ok()
    }

    /// Looks a few times whether it becomes free.
    fn look(&self) -> bool {
        for _ in 0..LOOKS {
            if self.try_lock() {
                return true;
            }
            // Others sleep already: it takes longer.
            if self.word.load(Ordering::Relaxed) >= ONE {
                return false;
            }
            pause();
        }
        false
    }

    /// Waits for it. False after the deadline.
    #[cold]
    pub(super) fn lock_slowly(&self, deadline: Option<Instant>) -> bool {
        if self.look() {
            return true;
        }
        let mut waiting = Waiting::until(deadline);
        // It is handed to no thread that comes later, as the one that unlocks it may.
        let mut has_waited = false;
        self.word.fetch_add(ONE, Ordering::Relaxed);
        loop {
            let state = self.word.load(Ordering::Relaxed);
            waiting.look();
            let is_late = waiting.is_late();
            let is_locked = state & LOCKED != 0;
            has_waited |= is_locked;
            // The last one that waits may not leave a lock that was handed over.
            if !is_locked && (state & HANDED == 0 || has_waited || is_late) {
                if self.change(state, (state - ONE) & !(IMPATIENT | HANDED | WOKEN) | LOCKED) {
                    return true;
                }
                continue;
            }
            if is_late {
                if self.change(state, (state - ONE) & !(IMPATIENT | WOKEN)) {
                    return false;
                }
                continue;
            }
            // Whoever was woken, this thread has looked: the next one that unlocks wakes again.
            let is_impatient = is_locked && waiting.is_impatient();
            let wanted = state & !WOKEN | if is_impatient { IMPATIENT } else { 0 };
            if state != wanted && !self.change(state, wanted) {
                continue;
            }
            self.sleepers.sleep(&self.word, wanted, waiting.time(is_impatient));
            has_waited = true;
        }
    }

    /// Unlocks it, and hands it to a thread that waits, if one is impatient or `is_fair`.
    #[cold]
    pub(super) fn unlock_slowly(&self, is_fair: bool) {
        let (order, failed) = (Ordering::Release, Ordering::Relaxed);
        let is_handed = |state: u32| state >= ONE && (is_fair || state & IMPATIENT != 0);
        let next = |state: u32| {
            let handed = if is_handed(state) { HANDED } else { 0 };
            let woken = if state >= ONE { WOKEN } else { 0 };
            Some(state & !(LOCKED | IMPATIENT) | handed | woken)
        };
        let Ok(was) = self.word.fetch_update(order, failed, next) else { return };
        if was >= ONE && (was & WOKEN == 0 || is_handed(was)) {
            self.sleepers.wake_one(&self.word);
        }
    }
}
