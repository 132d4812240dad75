//! The background thread: it makes progress when the program does not.
//!
//! | mode | what the thread does | until |
//! |---|---|---|
//! | [`Mode::Polled`] | every [`LEASE`] what polls leave out | a lease without a poll |
//! | [`Mode::Watching`] | a look every [`ACK_LOOK`] | the lease is over |
//! | [`Mode::Busy`] | a turn after the other | one finds nothing |
//! | [`Mode::Lingering`] | looks for the next train, without sleep | [`LINGER`] without one |
//! | [`Mode::Sleeping`] | sleeps | a doorbell, a datagram or the next deadline |
//!
//! In the first two modes the program counts as polling, since its polls found nothing many times,
//! or it posts and polls without a pause ([`take_over`](super::take_over)). No socket wakes the
//! thread then after the first time; in the second, an acknowledgement waits for the program's next
//! request. Both also end if the program has paused at the end of the lease, and something waited.
//! In the others the program does not count as polling; while the thread lingers, a stream of
//! datagrams arrives.
//!
//! Peers know the mode (`link::shm::Doorbell`): they wake a process that sleeps, not one that
//! polls, and for one that has polled for a whole lease they need not even check.

use std::mem;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use threads::biased::MutexGuard;

use super::Shared;
use super::take_over::Calls;
use crate::engine::{Engine, Turn};
use crate::guard::EngineGuard;
use crate::panics;
use crate::thresholds::{
    ACK_LOOK, LEASE, LINGER, LONGEST_BETWEEN_LOOKS, LONGEST_SLEEP, PAUSE, STREAM, TURNS,
};
use crate::waits::Woken;

/// What the thread does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Polled,
    Watching,
    /// Takes turns; the value says what the next one checks.
    Busy(Woken),
    Lingering,
    /// Sleeps for at most this long.
    Sleeping(Option<Duration>),
}

/// Runs until the device is closed. A panic fails the device.
pub(super) fn run_to_the_end(shared: &Shared) {
    let run = || Background::new(shared).run();
    if let Err(panic) = catch_unwind(AssertUnwindSafe(run)) {
        let why = format!("its thread panicked: {}", panics::words(&*panic));
        tracing::error!(target: "peerdma::panic", "{why}");
        EngineGuard::new(shared.engine.lock()).fail(&why);
    }
}

struct Background<'a> {
    shared: &'a Shared,
    mode: Mode,
    /// The program's calls that had made progress at the last check whether it polls.
    activity: u64,
    calls: Calls,
    /// Datagrams taken at the last check for a stream.
    taken: u64,
    /// Whether the program neither posted nor polled at the end of the lease.
    has_paused: bool,
    /// When it last checked everything.
    looked: Instant,
    /// Whether datagrams wake it.
    is_watching: bool,
}

impl<'a> Background<'a> {
    fn new(shared: &'a Shared) -> Self {
        Self {
            shared,
            mode: Mode::Busy(Woken::Otherwise),
            activity: 0,
            calls: Calls::new(Instant::now()),
            taken: 0,
            has_paused: false,
            looked: Instant::now(),
            is_watching: false,
        }
    }

    fn run(&mut self) {
        loop {
            let woken = self.wait();
            if self.shared.stop.load(Ordering::Acquire) {
                return;
            }
            let mut engine = self.shared.engine.lock();
            let goes_on = self.act(&mut engine, woken);
            let bells = engine.common.objects.bells.take();
            // The lock is nearly free for the thread that takes it most, which should be the
            // program's.
            MutexGuard::unlock_fair(engine);
            bells.ring();
            if !goes_on {
                return;
            }
        }
    }

    /// Does what it has woken up for. Returns false if the device has failed.
    fn act(&mut self, engine: &mut MutexGuard<'_, Engine>, woken: Woken) -> bool {
        engine.look_at_descriptors();
        if engine.is_dead() {
            return false;
        }
        engine.wake_up();
        // A bell that stays rung would wake the thread again and again, whatever the mode.
        engine.common.out.shm.doorbell().inspect(|bell| bell.drain());
        self.mode = if self.program_polls(engine) {
            self.beside_polls(engine, woken)
        } else {
            self.in_place_of_polls(engine, woken)
        };
        true
    }

    /// Waits as the mode says.
    fn wait(&mut self) -> Woken {
        self.has_paused = false;
        let waits = &self.shared.waits;
        match self.mode {
            Mode::Polled => self.wait_for_a_lease(),
            Mode::Watching => self.watch_what_waits(),
            Mode::Busy(woken) => woken,
            Mode::Lingering => Woken::Otherwise,
            Mode::Sleeping(most) => waits.wait(most, false),
        }
    }

    /// Sleeps as long as a program that polls may pause, and looks whether it has paused now.
    fn wait_for_a_lease(&mut self) -> Woken {
        let shared = self.shared;
        let woken = shared.waits.wait(Some(LEASE - PAUSE), true);
        if woken != Woken::Nothing {
            return woken;
        }
        let calls = shared.calls.load(Ordering::Relaxed);
        let woken = shared.waits.wait(Some(PAUSE), true);
        self.has_paused = woken == Woken::Nothing && self.has_left(calls);
        woken
    }

    /// Whether the program has neither posted nor polled since it had made so many calls, and its
    /// last poll found something. One that found nothing has lost its processor, and polls on when
    /// it has one again.
    fn has_left(&self, calls: u64) -> bool {
        self.shared.calls.load(Ordering::Relaxed) == calls && self.has_work()
    }

    /// Whether the last call of the program was a post, or a poll that found something.
    fn has_work(&self) -> bool {
        self.shared.idle_polls.load(Ordering::Relaxed) == 0
    }

    /// Something waited for the program, which counted as polling.
    fn doubt(&mut self) {
        self.shared.take_over.doubt();
        self.calls.start_again();
    }

    /// Whether the program has polled since the last call, or posts and polls so much that it will.
    fn program_polls(&mut self, engine: &Engine) -> bool {
        let shared = self.shared;
        let activity = shared.activity.load(Ordering::Relaxed);
        let is_active = mem::replace(&mut self.activity, activity) != activity;
        let calls = shared.calls.load(Ordering::Relaxed);
        let waits_begun = shared.waits_begun.load(Ordering::Relaxed);
        let leases = self.calls.leases(calls, waits_begun, Instant::now());
        if shared.polling.load(Ordering::Relaxed) {
            return is_active;
        }
        if leases < shared.take_over.leases() {
            return false;
        }
        // ORDERING: the store before the load; `Hca::about_to_wait` adds before it loads.
        shared.polling.store(true, Ordering::SeqCst);
        if shared.waits_begun.load(Ordering::SeqCst) != waits_begun {
            shared.polling.store(false, Ordering::Relaxed);
            return false;
        }
        engine.common.out.shm.doorbell().inspect(|bell| bell.set_awake());
        true
    }

    /// While the program polls: does what its polls leave out.
    fn beside_polls(&mut self, engine: &mut MutexGuard<'_, Engine>, woken: Woken) -> Mode {
        // A bell rings mostly as the program begins to poll, and its polls wait for the lock.
        let is_rung = woken == Woken::Rung && !self.is_look_due(engine);
        if !is_rung {
            self.looked = Instant::now();
        }
        let moved = engine.progress(if is_rung { Turn::Rung } else { Turn::Everything });
        if self.has_paused {
            if moved {
                self.doubt();
                return self.in_place_of_polls(engine, Woken::Otherwise);
            }
        } else if woken == Woken::Nothing {
            self.shared.take_over.trust();
        }
        let acks_waited = engine.delayed_acks.take_waited();
        let ops_waited = engine.held.take_waited();
        if matches!(self.mode, Mode::Polled | Mode::Watching) {
            // For a program that polls between events, the sockets would be removed and added again
            // for each event.
            if self.is_watching && woken == Woken::Nothing {
                engine.receivers.udp.ignore(&self.shared.waits);
                self.is_watching = false;
            }
            // It has polled for as long as the thread slept, and withdrawing a promise is
            // expensive.
            engine.common.out.shm.doorbell().inspect(|bell| bell.set_polling());
        }
        if acks_waited || ops_waited { Mode::Watching } else { Mode::Polled }
    }

    /// While the program does not poll: makes progress in its place.
    fn in_place_of_polls(&mut self, engine: &mut MutexGuard<'_, Engine>, woken: Woken) -> Mode {
        let has_stopped = self.shared.polling.swap(false, Ordering::Relaxed);
        if has_stopped {
            // It has stopped. An occasional poll, as of a program that spins on memory between its
            // calls, does not count as polling.
            self.shared.empty_polls.store(0, Ordering::Relaxed);
        }
        if !self.is_watching {
            self.is_watching = engine.receivers.udp.watch(&self.shared.waits);
        }
        let moved = self.take_turns(engine, woken);
        if moved && has_stopped && self.has_work() {
            self.doubt();
        }
        if self.is_stream(engine) && self.linger(engine) {
            return Mode::Lingering;
        }
        engine.common.out.shm.doorbell().inspect(|bell| bell.set_sleeping());
        // What arrived between the last check and the flag has not rung. Datagrams wake the thread
        // however old they are.
        let last = if self.is_watching { Turn::Rung } else { Turn::Again };
        if engine.progress(last) || engine.has_ready() {
            // Everything else must be checked from time to time, however much arrives.
            let is_due = self.looked.elapsed() >= LEASE;
            return Mode::Busy(if is_due { Woken::Otherwise } else { Woken::Datagrams });
        }
        // Datagrams that wake nobody must be polled for.
        let most = if self.is_watching { LONGEST_SLEEP } else { LEASE };
        Mode::Sleeping(engine.fall_asleep(Some(most)))
    }

    /// Gives the engine turns while they find something. Returns whether the first one did.
    fn take_turns(&mut self, engine: &mut Engine, woken: Woken) -> bool {
        // To check what woke nobody costs a dozen system calls.
        let is_due = self.is_look_due(engine);
        let (first, then) = match woken {
            Woken::Rung if self.is_watching && !is_due => (Turn::Rung, Turn::Rung),
            Woken::Datagrams if !is_due => (Turn::Datagrams, Turn::Again),
            _ => {
                self.looked = Instant::now();
                (Turn::Everything, Turn::Again)
            }
        };
        let moved = engine.progress(first);
        if moved && self.shared.take_over.is_in_doubt() {
            // The program's polls had left this.
            self.shared.empty_polls.store(0, Ordering::Relaxed);
        }
        let mut goes_on = moved;
        for _ in 0..TURNS {
            if !goes_on {
                break;
            }
            goes_on = engine.progress(then);
        }
        moved
    }

    /// Whether everything must be checked although it woke nobody.
    fn is_look_due(&self, engine: &Engine) -> bool {
        engine.has_lost_peers() || self.looked.elapsed() >= LONGEST_BETWEEN_LOOKS
    }

    /// Whether a stream of datagrams has arrived since the last call.
    fn is_stream(&mut self, engine: &Engine) -> bool {
        let taken = engine.common.counters.rx_udp_packets();
        taken.wrapping_sub(mem::replace(&mut self.taken, taken)) >= STREAM
    }

    /// Takes datagrams until none has come for [`LINGER`]. Returns true if they still come after
    /// [`LEASE`], when everything else must be checked.
    ///
    /// The core is not yielded meanwhile: if the sender waits for it, the kernel finds the sender
    /// another core only while it waits, and not if the two take turns.
    fn linger(&mut self, engine: &mut MutexGuard<'_, Engine>) -> bool {
        let began = Instant::now();
        let mut heard = began;
        let mut goes_on = false;
        while !self.shared.polling.load(Ordering::Relaxed)
            && !self.shared.stop.load(Ordering::Acquire)
        {
            // A thread that waits for the lock has its turn.
            let bells = engine.common.objects.bells.take();
            let has_rung = !bells.is_empty();
            MutexGuard::unlocked_fair(engine, || bells.ring());
            if has_rung {
                // That took time, in which nobody listened.
                heard = Instant::now();
            }
            let moved = engine.progress(Turn::Again);
            let now = Instant::now();
            if moved {
                heard = now;
            }
            goes_on = now.duration_since(began) >= LEASE;
            if goes_on || now.duration_since(heard) >= LINGER {
                break;
            }
        }
        self.taken = engine.common.counters.rx_udp_packets();
        goes_on
    }

    /// Sleeps as long as a program that polls may pause, and makes sure that no acknowledgement and
    /// no operation waits that long.
    fn watch_what_waits(&mut self) -> Woken {
        let shared = self.shared;
        let mut left = LEASE;
        let mut seen = shared.activity.load(Ordering::Relaxed);
        let mut calls = shared.calls.load(Ordering::Relaxed);
        let mut last_held = shared.waits.held();
        loop {
            let woken = shared.waits.wait(Some(ACK_LOOK), true);
            left = left.saturating_sub(ACK_LOOK);
            if woken != Woken::Nothing || left.is_zero() {
                self.has_paused = woken == Woken::Nothing && self.has_left(calls);
                return woken;
            }
            // A poll releases acknowledgements that waited before it, so any that wait now are
            // younger than the last check. Taking the lock would be expensive for the program: the
            // lock is biased to it, and each of its calls is slower for a while after another
            // thread has taken it.
            calls = shared.calls.load(Ordering::Relaxed);
            let activity = shared.activity.load(Ordering::Relaxed);
            let held = shared.waits.held();
            let is_stuck = held.is_some() && held == mem::replace(&mut last_held, held);
            if mem::replace(&mut seen, activity) == activity || is_stuck {
                EngineGuard::new(shared.engine.lock()).progress_of_timers();
            }
        }
    }
}
