//! Taking several reservation locks without a deadlock.

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};

use super::ww::LockError;
use super::{Resv, ResvGuard};

/// One attempt to hold several [`Resv`]s at a time, and its place in the order of all such
/// attempts: the older context gets its locks, the younger backs off.
///
/// ```
/// use dmabuf::{AcquireCtx, LockError, Resv};
///
/// let (one, two) = (Resv::new(), Resv::new());
/// let ctx = AcquireCtx::new();
/// let mut first = one.lock_with(&ctx).expect("holds nothing yet, so it waits");
/// let second = loop {
///     match two.lock_with(&ctx) {
///         Ok(guard) => break guard,
///         Err(LockError::Already) => unreachable!("they are different locks"),
///         Err(LockError::Deadlock) => {
///             // Somebody older wants what we have: give everything back, wait for the contended lock, begin anew.
///             drop(first);
///             let guard = two.lock_slow(&ctx);
///             // ... and `one` is now the second. (`lock_all` does all this.)
///             first = match one.lock_with(&ctx) {
///                 Ok(first) => first,
///                 Err(_) => panic!("nobody else is in this example"),
///             };
///             break guard;
///         }
///     }
/// };
/// drop((first, second));
/// ```
///
/// A context stays on its thread. The locks taken with it borrow it, so it outlives them.
#[doc(alias = "ww_acquire_ctx")]
#[derive(Debug)]
pub struct AcquireCtx {
    ticket: u64,
    /// How many locks are held with it.
    acquired: Cell<usize>,
    thread: PhantomData<*const ()>,
}

impl AcquireCtx {
    /// Takes a ticket. It is kept over any number of back-offs, so that in the end this context is
    /// the oldest.
    #[doc(alias = "ww_acquire_init")]
    #[expect(
        clippy::new_without_default,
        reason = "a ticket is drawn: two new contexts are not the same"
    )]
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        Self {
            ticket: NEXT.fetch_add(1, Ordering::Relaxed),
            acquired: Cell::new(0),
            thread: PhantomData,
        }
    }

    /// The place in the order; smaller is older.
    pub fn ticket(&self) -> u64 {
        self.ticket
    }

    /// How many locks are held with this context.
    pub fn acquired(&self) -> usize {
        self.acquired.get()
    }

    /// Takes all of `resvs`, backing off as often as it must. A lock that is listed twice is taken
    /// once.
    pub fn lock_all<'a>(&'a self, resvs: &'a [Resv]) -> Vec<ResvGuard<'a>> {
        let mut contended: Option<&Resv> = None;
        loop {
            let mut guards = Vec::with_capacity(resvs.len());
            // First the lock that made us back off, while nothing else is held.
            guards.extend(contended.map(|resv| resv.lock_slow(self)));
            contended = resvs.iter().find(|resv| match resv.lock_with(self) {
                Ok(guard) => {
                    guards.push(guard);
                    false
                }
                Err(LockError::Already) => false,
                Err(LockError::Deadlock) => true,
            });
            if contended.is_none() {
                return guards;
            }
        }
    }

    pub(super) fn count(&self, by: isize) {
        self.acquired.set(self.acquired.get().wrapping_add_signed(by));
    }
}
