//! A lock that is taken in one call and released in another.

use std::cell::UnsafeCell;
use std::hint;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

/// State that one thread uses between two calls of the program: from `ibv_wr_start` to
/// `ibv_wr_complete`, from `ibv_start_poll` to `ibv_end_poll`. Another thread that begins in the
/// meantime waits.
#[derive(Debug, Default)]
pub(crate) struct Turn<T> {
    taken: AtomicBool,
    state: UnsafeCell<T>,
}

// SAFETY: only `get` reaches `state`, its callers promise to be within their turn, and turns
// exclude each other.
unsafe impl<T: Send> Sync for Turn<T> {}

/// How often to look at the lock before yielding the processor.
const SPINS: u32 = 128;

impl<T> Turn<T> {
    /// Begins a turn.
    #[inline]
    pub(crate) fn begin(&self) {
        let mut spins = 0;
        while self
            .taken
            .compare_exchange_weak(false, true, Ordering::Acquire, Ordering::Relaxed)
            .is_err()
        {
            spins += 1;
            if spins < SPINS {
                hint::spin_loop();
            } else {
                thread::yield_now();
            }
        }
    }

    /// Ends the turn.
    #[inline]
    pub(crate) fn end(&self) {
        self.taken.store(false, Ordering::Release);
    }

    /// Whether a thread is in a turn: a call that belongs between two others must not come before
    /// the first.
    #[inline]
    pub(crate) fn is_taken(&self) -> bool {
        self.taken.load(Ordering::Relaxed)
    }

    /// The state.
    ///
    /// # Safety
    ///
    /// The caller is between [`Turn::begin`] and [`Turn::end`], and drops the reference before it
    /// ends the turn or asks again.
    #[inline]
    #[expect(clippy::mut_from_ref, reason = "the turn excludes other references")]
    pub(crate) unsafe fn get(&self) -> &mut T {
        // SAFETY: the caller's promise.
        unsafe { &mut *self.state.get() }
    }
}
