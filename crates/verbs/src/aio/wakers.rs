//! The tasks that wait for the same thing.

use std::task::{Context, Waker};

use smallvec::SmallVec;

/// Tasks that wait for the same thing; each is in it once.
#[derive(Debug, Default)]
pub(super) struct Wakers(SmallVec<[Waker; 1]>);

impl Wakers {
    /// Adds the task that is polled.
    pub(super) fn add(&mut self, cx: &Context<'_>) {
        if !self.0.iter().any(|waker| waker.will_wake(cx.waker())) {
            self.0.push(cx.waker().clone());
        }
    }

    /// Adds one.
    pub(super) fn push(&mut self, waker: Waker) {
        self.0.push(waker);
    }

    /// Adds others.
    pub(super) fn extend(&mut self, others: Self) {
        self.0.extend(others.0);
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
    type IntoIter = smallvec::IntoIter<[Waker; 1]>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}
