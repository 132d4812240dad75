//! A mutex in one word, which nothing but the kernel's futex stands behind.
//!
//! The locks of `parking_lot` keep those that wait in a table of the process. A fork copies that as
//! it is: with a part of it locked, or with threads in it that the child does not have, to which a
//! lock is then handed. Here the child has to forget the waiters of the locks that it holds, and no
//! more ([`forget_waiters`]).
//!
//! A thread that unlocks and locks again at once would keep all others out. So one that has waited
//! for long becomes impatient, and is handed the lock when it is unlocked next.
//!
//! A thread that was woken may wait for a processor for long, above all if the one that unlocks
//! never sleeps and has a higher priority. Until it has come the others pay for it with no system
//! call: an unlock wakes nobody while one that was woken has not looked yet, unless it hands the
//! lock over.

#![allow(unsafe_code, reason = "a lock promises that one holds it at a time")]

#[cfg(all(test, loom))]
mod models;
#[cfg(not(loom))]
mod raw;
#[cfg(any(test, not(loom)))]
mod state;
#[cfg(any(test, not(loom)))]
mod waiting;

#[cfg(not(loom))]
pub use self::raw::{Mutex, MutexGuard, RawMutex, forget_waiters};

#[cfg(all(test, not(loom)))]
mod tests;
