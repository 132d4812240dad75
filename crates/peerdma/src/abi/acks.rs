//! Events given to the program and acknowledged by it.
//!
//! A program that took an event holds a pointer to its object, so destroying the object waits until
//! every event taken was acknowledged (`ibv_get_cq_event(3)`, `ibv_get_async_event(3)`).

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// How many events of an object the program took and has not acknowledged.
#[derive(Debug, Default)]
pub(crate) struct Acks {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct State {
    unacknowledged: u64,
    /// Threads that wait. Most often there are none, and to wake nobody is a system call, too.
    waiting: usize,
}

impl Acks {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts an event that is given to the program.
    pub(crate) fn give(&self) {
        self.state().unacknowledged += 1;
    }

    /// Counts acknowledgements. Surplus ones are ignored.
    pub(crate) fn acknowledge(&self, events: u32) {
        let mut state = self.state();
        state.unacknowledged = state.unacknowledged.saturating_sub(u64::from(events));
        if state.waiting > 0 {
            self.changed.notify_all();
        }
    }

    /// Waits until nothing is unacknowledged.
    pub(crate) fn wait(&self) {
        let mut state = self.state();
        state.waiting += 1;
        let waited = self.changed.wait_while(state, |state| state.unacknowledged > 0);
        waited.unwrap_or_else(PoisonError::into_inner).waiting -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_waits_goes_on_at_the_last_acknowledgement() {
        let acks = Acks::default();
        acks.wait();
        (0..3).for_each(|_| acks.give());
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| acks.wait());
            while acks.state().waiting == 0 {
                std::thread::yield_now();
            }
            acks.acknowledge(2);
            assert_eq!(acks.state().waiting, 1);
            acks.acknowledge(7);
            waits.join().expect("it goes on");
        });
        let State { unacknowledged, waiting } = *acks.state();
        assert_eq!((unacknowledged, waiting), (0, 0));
    }
}
