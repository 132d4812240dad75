//! Which reservation locks this thread holds, so that a wrong order is reported in words instead of
//! ending in a deadlock.

use std::cell::{Cell, RefCell};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU64, Ordering};

thread_local! {
    static NUMBER: u64 = {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        NEXT.fetch_add(1, Ordering::Relaxed)
    };
    static HELD: RefCell<Vec<Held>> = const { RefCell::new(Vec::new()) };
    static SIGNALLING: Cell<u32> = const { Cell::new(0) };
}

#[derive(Clone, Copy)]
struct Held {
    /// Address of the lock, as its identity.
    lock: usize,
    ticket: Option<u64>,
}

/// While this exists, the thread runs code that is needed to complete a fence. Such code may not
/// take a reservation lock and may not wait for a fence, because the holder of the lock may be
/// waiting for that very fence. In debug builds both panic with a message; a try-lock is permitted.
///
/// Fence callbacks run inside a section. A worker that signals a fence at the end opens a section
/// for the part of its work that the fence stands for.
#[doc(alias = "dma_fence_begin_signalling")]
#[must_use = "the section ends when the value is dropped"]
#[derive(Debug)]
pub struct SignallingSection {
    /// Stays on its thread.
    thread: PhantomData<*const ()>,
}

impl SignallingSection {
    /// Begins a section. Sections nest.
    pub fn begin() -> Self {
        let _ = SIGNALLING.try_with(|depth| depth.set(depth.get() + 1));
        Self { thread: PhantomData }
    }
}

impl Drop for SignallingSection {
    #[doc(alias = "dma_fence_end_signalling")]
    fn drop(&mut self) {
        let _ = SIGNALLING.try_with(|depth| depth.set(depth.get() - 1));
    }
}

/// This thread's number; 0 while the thread ends.
pub(super) fn thread_number() -> u64 {
    NUMBER.try_with(|number| *number).unwrap_or(0)
}

pub(super) fn took(lock: usize, ticket: Option<u64>) {
    let _ = HELD.try_with(|held| held.borrow_mut().push(Held { lock, ticket }));
}

pub(super) fn gave_back(lock: usize) {
    let _ = HELD.try_with(|held| {
        let mut held = held.borrow_mut();
        if let Some(at) = held.iter().rposition(|held| held.lock == lock) {
            held.remove(at);
        }
    });
}

pub(super) fn holds(lock: usize) -> bool {
    HELD.try_with(|held| held.borrow().iter().any(|held| held.lock == lock)).unwrap_or(false)
}

/// Debug builds: panics if this thread runs code that a fence's completion needs.
#[track_caller]
pub(crate) fn assert_not_signalling(what: &str) {
    let signalling = || SIGNALLING.try_with(|depth| depth.get() > 0).unwrap_or(false);
    debug_assert!(
        !signalling(),
        "{what} in code that completes a fence: the holder of the reservation lock may be waiting for that fence \
         (docs/semantics.md 1.5)"
    );
}

/// Debug builds: panics if waiting for `lock` now could close a circle of waiting threads.
#[track_caller]
pub(super) fn assert_order(lock: usize, ticket: Option<u64>) {
    assert_not_signalling("taking a reservation lock");
    let stranger = || {
        let other = |held: &Held| held.lock != lock && (ticket.is_none() || held.ticket != ticket);
        HELD.try_with(|held| held.borrow().iter().any(other)).unwrap_or(false)
    };
    debug_assert!(
        !stranger(),
        "this thread holds the reservation lock of another buffer: several are taken under one AcquireCtx, or one of \
         them is only tried (docs/semantics.md 1.5)"
    );
}
