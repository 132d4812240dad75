//! What is done once in a process, and no fork splits.
//!
//! [`std::sync::Once`] waits for the thread that runs it. In the child of a fork that thread does
//! not exist: if it was in the middle, the child waits for ever. Here a fork waits until the thread
//! that runs such a thing is done, as it waits for locks.

use std::sync::atomic::{AtomicI32, Ordering};
use std::thread::yield_now;

use crate::fork::Section;

/// The state of one that was done.
const DONE: i32 = -1;

/// Something that is done once.
#[derive(Debug)]
pub struct First {
    /// 0, [`DONE`], or the process that is at it.
    state: AtomicI32,
}

impl Default for First {
    fn default() -> Self {
        Self::new()
    }
}

impl First {
    /// One that was not done yet.
    pub const fn new() -> Self {
        Self { state: AtomicI32::new(0) }
    }

    /// Does it if nobody has. When this returns it is done.
    #[inline]
    pub fn call(&self, act: impl FnOnce()) {
        if !self.is_done() {
            self.run(act);
        }
    }

    #[cold]
    fn run(&self, act: impl FnOnce()) {
        let _section = Section::begin();
        self.run_outside(act);
    }

    /// Whether it was done.
    #[inline]
    pub(crate) fn is_done(&self) -> bool {
        self.state.load(Ordering::Acquire) == DONE
    }

    /// As [`First::call`], for what sections need. A fork may split it: the child does it again.
    pub(crate) fn run_outside(&self, act: impl FnOnce()) {
        // CAST: a process number.
        let here = std::process::id() as i32;
        loop {
            let begun = self.state.compare_exchange(0, here, Ordering::Acquire, Ordering::Acquire);
            match begun {
                Ok(_) => {
                    let undo = Undo(self);
                    act();
                    std::mem::forget(undo);
                    return self.state.store(DONE, Ordering::Release);
                }
                Err(DONE) => return,
                Err(there) if there == here => yield_now(),
                // It was split, as forks were not watched yet: its thread is not here.
                Err(there) => {
                    let _ =
                        self.state.compare_exchange(there, 0, Ordering::Relaxed, Ordering::Relaxed);
                }
            }
        }
    }
}

/// It panicked: the next one tries again.
struct Undo<'a>(&'a First);

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        self.0.state.store(0, Ordering::Release);
    }
}

#[cfg(test)]
#[allow(unsafe_code, reason = "one test forks")]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
    use std::thread;
    use std::time::Duration;

    use super::*;

    #[test]
    fn it_is_done_once_and_is_done_when_the_call_returns() {
        static TIMES: AtomicU32 = AtomicU32::new(0);
        let first = First::new();
        thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    first.call(|| {
                        thread::sleep(Duration::from_millis(20));
                        TIMES.fetch_add(1, Ordering::Relaxed);
                    });
                    assert_eq!(TIMES.load(Ordering::Relaxed), 1);
                });
            }
        });
    }

    #[test]
    fn one_may_need_another() {
        let (one, other) = (First::new(), First::new());
        let mut times = 0;
        one.call(|| other.call(|| times += 1));
        other.call(|| times += 1);
        assert_eq!(times, 1);
    }

    #[test]
    fn what_panicked_is_tried_again() {
        let first = First::new();
        let panicked = std::panic::catch_unwind(|| first.call(|| panic!("as the test asks")));
        assert!(panicked.is_err());
        let mut is_done = false;
        first.call(|| is_done = true);
        assert!(is_done);
    }

    #[test]
    fn a_fork_waits_until_it_is_done() {
        let (first, began) = (First::new(), AtomicBool::new(false));
        thread::scope(|scope| {
            scope.spawn(|| {
                first.call(|| {
                    began.store(true, Ordering::Release);
                    thread::sleep(Duration::from_millis(100));
                });
            });
            while !began.load(Ordering::Acquire) {
                yield_now();
            }
            // SAFETY: the child touches one atomic and ends.
            let child = unsafe { libc::fork() };
            if child == 0 {
                let is_done = first.state.load(Ordering::Acquire) == DONE;
                // SAFETY: ends the child without the parent's handlers.
                unsafe { libc::_exit(if is_done { 0 } else { 1 }) };
            }
            let mut status = 0;
            // SAFETY: the child of above; the status is ours.
            assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
            assert_eq!(status, 0, "the fork came in between");
        });
    }
}
