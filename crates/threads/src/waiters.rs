//! Locks that came through a fork with waiters that did not.
//!
//! A lock of `parking_lot` that has waiters is now and then handed to one of them when it is let go
//! of. In the child of a fork they are gone, and what was handed to one stays locked for ever. So
//! the child makes such locks new, held as they are, before it lets go of them.

#![allow(unsafe_code, reason = "a lock is made new in its place")]

use parking_lot::lock_api::{RawMutex as _, RawRwLock as _};
use parking_lot::{MutexGuard, RawMutex, RawRwLock, RwLockWriteGuard};

/// For the child, which holds the lock.
pub fn forget_of_mutex<T>(guard: &MutexGuard<'_, T>) {
    // SAFETY: the raw lock is not unlocked, but made new and locked again.
    let raw = unsafe { MutexGuard::mutex(guard).raw() };
    // SAFETY: the child has one thread, and that holds the lock.
    unsafe { renew(raw) };
    raw.lock();
}

/// The same for a lock that is held for writing.
pub fn forget_of_rwlock<T>(guard: &RwLockWriteGuard<'_, T>) {
    // SAFETY: the raw lock is not unlocked, but made new and locked again.
    let raw = unsafe { RwLockWriteGuard::rwlock(guard).raw() };
    // SAFETY: its state is an atomic word, so that it may be written behind a shared reference; the
    // child has one thread, and that holds the lock.
    unsafe { std::ptr::from_ref(raw).cast_mut().write(RawRwLock::INIT) };
    raw.lock_exclusive();
}

/// Makes a mutex new, and free.
///
/// # Safety
///
/// Nobody else uses it meanwhile.
pub(crate) unsafe fn renew(mutex: &RawMutex) {
    // SAFETY: its state is an atomic byte, so that it may be written behind a shared reference;
    // nobody else does, as the caller says.
    unsafe { std::ptr::from_ref(mutex).cast_mut().write(RawMutex::INIT) };
}

#[cfg(test)]
mod tests {
    use parking_lot::{Mutex, RwLock};

    use super::*;

    #[test]
    fn what_is_held_stays_so_and_is_free_afterwards() {
        let (mutex, lock) = (Mutex::new(1), RwLock::new(2));
        let (one, two) = (mutex.lock(), lock.write());
        forget_of_mutex(&one);
        forget_of_rwlock(&two);
        assert!(mutex.try_lock().is_none() && lock.try_read().is_none());
        drop((one, two));
        assert_eq!((*mutex.lock(), *lock.read()), (1, 2));
    }
}
