//! What happens at a time: a queue in the order of times, and then of arrival in it.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use transport::Time;

/// The queue.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    heap: BinaryHeap<Reverse<At<T>>>,
    /// Things that were ever queued.
    number: u64,
}

#[derive(Debug)]
struct At<T> {
    time: Time,
    number: u64,
    what: T,
}

impl<T> Queue<T> {
    /// Nothing happens.
    pub(crate) const fn new() -> Self {
        Self { heap: BinaryHeap::new(), number: 0 }
    }

    /// How many things were ever queued.
    pub(crate) const fn number(&self) -> u64 {
        self.number
    }

    pub(crate) fn push(&mut self, time: Time, what: T) {
        self.number += 1;
        self.heap.push(Reverse(At { time, number: self.number, what }));
    }

    /// What happens next, and when.
    pub(crate) fn peek(&self) -> Option<(Time, &T)> {
        self.heap.peek().map(|Reverse(at)| (at.time, &at.what))
    }

    pub(crate) fn pop(&mut self) -> Option<(Time, T)> {
        self.heap.pop().map(|Reverse(at)| (at.time, at.what))
    }
}

impl<T> PartialEq for At<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<T> Eq for At<T> {}

impl<T> PartialOrd for At<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T> Ord for At<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.time, self.number).cmp(&(other.time, other.number))
    }
}
