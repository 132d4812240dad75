//! How long a thread waits, and where it sleeps.
//!
//! In a model there is no time: a thread that has slept is impatient, and one that sleeps for some
//! time may wake at once.

#[cfg(loom)]
pub(super) use self::modelled::{Instant, Sleepers, Waiting, pause};
#[cfg(not(loom))]
pub(super) use self::real::{Instant, Sleepers, Waiting, pause};

#[cfg(not(loom))]
mod real {
    use std::hint;
    use std::sync::atomic::AtomicU32;
    use std::time::Duration;
    pub(in super::super) use std::time::Instant;

    use rustix::thread::futex;
    use rustix::time::Timespec;

    /// How long a thread waits before it is impatient.
    const PATIENCE: Duration = Duration::from_micros(500);

    /// A thread that waits for the lock, maybe until a deadline.
    pub(in super::super) struct Waiting {
        began: Instant,
        now: Instant,
        deadline: Option<Instant>,
    }

    impl Waiting {
        pub(in super::super) fn until(deadline: Option<Instant>) -> Self {
            let now = Instant::now();
            Self { began: now, now, deadline }
        }

        /// Looks at the clock.
        pub(in super::super) fn look(&mut self) {
            self.now = Instant::now();
        }

        pub(in super::super) fn is_late(&self) -> bool {
            self.deadline.is_some_and(|deadline| self.now >= deadline)
        }

        pub(in super::super) fn is_impatient(&self) -> bool {
            self.now.duration_since(self.began) >= PATIENCE
        }

        /// How long it may sleep.
        pub(in super::super) fn time(&self, is_impatient: bool) -> Option<Duration> {
            let left = self.deadline.map(|deadline| deadline.duration_since(self.now));
            let patience = (!is_impatient).then_some(PATIENCE);
            left.into_iter().chain(patience).min()
        }
    }

    /// The threads that sleep on the word of a lock: the kernel has them.
    #[derive(Debug)]
    pub(in super::super) struct Sleepers;

    impl Sleepers {
        /// Sleeps while the word is `state`, until it is woken, or some time has passed.
        pub(in super::super) fn sleep(&self, word: &AtomicU32, state: u32, time: Option<Duration>) {
            let time = time.and_then(|time| Timespec::try_from(time).ok());
            // Whatever ended it, the caller looks again.
            let _ = futex::wait(word, futex::Flags::PRIVATE, state, time.as_ref());
        }

        pub(in super::super) fn wake_one(&self, word: &AtomicU32) {
            let _ = futex::wake(word, futex::Flags::PRIVATE, 1);
        }
    }

    pub(in super::super) fn pause() {
        hint::spin_loop();
    }
}

#[cfg(loom)]
mod modelled {
    use loom::sync::atomic::{AtomicU32, Ordering};
    use loom::sync::{Condvar, Mutex};
    use loom::thread;

    /// The number of looks after which a thread is late.
    pub(in super::super) type Instant = u32;

    pub(in super::super) struct Waiting {
        looks: u32,
        deadline: Option<u32>,
    }

    impl Waiting {
        pub(in super::super) fn until(deadline: Option<Instant>) -> Self {
            Self { looks: 0, deadline }
        }

        pub(in super::super) fn look(&mut self) {
            self.looks += 1;
        }

        pub(in super::super) fn is_late(&self) -> bool {
            self.deadline.is_some_and(|deadline| self.looks >= deadline)
        }

        pub(in super::super) fn is_impatient(&self) -> bool {
            self.looks > 1
        }

        pub(in super::super) fn time(&self, is_impatient: bool) -> Option<()> {
            (!is_impatient || self.deadline.is_some()).then_some(())
        }
    }

    /// As the kernel does it: a lock keeps a thread that is about to sleep apart from one that
    /// wakes.
    #[derive(Debug, Default)]
    pub(in super::super) struct Sleepers {
        bucket: Mutex<()>,
        queue: Condvar,
    }

    impl Sleepers {
        pub(in super::super) fn sleep(&self, word: &AtomicU32, state: u32, time: Option<()>) {
            if time.is_some() {
                return thread::yield_now();
            }
            let bucket = self.bucket.lock().expect("no panic");
            if word.load(Ordering::Relaxed) == state {
                drop(self.queue.wait(bucket).expect("no panic"));
            }
        }

        pub(in super::super) fn wake_one(&self, _: &AtomicU32) {
            let _bucket = self.bucket.lock().expect("no panic");
            self.queue.notify_one();
        }
    }

    pub(in super::super) fn pause() {
        thread::yield_now();
    }
}
