//! Progress: receives what has arrived and sends what can be sent, without waiting.
//!
//! The thread that holds the engine gives it a turn. Turns differ in what they check:
//!
//! | turn | the clock | rings, QPs that are ready | sockets | rare things | timers |
//! |---|---|---|---|---|---|
//! | [`Turn::Call`], [`Turn::Poll`] | sometimes | yes | busy ones | no | with the clock |
//! | [`Turn::Rung`] | yes | yes | busy ones | no | yes |
//! | [`Turn::Again`] | yes | yes | likely ones | no | yes |
//! | [`Turn::Datagrams`] | yes | yes | all | no | yes |
//! | [`Turn::Everything`] | yes | yes | all | yes | yes |
//!
//! A turn of the program reads the clock once in [`POLLS_PER_CLOCK`] turns that find nothing. Busy
//! sockets are those where something arrived recently; likely ones are these and, occasionally,
//! others.
//!
//! Rare things are peers that come and go, the netdev, names of services, steering
//! ([`Engine::housekeeping`]). A table in `hca::background` says when the thread has its turns.

use super::Engine;
use crate::carrier::udp::Look;
use crate::thresholds::{LOOKS_PER_CLOCK, LOOKS_PER_SOCKET, POLLS_PER_CLOCK};

/// The caller that gives the engine a turn, and what the turn checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "the table above has them all")]
pub enum Turn {
    /// A call of the program.
    Call,
    /// A call of a program that polls, whose acknowledgements may wait for its next call.
    Poll,
    /// The background thread, when its bell rang: sockets that have datagrams wake it, too, or the
    /// program's polls find them.
    Rung,
    /// The background thread, right after it found something.
    Again,
    /// The background thread, when datagrams came to any socket.
    Datagrams,
    /// The background thread, from time to time.
    Everything,
}

impl Engine {
    /// Receives what has arrived and sends what can be sent, without waiting. Returns whether there
    /// was anything.
    #[inline]
    pub fn progress(&mut self, turn: Turn) -> bool {
        if self.is_dead() {
            return false;
        }
        match turn {
            Turn::Call => {
                let moved = self.carry_out_held() | self.take_turn(false);
                self.send_unasked_acks();
                moved
            }
            Turn::Poll => self.carry_out_held() | self.take_turn(true),
            Turn::Rung | Turn::Again | Turn::Datagrams | Turn::Everything => {
                self.take_turn_of_thread(turn)
            }
        }
    }

    fn take_turn_of_thread(&mut self, turn: Turn) -> bool {
        self.common.now = self.clock.now();
        self.send_delayed_acks();
        self.send_unasked_acks();
        let mut moved = self.carry_out_overdue();
        moved |= turn == Turn::Everything && self.housekeeping();
        if self.is_dead() {
            return false;
        }
        let (look, is_rung) = match turn {
            Turn::Datagrams | Turn::Everything => (Look::Everywhere, false),
            _ => (Look::Likely, turn == Turn::Rung),
        };
        moved |= self.receive_local();
        if !is_rung || self.receivers.udp.is_hot() {
            moved |= self.receive_udp(look);
        }
        if !is_rung || self.receivers.frames_are_hot() {
            moved |= self.receive_frames();
        }
        moved |= self.run_cm();
        moved |= self.run_ready();
        moved |= self.fire_timers();
        self.send_unasked_acks();
        moved
    }

    /// A turn of the program.
    #[inline]
    fn take_turn(&mut self, poll: bool) -> bool {
        self.polls.since_clock += 1;
        let is_clock_due = self.polls.since_clock >= POLLS_PER_CLOCK;
        let mut is_idle = false;
        if self.is_quiet_beside_rings() {
            is_idle = self.receivers.shm.is_idle();
            if !is_idle {
                // Packets go before the clock, but not again and again.
                let may_wait = self.polls.since_clock < 2 * POLLS_PER_CLOCK;
                // If several packets arrive between two polls, their senders want throughput.
                if std::mem::take(&mut self.polls.takes_turns)
                    && may_wait
                    && self.receive_by_fast_path()
                {
                    return true;
                }
            } else {
                self.polls.takes_turns = true;
                self.count_idle_poll();
                if !is_clock_due {
                    return self.receivers.udp.is_hot() && self.receive_hot_udp(poll);
                }
            }
        }
        let mut is_socket_due = false;
        if is_clock_due {
            self.send_unasked_acks();
            self.polls.since_clock = 0;
            self.polls.clocks = self.polls.clocks.wrapping_add(1);
            is_socket_due = self.polls.clocks.is_multiple_of(LOOKS_PER_SOCKET);
        }
        self.common.now = self.clock.now();
        self.polls.looks = 0;
        if is_idle && !is_socket_due && !self.receivers.udp.is_hot() {
            // A packet that arrives while the clock is read can take the fast path at the next
            // poll.
            return self.run_cm() | self.fire_timers();
        }
        self.send_delayed_acks();
        self.delayed_acks.set_polled(poll);
        let moved = self.progress_now(is_clock_due, is_socket_due);
        self.delayed_acks.set_polled(false);
        self.keep_unasked_acks();
        moved
    }

    /// Takes datagrams if a stream of them arrives, and nothing else. Only they need the time.
    fn receive_hot_udp(&mut self, poll: bool) -> bool {
        self.delayed_acks.set_polled(poll);
        let moved = self.receive_udp(Look::Likely);
        self.delayed_acks.set_polled(false);
        if !moved {
            self.polls.looks += 1;
            if self.polls.looks >= LOOKS_PER_CLOCK {
                self.polls.looks = 0;
                self.common.now = self.clock.now();
            }
            // Other work of the connection manager waits for a poll that reads the clock.
            return false;
        }
        self.run_cm();
        true
    }

    fn progress_now(&mut self, is_clock_due: bool, is_socket_due: bool) -> bool {
        let mut moved = self.receive_local();
        moved |= self.run_ready();
        if self.receivers.udp.is_hot() || is_socket_due {
            moved |= self.receive_udp(Look::Likely);
        }
        if self.receivers.frames_are_hot() || is_socket_due {
            moved |= self.receive_frames();
        }
        moved |= self.run_cm();
        if self.common.out.udp.front().is_some() && self.schedule.ready.is_empty() {
            self.flush_udp();
        }
        moved | (is_clock_due && self.fire_timers())
    }

    /// Whether nothing is to be sent, and nothing to be received except from rings, as far as
    /// memory shows.
    #[inline]
    fn is_quiet_beside_rings(&self) -> bool {
        self.schedule.ready.is_empty()
            && self.schedule.blocked.is_empty()
            && self.common.out.loopback.is_empty()
            && self.common.out.udp.front().is_none()
            && self.delayed_acks.is_empty()
            && !self.receivers.frames_are_hot()
    }
}
