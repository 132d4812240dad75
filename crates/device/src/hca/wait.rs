//! Threads of the program that wait for an event, and make progress meanwhile.
//!
//! Without them each message wakes two threads, one after the other: the background thread, and the
//! one that waits for its event. To wake a thread on an idle processor takes longer than all that
//! either of them does.
//!
//! So a thread that waits in a call of ours sleeps on the doorbell, too, with a set of its own. The
//! kernel wakes one thread for each ring: the first that sleeps, in the order in which their sets
//! were made. The background thread comes last, and hears what rings while the program does
//! something else. Nothing says that a thread waits but its sleep, so one that is cancelled, or
//! leaves by a signal, leaves nothing behind. Only what wakes it in that very moment waits until
//! something else happens, or until the background thread looks.
//!
//! A thread whose waits are short polls for a while before it sleeps ([`Patience`]): as long as the
//! wakes would take that it saves, and without yielding its core, which would cost a time slice on
//! a busy machine.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use super::Hca;
use crate::engine::{Engine, Turn};
use crate::thresholds::{
    FIRST_CREDIT, MOST_CREDIT, SHORT_WAIT, SHORT_WAITS_TO_SPIN, SHORT_WAITS_TO_SPIN_AT_MOST, SPIN,
    TURNS,
};
use crate::waits::{SetsOfProgram, Woken, sleep};

/// How a wait begins.
#[derive(Debug)]
#[expect(clippy::exhaustive_enums, reason = "callers act on each")]
pub enum Begun<'a> {
    /// The event was found.
    Found,
    /// The caller sleeps on this epoll set, and then calls [`Waiting::end`].
    Sleep(BorrowedFd<'a>),
    /// Threads cannot wait here: they wait for the descriptor alone.
    Unable,
}

/// What a sleep has led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "callers act on each")]
pub enum Waited {
    /// The event was found.
    Found,
    /// The descriptor was readable; another thread may have read it since.
    Readable,
    /// It was not found yet: the caller may begin again.
    NotYet,
}

/// The waits of a program's threads for one descriptor, behind which their events are.
#[derive(Debug, Default)]
pub struct Waiting {
    sets: OnceLock<Option<(Weak<Hca>, SetsOfProgram)>>,
    patience: Patience,
}

impl Waiting {
    /// Begins to wait for an event of `fd`. `found` looks for it, and takes it; it is called with
    /// the engine locked, before any bell rings.
    pub fn begin(
        &self,
        hca: &Arc<Hca>,
        fd: impl AsFd,
        found: impl FnMut(&mut Engine) -> bool,
    ) -> Begun<'_> {
        // A fork may copy a cell that is being initialised, and waits for the engine's lock.
        if self.sets.get().is_none() {
            let made = hca.wait_sets(fd).map(|sets| (Arc::downgrade(hca), sets));
            let _ = self.sets.set(made);
        }
        // In the child of a fork they are its parent's, and so is the device.
        let is_of = |of: &Weak<Hca>| of.as_ptr() == Arc::as_ptr(hca) && !hca.lock().is_dead();
        let sets = self.sets.get().and_then(Option::as_ref);
        let Some((_, sets)) = sets.filter(|(of, _)| is_of(of)) else { return Begun::Unable };
        if self.patience.spins() {
            let is_found = hca.spin(found);
            self.patience.spun(is_found);
            if is_found {
                return Begun::Found;
            }
        }
        // A datagram moves the thread that it wakes to the sender's processor, where the two would
        // poll in each other's way.
        let set = if self.patience.spins() { &sets.without } else { &*sets.with_datagrams };
        if set.look().is_ok() { Begun::Sleep(set.as_fd()) } else { Begun::Unable }
    }

    /// The set of waits that have begun already.
    pub fn set(&self) -> Option<BorrowedFd<'_>> {
        let (_, sets) = self.sets.get()?.as_ref()?;
        sets.with_datagrams.look().ok().map(|()| sets.with_datagrams.as_fd())
    }

    /// Something has ended the sleep, after so long.
    pub fn end(
        &self,
        hca: &Hca,
        woken: Woken,
        slept: Duration,
        mut found: impl FnMut(&mut Engine) -> bool,
    ) -> Waited {
        let waited = match woken {
            Woken::Rung | Woken::Datagrams if hca.take_turns(woken, &mut found) => Waited::Found,
            Woken::Readable => Waited::Readable,
            _ => Waited::NotYet,
        };
        if waited != Waited::NotYet {
            self.patience.slept(slept);
        }
        waited
    }

    /// Sleeps on a set that [`Waiting::begin`] gave.
    ///
    /// # Errors
    /// As of epoll_wait(2).
    pub fn sleep(set: BorrowedFd<'_>, timeout: Option<Duration>) -> rustix::io::Result<Woken> {
        sleep(set, timeout, |_| {})
    }
}

/// Whether a thread polls for a while before it sleeps: it does if many of its waits are short, as
/// long as half of the polls find something.
#[derive(Debug)]
struct Patience {
    spins: AtomicBool,
    /// Polls that found something, less those that did not.
    credit: AtomicU32,
    /// Short waits among those that slept: each counts two, and each other one takes one away.
    short: AtomicU32,
    /// How many it takes to begin.
    needed: AtomicU32,
}

impl Default for Patience {
    fn default() -> Self {
        Self {
            spins: AtomicBool::new(false),
            credit: AtomicU32::new(0),
            short: AtomicU32::new(0),
            needed: AtomicU32::new(SHORT_WAITS_TO_SPIN),
        }
    }
}

// Threads that wait for the same channel may lose each other's counts, which does no harm.
impl Patience {
    /// Whether the next wait begins with [`Hca::spin`].
    fn spins(&self) -> bool {
        self.spins.load(Ordering::Relaxed)
    }

    /// The event came while the thread polled, or did not.
    fn spun(&self, is_found: bool) {
        let credit = self.credit.load(Ordering::Relaxed);
        if is_found {
            self.credit.store((credit + 1).min(MOST_CREDIT), Ordering::Relaxed);
            if credit >= MOST_CREDIT {
                self.needed.store(SHORT_WAITS_TO_SPIN, Ordering::Relaxed);
            }
        } else if credit > 0 {
            self.credit.store(credit - 1, Ordering::Relaxed);
        } else {
            self.spins.store(false, Ordering::Relaxed);
            let twice = 2 * self.needed.load(Ordering::Relaxed);
            self.needed.store(twice.min(SHORT_WAITS_TO_SPIN_AT_MOST), Ordering::Relaxed);
        }
    }

    /// The event came while the thread slept, after so long.
    fn slept(&self, wait: Duration) {
        if self.spins() {
            return;
        }
        let short = self.short.load(Ordering::Relaxed);
        if wait >= SHORT_WAIT {
            self.short.store(short.saturating_sub(1), Ordering::Relaxed);
        } else if short + 2 < 2 * self.needed.load(Ordering::Relaxed) {
            self.short.store(short + 2, Ordering::Relaxed);
        } else {
            self.short.store(0, Ordering::Relaxed);
            self.credit.store(FIRST_CREDIT, Ordering::Relaxed);
            self.spins.store(true, Ordering::Relaxed);
        }
    }
}

impl Hca {
    /// Sets for threads that wait for `fd`, or none where the kernel has no descriptor for it, or
    /// cannot wake one thread alone.
    fn wait_sets(&self, fd: impl AsFd) -> Option<SetsOfProgram> {
        let engine = self.lock();
        if engine.is_dead() {
            return None;
        }
        let doorbell = engine.common.out.shm.doorbell()?.fd();
        let datagrams = engine.receivers.udp.watched();
        self.shared.waits.sets_of_program(fd, doorbell, datagrams).ok()
    }

    fn program_polls(&self) -> bool {
        self.shared.polling.load(Ordering::Relaxed)
    }

    /// Makes progress until the event is found, or for [`SPIN`].
    fn spin(&self, mut found: impl FnMut(&mut Engine) -> bool) -> bool {
        if self.program_polls() {
            return false;
        }
        let began = Instant::now();
        let mut engine = self.lock();
        engine.common.out.shm.doorbell().inspect(|bell| bell.set_awake());
        let is_found = loop {
            engine.progress(Turn::Call);
            if found(&mut engine) {
                break true;
            }
            if self.program_polls() {
                return false;
            }
            if began.elapsed() >= SPIN {
                break false;
            }
            drop(engine);
            std::hint::spin_loop();
            engine = self.lock();
        };
        leave_to_bell(&mut engine, false);
        is_found
    }

    /// A thread of the program was woken: does what the background thread would do. Returns
    /// whether the event is found.
    fn take_turns(&self, woken: Woken, mut found: impl FnMut(&mut Engine) -> bool) -> bool {
        let mut engine = self.lock();
        if engine.is_dead() {
            return false;
        }
        engine.common.out.shm.doorbell().inspect(|bell| bell.drain());
        // Nobody else was told of datagrams: all sockets are to be empty at the end.
        let turn = if woken == Woken::Datagrams { Turn::Datagrams } else { Turn::Rung };
        if self.program_polls() {
            // Nobody rings any more, and polls take datagrams.
            engine.progress(turn);
            return found(&mut engine);
        }
        let mut turns = TURNS;
        while turns > 0 && engine.progress(turn) {
            turns -= 1;
        }
        // The background thread looks for what has no descriptor.
        let is_left = turns == 0 || engine.has_lost_peers();
        leave_to_bell(&mut engine, is_left);
        found(&mut engine)
    }
}

/// Peers ring from now on. The background thread goes on if something is left, or came before the
/// bell was to be rung.
fn leave_to_bell(engine: &mut Engine, is_left: bool) {
    engine.common.out.shm.doorbell().inspect(|bell| bell.set_sleeping());
    if engine.progress(Turn::Rung) || engine.has_ready() || is_left {
        engine.wake_thread();
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use rustix::event::{EventfdFlags, eventfd};

    use super::*;
    use crate::rig;

    const SHORT: Duration = Duration::from_micros(40);

    /// Waits on the set, as callers do.
    fn sleep(begun: &Begun<'_>) -> Woken {
        Waiting::sleep(set(begun), Some(Duration::from_secs(20))).expect("a set of ours")
    }

    fn set<'a>(begun: &Begun<'a>) -> BorrowedFd<'a> {
        match begun {
            Begun::Sleep(set) => *set,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn short_waits_are_polled_for_while_half_of_the_polls_find_something() {
        let patience = Patience::default();
        for _ in 1..SHORT_WAITS_TO_SPIN {
            patience.slept(SHORT);
            assert!(!patience.spins());
        }
        patience.slept(SHORT);
        assert!(patience.spins());
        for _ in 0..100 {
            patience.spun(false);
            patience.spun(true);
        }
        assert!(patience.spins(), "every second one");
        let mut left = 0;
        while patience.spins() {
            patience.spun(false);
            left += 1;
        }
        assert!(left <= FIRST_CREDIT + 1, "{left}");
    }

    #[test]
    fn polls_that_find_nothing_make_it_less_likely_to_begin_again() {
        let patience = Patience::default();
        let mut most = 0;
        for _ in 0..20 {
            let mut waits = 0;
            while !patience.spins() {
                patience.slept(SHORT);
                waits += 1;
            }
            most = most.max(waits);
            while patience.spins() {
                patience.spun(false);
            }
        }
        assert_eq!(most, SHORT_WAITS_TO_SPIN_AT_MOST);
        while !patience.spins() {
            patience.slept(SHORT);
        }
        (0..2 * MOST_CREDIT).for_each(|_| patience.spun(true));
        assert_eq!(patience.needed.load(Ordering::Relaxed), SHORT_WAITS_TO_SPIN);
    }

    #[test]
    fn long_waits_are_slept_through() {
        let patience = Patience::default();
        for _ in 0..100 {
            patience.slept(SHORT);
            patience.slept(SHORT_WAIT);
            patience.slept(SHORT_WAIT);
        }
        assert!(!patience.spins());
    }

    #[test]
    fn a_bell_wakes_the_thread_that_waits_and_it_takes_a_turn() {
        let hca = Arc::new(Hca::start(&rig::nic("waits-for-a-bell")).expect("a VF is free"));
        let own = eventfd(0, EventfdFlags::CLOEXEC).expect("descriptors are free");
        let waiting = Waiting::default();
        let looked = Cell::new(0);
        let begun = waiting.begin(&hca, &own, |_| panic!("it does not poll yet"));
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            // On a busy machine the background thread may hear some before this one sleeps.
            scope.spawn(|| {
                while !is_over.load(Ordering::Relaxed) {
                    hca.lock().common.out.shm.doorbell().inspect(|bell| bell.ring());
                    std::thread::sleep(Duration::from_millis(20));
                }
            });
            let mut woken = Woken::Datagrams;
            // Of other tests.
            while woken == Woken::Datagrams {
                woken = sleep(&begun);
                waiting.end(&hca, woken, SHORT, |_| false);
            }
            is_over.store(true, Ordering::Relaxed);
            assert_eq!(woken, Woken::Rung);
        });
        let found = |_: &mut Engine| {
            looked.set(looked.get() + 1);
            looked.get() == 2
        };
        assert_eq!(waiting.end(&hca, Woken::Rung, SHORT, found), Waited::NotYet);
        assert_eq!(waiting.end(&hca, Woken::Rung, SHORT, found), Waited::Found);
        rustix::io::write(&own, &1u64.to_ne_bytes()).expect("there is room");
        let woken = sleep(&begun);
        assert!([Woken::Readable, Woken::Datagrams].contains(&woken), "{woken:?}");
        assert_eq!(waiting.end(&hca, Woken::Readable, SHORT, found), Waited::Readable);
    }

    #[test]
    fn a_thread_that_polls_finds_the_event_under_the_lock() {
        let hca = Arc::new(Hca::start(&rig::nic("polls-for-an-event")).expect("a VF is free"));
        let own = eventfd(0, EventfdFlags::CLOEXEC).expect("descriptors are free");
        let waiting = Waiting::default();
        (0..SHORT_WAITS_TO_SPIN).for_each(|_| waiting.patience.slept(SHORT));
        let looked = Cell::new(0);
        let begun = waiting.begin(&hca, &own, |_| {
            looked.set(looked.get() + 1);
            looked.get() == 3
        });
        // On a busy machine three looks may take longer than it polls.
        assert!(matches!(begun, Begun::Found) || looked.get() < 3, "{begun:?}");
        let began = Instant::now();
        let begun = waiting.begin(&hca, &own, |_| false);
        assert!(began.elapsed() >= SPIN);
        assert!(matches!(begun, Begun::Sleep(_)), "{begun:?}");
    }

    #[test]
    fn nobody_waits_with_a_device_that_failed_or_with_another_one() {
        let start = |name| Arc::new(Hca::start(&rig::nic(name)).expect("a VF is free"));
        let (hca, other) = (start("waits-one"), start("waits-other"));
        let own = eventfd(0, EventfdFlags::CLOEXEC).expect("descriptors are free");
        let waiting = Waiting::default();
        let begin = |hca| waiting.begin(hca, &own, |_| false);
        assert!(matches!(begin(&hca), Begun::Sleep(_)));
        assert!(matches!(begin(&other), Begun::Unable));
        hca.lock().fail("as a test wants it");
        assert!(matches!(begin(&hca), Begun::Unable));
    }
}
