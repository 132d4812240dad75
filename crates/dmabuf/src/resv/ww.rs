//! The lock itself: which context holds it, which contexts wait, and which must back off.
//!
//! The rule is that of the kernel's `reservation_ww_class` (wait-die): of two contexts, the one
//! with the smaller ticket is older. An older context waits for a younger one; a younger context
//! that holds other locks never waits for an older one, but backs off. So waiters cannot form a
//! cycle.

#[cfg(loom)]
use loom::sync::{Condvar, Mutex, MutexGuard};
use std::sync::PoisonError;
#[cfg(not(loom))]
use std::sync::{Condvar, Mutex, MutexGuard};

/// Why a lock was not taken with a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(clippy::exhaustive_enums, reason = "the two answers of a wound/wait lock")]
pub enum LockError {
    /// An older context has the lock, or is about to get it, and may want what this context holds:
    /// release all locks, take this one with [`Resv::lock_slow`](crate::Resv::lock_slow), and start
    /// over (EDEADLK).
    #[error("an older context wants the lock: back off")]
    Deadlock,
    /// This context has the lock (EALREADY).
    #[error("the context holds this lock already")]
    Already,
}

/// A lock with a queue ordered by tickets.
pub(super) struct WwLock {
    state: Mutex<State>,
    changed: Condvar,
}

/// A context that asks for a lock, or has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Owner {
    /// The thread's number; 0 for a thread that is ending and no longer has a number.
    pub(super) thread: u64,
    /// The ticket of its context, if it has one.
    pub(super) ticket: Option<u64>,
}

struct State {
    holder: Option<Owner>,
    /// Waiters with tickets are in the order of their tickets; waiters without stay where they
    /// joined.
    queue: Vec<Waiter>,
    next_waiter: u64,
}

struct Waiter {
    id: u64,
    ticket: Option<u64>,
}

impl WwLock {
    pub(super) fn new() -> Self {
        Self {
            state: Mutex::new(State { holder: None, queue: Vec::new(), next_waiter: 0 }),
            changed: Condvar::new(),
        }
    }

    /// Waits for the lock. `holds_others`: the context has locks that others may be waiting for.
    ///
    /// # Panics
    ///
    /// If the calling thread holds the lock already, other than under the same context: it would
    /// wait for itself.
    pub(super) fn acquire(&self, me: Owner, holds_others: bool) -> Result<(), LockError> {
        let mut state = self.state();
        if state.holder.is_none() && state.queue.is_empty() {
            state.holder = Some(me);
            return Ok(());
        }
        if let Some(holder) = state.holder {
            if me.ticket.is_some() && holder.ticket == me.ticket {
                return Err(LockError::Already);
            }
            if me.thread != 0 && holder.thread == me.thread {
                // Released first: a panic must not poison the mutex that other threads wait on.
                drop(state);
                panic!(
                    "this thread holds the reservation lock already and would wait for itself: an operation that takes \
                     the lock was called with it held (docs/semantics.md 1.5)"
                );
            }
        }
        let id = state.enqueue(me.ticket);
        self.changed.notify_all();
        loop {
            let ahead = state.position(id);
            if state.holder.is_none() && ahead == 0 {
                state.queue.remove(0);
                state.holder = Some(me);
                return Ok(());
            }
            if holds_others && state.must_back_off(me.ticket, ahead) {
                state.queue.remove(ahead);
                self.changed.notify_all();
                return Err(LockError::Deadlock);
            }
            state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Takes the lock if it is free, ahead of the waiters.
    pub(super) fn try_acquire(&self, me: Owner) -> bool {
        let mut state = self.state();
        let free = state.holder.is_none();
        if free {
            state.holder = Some(me);
        }
        free
    }

    pub(super) fn release(&self) {
        self.state().holder = None;
        self.changed.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Puts a waiter before the first younger one, or last.
    fn enqueue(&mut self, ticket: Option<u64>) -> u64 {
        let id = self.next_waiter;
        self.next_waiter += 1;
        let younger =
            |waiter: &Waiter| matches!((ticket, waiter.ticket), (Some(a), Some(b)) if a < b);
        let at = self.queue.iter().position(younger).unwrap_or(self.queue.len());
        self.queue.insert(at, Waiter { id, ticket });
        id
    }

    fn position(&self, id: u64) -> usize {
        self.queue
            .iter()
            .position(|waiter| waiter.id == id)
            .expect("a waiter stays until it leaves")
    }

    /// Whether the holder, or a waiter that will get the lock before us, is older.
    fn must_back_off(&self, ticket: Option<u64>, ahead: usize) -> bool {
        let Some(mine) = ticket else { return false };
        let holder = self.holder.and_then(|holder| holder.ticket);
        holder.is_some_and(|theirs| theirs < mine)
            || self.queue[..ahead].iter().any(|waiter| waiter.ticket.is_some())
    }
}

#[cfg(all(test, loom))]
mod models {
    //! Loom models: every interleaving.
    //!
    //! `RUSTFLAGS="--cfg loom" cargo test -p peerdma-dmabuf --lib --release models`

    use loom::sync::Arc;
    use loom::sync::atomic::{AtomicUsize, Ordering};
    use loom::thread;

    use super::*;

    /// Two threads take two locks in opposite orders. Whatever happens, both get both, neither
    /// waits forever, and no lock is held twice.
    #[test]
    fn opposite_orders_end() {
        loom::model(|| {
            let locks = Arc::new([WwLock::new(), WwLock::new()]);
            let inside = Arc::new([AtomicUsize::new(0), AtomicUsize::new(0)]);
            let other = {
                let (locks, inside) = (Arc::clone(&locks), Arc::clone(&inside));
                thread::spawn(move || take_both(&locks, &inside, 2, [1, 0]))
            };
            take_both(&locks, &inside, 1, [0, 1]);
            other.join().expect("it ends");
        });
    }

    /// A waiter without a ticket is not lost among those with one.
    #[test]
    fn plain_and_ticketed_waiters_all_get_the_lock() {
        loom::model(|| {
            let lock = Arc::new(WwLock::new());
            let plain = {
                let lock = Arc::clone(&lock);
                thread::spawn(move || {
                    lock.acquire(Owner { thread: 2, ticket: None }, false).expect("no context");
                    lock.release();
                })
            };
            lock.acquire(Owner { thread: 1, ticket: Some(1) }, false).expect("holds nothing");
            lock.release();
            plain.join().expect("it ends");
        });
    }

    fn take_both(locks: &[WwLock; 2], inside: &[AtomicUsize; 2], id: u64, mut order: [usize; 2]) {
        let me = Owner { thread: id, ticket: Some(id) };
        loop {
            // The slow path: nothing is held, so this waits and never fails.
            locks[order[0]].acquire(me, false).expect("holds nothing");
            match locks[order[1]].acquire(me, true) {
                Ok(()) => break,
                Err(LockError::Deadlock) => {
                    locks[order[0]].release();
                    order.swap(0, 1);
                }
                Err(LockError::Already) => unreachable!("different locks"),
            }
        }
        for at in order {
            assert_eq!(inside[at].fetch_add(1, Ordering::Relaxed), 0, "alone inside");
        }
        for at in order {
            inside[at].fetch_sub(1, Ordering::Relaxed);
            locks[at].release();
        }
    }
}
