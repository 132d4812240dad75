//! The tasks that wait for the same thing.

use std::task::{Context, Waker};

/// Tasks that wait for the same thing; each is in it once.
#[derive(Debug, Default)]
pub(super) struct Wakers(Vec<Waker>);

impl Wakers {
    /// Adds the task that is polled.
    pub(super) fn add(&mut self, cx: &Context<'_>) {
        if !self.0.iter().any(|waker| waker.will_wake(cx.waker())) {
            self.0.push(cx.waker().clone());
        }
    }

    /// Takes all of them, to be woken without a lock.
    pub(super) fn take(&mut self) -> Self {
        std::mem::take(self)
    }

    /// Wakes all of them.
    pub(super) fn wake(self) {
        self.0.into_iter().for_each(Waker::wake);
    }
}

impl IntoIterator for Wakers {
    type Item = Waker;
    type IntoIter = std::vec::IntoIter<Waker>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}
