//! Sections of code that no fork splits.
//!
//! The child of a fork has one thread. What the others were in the middle of stays as it is: a lock
//! that one of them held is never released. So a fork waits until no other thread is in a section,
//! and no thread enters one until the fork is over.
//!
//! A thread in a section takes no lock that is held across a fork, as that of a device is: the fork
//! may have taken it already, and waits for the section.
#![allow(unsafe_code, reason = "pthread_atfork")]

use std::cell::Cell;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::yield_now;

use crate::first::First;

/// Threads of this process that are in a section.
static INSIDE: AtomicU32 = AtomicU32::new(0);
/// Threads of this process that fork.
static FORKS: AtomicU32 = AtomicU32::new(0);

thread_local! {
    /// How many sections this thread is in, one inside the other.
    static DEPTH: Cell<u32> = const { Cell::new(0) };
    /// Whether it is registering the handlers.
    static REGISTERS: Cell<bool> = const { Cell::new(false) };
}

/// No other thread forks while this exists.
#[derive(Debug)]
#[must_use]
pub struct Section {
    /// It belongs to the thread that began it.
    _thread: PhantomData<*const ()>,
}

impl Section {
    /// Waits for forks that have begun. A signal handler that forks does not wait for sections of
    /// the thread that it interrupted, which continues in the child as well.
    pub fn begin() -> Self {
        watch();
        let section = Self { _thread: PhantomData };
        let depth = DEPTH.get();
        DEPTH.set(depth + 1);
        if depth > 0 {
            return section;
        }
        loop {
            // SeqCst, here and in `prepare`: of a thread that begins and one that forks, at least
            // one sees the other.
            INSIDE.fetch_add(1, Ordering::SeqCst);
            if FORKS.load(Ordering::SeqCst) == 0 {
                return section;
            }
            INSIDE.fetch_sub(1, Ordering::SeqCst);
            yield_now();
        }
    }
}

impl Drop for Section {
    fn drop(&mut self) {
        let depth = DEPTH.get() - 1;
        DEPTH.set(depth);
        if depth == 0 {
            INSIDE.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

/// What the C library calls around each fork of the process (`pthread_atfork(3)`). Those that
/// prepare a fork are called in the reverse order of their registration, the others in that order.
#[derive(Clone, Copy, Debug, Default)]
#[expect(clippy::exhaustive_structs, reason = "as the C library has it")]
pub struct Handlers {
    /// Before the fork.
    pub prepare: Option<extern "C" fn()>,
    /// After it, in the parent.
    pub parent: Option<extern "C" fn()>,
    /// After it, in the child.
    pub child: Option<extern "C" fn()>,
}

impl Handlers {
    /// From now on they are called. Without memory for them (ENOMEM, the only error), forks go on
    /// without, which the log says.
    pub fn register(self) {
        let Self { prepare, parent, child } = self;
        let word = |handler: extern "C" fn()| -> unsafe extern "C" fn() { handler };
        let [prepare, parent, child] = [prepare, parent, child].map(|handler| handler.map(word));
        // SAFETY: the functions live as long as the program: a library that holds them is linked so
        // that it is never unloaded, or is the program.
        let refused = unsafe { libc::pthread_atfork(prepare, parent, child) };
        if refused != 0 {
            let error = std::io::Error::from_raw_os_error(refused);
            tracing::warn!(target: "peerdma::fork", "pthread_atfork: {error}");
        }
    }
}

/// From now on forks wait. Other handlers of forks are registered later, inside of a section, and
/// handlers that prepare a fork are called in the reverse order: these come last. So they are
/// registered once: those of a thread that came second would be called before others, which wait
/// for threads that then wait for the fork.
fn watch() {
    static WATCHED: First = First::new();
    // A signal handler may have interrupted the very thread that is at it.
    if WATCHED.is_done() || REGISTERS.get() {
        return;
    }
    WATCHED.run_outside(|| {
        REGISTERS.set(true);
        Handlers { prepare: Some(prepare), parent: Some(parent), child: Some(child) }.register();
        REGISTERS.set(false);
    });
}

/// The sections that a fork of this thread does not wait for.
fn own() -> u32 {
    DEPTH.get().min(1)
}

extern "C" fn prepare() {
    FORKS.fetch_add(1, Ordering::SeqCst);
    while INSIDE.load(Ordering::SeqCst) > own() {
        yield_now();
    }
}

extern "C" fn parent() {
    FORKS.fetch_sub(1, Ordering::SeqCst);
}

extern "C" fn child() {
    FORKS.store(0, Ordering::SeqCst);
    INSIDE.store(own(), Ordering::SeqCst);
}
