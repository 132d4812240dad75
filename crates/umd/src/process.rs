//! A process's state of a driver, from its first call on.

use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

use threads::first::First;
use threads::fork::Handlers;

/// Whether this process is a child of one that had called a driver.
static IS_CHILD: AtomicBool = AtomicBool::new(false);

/// A process's state of one driver. Made once, and never freed: other threads may be in a call when
/// the process ends. A child of a fork has none, and gets none: it cannot use its parent's GPU.
#[derive(Debug)]
pub struct PerProcess<T>(AtomicPtr<T>);

/// What there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "there is no third case")]
pub enum Absent {
    /// Nothing was made yet.
    NotYet,
    /// The parent's, which is not this process's.
    Parents,
}

impl<T: Sync> PerProcess<T> {
    /// Nothing yet.
    #[expect(clippy::new_without_default, reason = "it is made for statics")]
    pub const fn new() -> Self {
        Self(AtomicPtr::new(std::ptr::null_mut()))
    }

    /// What the process has.
    ///
    /// # Errors
    ///
    /// Nothing.
    pub fn get(&self) -> Result<&'static T, Absent> {
        match self.even_in_child() {
            Some(_) if is_child() => Err(Absent::Parents),
            Some(made) => Ok(made),
            None if is_child() => Err(Absent::Parents),
            None => Err(Absent::NotYet),
        }
    }

    /// Also in a child, which still has the parent's addresses.
    pub fn even_in_child(&self) -> Option<&'static T> {
        // ORDERING: pairs with the release in `set`.
        let made = self.0.load(Ordering::Acquire);
        // SAFETY: null, or never freed.
        unsafe { made.as_ref() }
    }

    /// Sets the state of the process. Returns it, and whether it is the new one: another thread may
    /// have been first.
    pub fn set(&self, new: T) -> (&'static T, bool) {
        static WATCH: First = First::new();
        // It is an atomic store, which a child may do.
        WATCH.call(|| Handlers { child: Some(in_child), ..Handlers::default() }.register());
        let new = Box::into_raw(Box::new(new));
        let none = std::ptr::null_mut();
        // ORDERING: pairs with the acquire in `even_in_child`.
        match self.0.compare_exchange(none, new, Ordering::AcqRel, Ordering::Acquire) {
            // SAFETY: never freed from now on.
            Ok(_) => (unsafe { &*new }, true),
            Err(first) => {
                // SAFETY: no other thread has seen it.
                drop(unsafe { Box::from_raw(new) });
                // SAFETY: not null, and never freed.
                (unsafe { &*first }, false)
            }
        }
    }
}

fn is_child() -> bool {
    IS_CHILD.load(Ordering::Relaxed)
}

extern "C" fn in_child() {
    IS_CHILD.store(true, Ordering::Relaxed);
}
