//! What events name completion queues and shared receive queues by.

use std::ffi::c_void;
use std::num::NonZeroU64;
use std::ptr;
use std::sync::atomic::{AtomicU64, Ordering};

/// A number that one queue of the process has, and none had before: addresses come again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QueueId(NonZeroU64);

impl QueueId {
    /// One that no other queue has.
    #[expect(clippy::new_without_default, reason = "there is none that is usual")]
    pub fn new() -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        // ORDERING: each number is given once, and that is all.
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self(NonZeroU64::new(number).expect("2^64 queues are more than can be made"))
    }

    /// The number.
    pub const fn value(self) -> u64 {
        self.0.get()
    }

    /// The queue of a number, if it is one's.
    pub const fn from_value(value: u64) -> Option<Self> {
        match NonZeroU64::new(value) {
            Some(number) => Some(Self(number)),
            None => None,
        }
    }

    /// As the `cq_context` or `srq_context` of a queue.
    pub(crate) const fn cookie(self) -> *mut c_void {
        // CAST: an address has 64 bits.
        ptr::without_provenance_mut(self.value() as usize)
    }

    /// The queue whose context this is.
    pub(crate) fn of(cookie: *mut c_void) -> Option<Self> {
        Self::from_value(cookie.addr() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_given_once_and_comes_back() {
        let (one, other) = (QueueId::new(), QueueId::new());
        assert_ne!(one, other);
        assert_eq!(QueueId::of(one.cookie()), Some(one));
        assert_eq!(QueueId::of(ptr::null_mut()), None);
    }
}
