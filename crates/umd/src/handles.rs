//! Handles: what a program holds for contexts, streams, events, pools and allocations.
//!
//! They look like pointers, but point to nothing. A number is never used twice, so a destroyed
//! handle is recognised, and one kind is never taken for another.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// All live handles of one kind.
#[derive(Debug)]
pub struct Handles<T> {
    first: u64,
    next: AtomicU64,
    live: Mutex<HashMap<u64, Arc<T>>>,
}

/// What a number is.
#[derive(Debug)]
#[expect(clippy::exhaustive_enums, reason = "a number is one of these")]
pub enum Found<T> {
    /// A handle.
    Live(Arc<T>),
    /// It was one.
    Gone,
    /// Never.
    Unknown,
}

/// Between two handles: they look like addresses of structures.
const STEP: u64 = 64;

impl<T> Handles<T> {
    /// Handles of the kind with this number.
    pub fn new(kind: u64) -> Self {
        let first = 0x5000_0000_0000 + (kind << 40);
        Self { first, next: AtomicU64::new(first), live: Mutex::default() }
    }

    /// Makes one; the constructor gets its handle.
    pub fn add(&self, make: impl FnOnce(u64) -> T) -> Arc<T> {
        let handle = self.next.fetch_add(STEP, Ordering::Relaxed);
        let new = Arc::new(make(handle));
        self.lock().insert(handle, Arc::clone(&new));
        new
    }

    /// The same, for a constructor that can fail.
    ///
    /// # Errors
    ///
    /// Why it cannot.
    pub fn try_add<E>(&self, make: impl FnOnce(u64) -> Result<T, E>) -> Result<Arc<T>, E> {
        let handle = self.next.fetch_add(STEP, Ordering::Relaxed);
        let new = Arc::new(make(handle)?);
        self.lock().insert(handle, Arc::clone(&new));
        Ok(new)
    }

    /// What a number is.
    pub fn find(&self, handle: u64) -> Found<T> {
        if let Some(found) = self.lock().get(&handle) {
            return Found::Live(Arc::clone(found));
        }
        let issued = self.first..self.next.load(Ordering::Relaxed);
        if issued.contains(&handle) { Found::Gone } else { Found::Unknown }
    }

    /// The object behind a live handle.
    pub fn get(&self, handle: u64) -> Option<Arc<T>> {
        self.lock().get(&handle).cloned()
    }

    /// Makes a removed handle valid again.
    pub fn restore(&self, handle: u64, value: &Arc<T>) {
        self.lock().insert(handle, Arc::clone(value));
    }

    /// Takes a handle away.
    pub fn remove(&self, handle: u64) -> Option<Arc<T>> {
        self.lock().remove(&handle)
    }

    /// All that live.
    pub fn all(&self) -> Vec<Arc<T>> {
        self.lock().values().cloned().collect()
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<u64, Arc<T>>> {
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
