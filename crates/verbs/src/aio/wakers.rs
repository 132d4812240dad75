//! The tasks that wait for the same thing.

use std::task::Waker;

/// Tasks that wait for the same thing; each is in it once. Mostly there is one.
#[derive(Debug, Default)]
pub(super) struct Wakers {
    first: Option<Waker>,
    more: Vec<Waker>,
}

impl Wakers {
    /// Adds the task that is polled, if it wants to be woken.
    pub(super) fn add(&mut self, task: Option<&Waker>) {
        let Some(task) = task else { return };
        let is_own = |waker: &Waker| waker.will_wake(task);
        if !self.first.iter().chain(&self.more).any(is_own) {
            self.push(task.clone());
        }
    }

    /// Adds one.
    pub(super) fn push(&mut self, waker: Waker) {
        match self.first {
            None => self.first = Some(waker),
            Some(_) => self.more.push(waker),
        }
    }

    /// Adds others.
    pub(super) fn extend(&mut self, others: impl IntoIterator<Item = Waker>) {
        others.into_iter().for_each(|waker| self.push(waker));
    }

    /// Takes all of them, to be woken without a lock.
    pub(super) fn take(&mut self) -> Self {
        std::mem::take(self)
    }

    /// Wakes all of them.
    pub(super) fn wake(self) {
        if let Some(first) = self.first {
            first.wake();
            self.more.into_iter().for_each(Waker::wake);
        }
    }
}

impl IntoIterator for Wakers {
    type Item = Waker;
    type IntoIter = std::iter::Chain<std::option::IntoIter<Waker>, std::vec::IntoIter<Waker>>;

    fn into_iter(self) -> Self::IntoIter {
        self.first.into_iter().chain(self.more)
    }
}
