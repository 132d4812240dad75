//! Locks that the child of a fork finds whole.
//!
//! A fork waits for threads that hold one ([`Section`]). So the child never finds one that is held
//! by a thread that does not exist, nor data in the middle of a change.
//!
//! They guard a few lines each: a thread that holds one takes no lock that is held across a fork,
//! and does not wait for other threads.

use std::ops::{Deref, DerefMut};
use std::sync::{self, PoisonError, TryLockError};

use crate::fork::Section;

/// A value behind such a lock.
#[derive(Debug, Default)]
pub struct Mutex<T: ?Sized>(sync::Mutex<T>);

/// The value, locked.
#[derive(Debug)]
#[must_use]
pub struct MutexGuard<'a, T: ?Sized> {
    /// Dropped before the section ends.
    value: sync::MutexGuard<'a, T>,
    _section: Section,
}

impl<T> Mutex<T> {
    /// A lock that nobody holds.
    pub const fn new(value: T) -> Self {
        Self(sync::Mutex::new(value))
    }
}

impl<T: ?Sized> Mutex<T> {
    /// Locks the value. What a thread that panicked left of it is taken as it is.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        let section = Section::begin();
        let value = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        MutexGuard { value, _section: section }
    }

    /// Locks the value, unless another thread has.
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let section = Section::begin();
        let value = match self.0.try_lock() {
            Ok(value) => value,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        Some(MutexGuard { value, _section: section })
    }
}

/// A value behind such a lock, which many threads may read at a time.
#[derive(Debug, Default)]
pub struct RwLock<T: ?Sized>(sync::RwLock<T>);

/// The value, for reading.
#[derive(Debug)]
#[must_use]
pub struct RwLockReadGuard<'a, T: ?Sized> {
    value: sync::RwLockReadGuard<'a, T>,
    _section: Section,
}

/// The value, for writing.
#[derive(Debug)]
#[must_use]
pub struct RwLockWriteGuard<'a, T: ?Sized> {
    value: sync::RwLockWriteGuard<'a, T>,
    _section: Section,
}

impl<T> RwLock<T> {
    /// A lock that nobody holds.
    pub const fn new(value: T) -> Self {
        Self(sync::RwLock::new(value))
    }
}

impl<T: ?Sized> RwLock<T> {
    /// Locks the value for reading, as [`Mutex::lock`] does.
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        let section = Section::begin();
        let value = self.0.read().unwrap_or_else(PoisonError::into_inner);
        RwLockReadGuard { value, _section: section }
    }

    /// Locks the value for writing.
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        let section = Section::begin();
        let value = self.0.write().unwrap_or_else(PoisonError::into_inner);
        RwLockWriteGuard { value, _section: section }
    }
}

impl<T: ?Sized> Deref for RwLockReadGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: ?Sized> Deref for RwLockWriteGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: ?Sized> DerefMut for RwLockWriteGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

impl<T: ?Sized> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T: ?Sized> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.value
    }
}

#[cfg(test)]
#[allow(unsafe_code, reason = "the test forks")]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;

    use super::*;

    #[test]
    fn one_writes_or_many_read() {
        let pair = RwLock::new((0, 0));
        thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..1000 {
                        let mut pair = pair.write();
                        pair.0 += 1;
                        pair.1 += 1;
                    }
                });
                scope.spawn(|| {
                    (0..1000).for_each(|_| assert!(matches!(*pair.read(), (a, b) if a == b)))
                });
            }
        });
        assert_eq!(*pair.read(), (2000, 2000));
    }

    /// Without the section, about one child in a hundred waits for a thread that does not exist.
    #[test]
    fn a_child_finds_it_free_and_whole() {
        static PAIR: Mutex<(u64, u64)> = Mutex::new((0, 0));
        static IS_OVER: AtomicBool = AtomicBool::new(false);
        let change = || {
            while !IS_OVER.load(Ordering::Relaxed) {
                let mut pair = PAIR.lock();
                pair.0 += 1;
                thread::yield_now();
                pair.1 += 1;
            }
        };
        let threads: Vec<_> = (0..3).map(|_| thread::spawn(change)).collect();
        for _ in 0..300 {
            // SAFETY: the child takes the lock, and ends.
            let child = unsafe { libc::fork() };
            if child == 0 {
                let is_whole = PAIR.try_lock().is_some_and(|pair| pair.0 == pair.1);
                // SAFETY: ends the child without the parent's handlers.
                unsafe { libc::_exit(if is_whole { 0 } else { 1 }) };
            }
            let mut status = 0;
            // SAFETY: the child of above; the status is ours.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert_eq!(status, 0);
        }
        IS_OVER.store(true, Ordering::Relaxed);
        threads.into_iter().for_each(|thread| thread.join().expect("no panic"));
    }
}
