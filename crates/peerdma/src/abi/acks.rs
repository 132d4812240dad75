//! Events given to the program and acknowledged by it.
//!
//! A program that took an event holds a pointer to its object, so destroying the object waits until
//! every event taken was acknowledged (`ibv_get_cq_event(3)`, `ibv_get_async_event(3)`).

use std::sync::{Condvar, Mutex, PoisonError};

/// How many events of an object the program took and has not acknowledged.
#[derive(Debug, Default)]
pub(crate) struct Acks {
    unacknowledged: Mutex<u64>,
    changed: Condvar,
}

impl Acks {
    /// Counts an event that is given to the program.
    pub(crate) fn give(&self) {
        *self.unacknowledged.lock().unwrap_or_else(PoisonError::into_inner) += 1;
    }

    /// Counts acknowledgements. Surplus ones are ignored.
    pub(crate) fn acknowledge(&self, events: u32) {
        let mut left = self.unacknowledged.lock().unwrap_or_else(PoisonError::into_inner);
        *left = left.saturating_sub(u64::from(events));
        self.changed.notify_all();
    }

    /// Waits until nothing is unacknowledged.
    pub(crate) fn wait(&self) {
        let left = self.unacknowledged.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.changed.wait_while(left, |left| *left > 0));
    }
}
