//! The one place where atomics come from, so that the same code runs on memory shared by two
//! processes and inside a loom model.
//!
//! The algorithms of shared memory ([`shm::cursor`](crate::shm), the doorbell) never hold an
//! `AtomicU64`: Rust references to data must not point into shared memory, and loom's atomics do
//! not have the layout of a `u64`. They use a trait, [`Words`], by byte offset.

#[cfg(not(loom))]
pub(crate) use core::sync::atomic::{Ordering, fence};
#[cfg(loom)]
pub(crate) use loom::sync::atomic::{Ordering, fence};

/// Aligned 64-bit words that another process also reads and writes, addressed by byte offset.
pub(crate) trait Words {
    /// Loads the word at byte offset `at`.
    fn load(&self, at: usize, order: Ordering) -> u64;
    /// Stores the word at byte offset `at`.
    fn store(&self, at: usize, value: u64, order: Ordering);
    /// Swaps the word at byte offset `at`, with acquire and release order.
    fn swap(&self, at: usize, value: u64) -> u64;
    /// Replaces the word at byte offset `at` by `f` of it, atomically, without ordering.
    fn update(&self, at: usize, f: impl Fn(u64) -> u64);
}
