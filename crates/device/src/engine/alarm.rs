//! When some thread must look at the engine again, and how that is ensured.
//!
//! One rule: **work is left only if a thread is awake to do it.** The background thread does what a
//! call leaves behind (a QP that had its turn and has more to send, one whose carrier is full, a
//! timer) if the program makes no further call. So the thread notes how long it sleeps when it goes
//! to sleep ([`Alarm`]), and each guard of the engine that is dropped compares that with the
//! remaining work ([`Engine::mind_alarm`]), and wakes the thread once the engine is unlocked.
//! Nothing else wakes the thread for work of the engine itself, and no call needs to do so.
//!
//! ```text
//!   left behind                            looked at     by whom
//!   ready, packets to this process         at once       the thread is woken
//!   blocked, held back                     within 2 ms   the thread's sleep is no longer than that
//!   steering unclear                       within 10 ms  as above, or later: bells, datagrams
//!   timers, events, operations that wait   when due      the thread's sleep ends there
//! ```
//!
//! While the program polls, the thread checks every 2 ms anyway, and counts as awake. Operations
//! that wait for others have it check more often ([`Engine::holds`]).

use std::cmp::Reverse;
use std::time::Duration;

use transport::Time;

use super::Engine;
use super::state::Alarm;
use crate::thresholds::LOOK_AGAIN;

/// The remaining work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    /// Something that only waits for a turn.
    Now,
    /// Something that may continue at any moment, besides the next deadline.
    Soon(Option<Time>),
    /// The next deadline.
    At(Option<Time>),
}

impl Engine {
    /// When progress is needed next even if nothing arrives.
    pub(super) fn next_deadline(&self) -> Option<Time> {
        let due = &self.common.objects.due;
        let timer = self.schedule.timers.peek().map(|Reverse((at, _))| *at);
        let event = due.moderated.iter().map(|(at, _)| *at).min();
        let overrun = (!due.overruns.is_empty()).then_some(self.common.now);
        let seen = self.common.observers_deadline();
        let cm = self.cm.next_deadline();
        let udp = self.receivers.udp.deadline(&self.common.out.udp);
        [self.held.deadline(), event, overrun, seen, cm, udp].into_iter().fold(timer, earlier)
    }

    /// Whether a QP waits only for its turn, or for room that no other thread makes.
    pub(crate) fn has_ready(&self) -> bool {
        !self.schedule.ready.is_empty() || !self.common.out.loopback.is_empty()
    }

    /// Whether a QP waits for room in a carrier, or a packet for a receive.
    pub(super) fn has_blocked(&self) -> bool {
        let holds_frame = self.receivers.frames.as_ref().is_some_and(|f| f.is_holding);
        !self.schedule.blocked.is_empty()
            || self.receivers.shm.is_holding()
            || holds_frame
            || self.cm.has_unsent()
    }

    fn left(&self) -> Left {
        if self.is_dead() {
            return Left::At(None);
        }
        if self.has_ready() {
            return Left::Now;
        }
        let deadline = self.next_deadline();
        let is_soon = self.has_blocked() || self.receivers.udp.wants_upkeep();
        if is_soon { Left::Soon(deadline) } else { Left::At(deadline) }
    }

    /// The background thread goes to sleep. Returns how long it may; it sleeps a moment
    /// after it has unlocked the engine, when it has rung what is due.
    ///
    /// `at_most` bounds that if not everything that should wake it can.
    pub(crate) fn fall_asleep(&mut self, at_most: Option<Duration>) -> Option<Duration> {
        let now = self.clock.now();
        let until = |deadline: Option<Time>| deadline.map(|at| at.since(now));
        let wait = match self.left() {
            Left::Now => Some(Duration::ZERO),
            Left::Soon(deadline) => Some(until(deadline).unwrap_or(LOOK_AGAIN).min(LOOK_AGAIN)),
            Left::At(deadline) => until(deadline),
        };
        let wait = wait.into_iter().chain(at_most).min();
        self.alarm = wait.map_or(Alarm::Never, |wait| Alarm::At(now + wait));
        wait
    }

    /// The background thread is awake.
    pub(crate) fn wake_up(&mut self) {
        self.alarm = Alarm::Awake;
    }

    /// Whether the background thread is awake, or checks again soon since the program polls.
    #[inline]
    pub(super) fn is_alarm_off(&self) -> bool {
        self.alarm == Alarm::Awake
    }

    /// Wakes the background thread if it sleeps beyond what the program leaves behind.
    #[inline]
    pub(crate) fn mind_alarm(&mut self) {
        if self.alarm != Alarm::Awake {
            self.compare_alarm();
        }
    }

    /// Wakes the background thread once the engine is unlocked.
    pub(crate) fn wake_thread(&mut self) {
        self.common.objects.bells.of_thread(self.common.out.shm.waits());
    }

    fn compare_alarm(&mut self) {
        let sleeps_beyond = |deadline| match self.alarm {
            Alarm::Awake => false,
            Alarm::At(alarm) => deadline < alarm,
            Alarm::Never => true,
        };
        let is_beyond = match self.left() {
            Left::Now => true,
            Left::Soon(deadline) => {
                sleeps_beyond(self.clock.now() + LOOK_AGAIN) || deadline.is_some_and(sleeps_beyond)
            }
            Left::At(deadline) => deadline.is_some_and(sleeps_beyond),
        };
        if is_beyond {
            self.alarm = Alarm::Awake;
            self.wake_thread();
        }
    }

    #[cfg(test)]
    pub(super) fn set_alarm(&mut self, alarm: Alarm) {
        self.alarm = alarm;
    }

    #[cfg(test)]
    pub(super) fn alarm(&self) -> Alarm {
        self.alarm
    }
}

/// The earlier of two times.
fn earlier(one: Option<Time>, other: Option<Time>) -> Option<Time> {
    match (one, other) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    }
}
