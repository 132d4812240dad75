//! Delayed acknowledgements on a wire, which wait for the program's answer.

use std::time::{Duration, Instant};

use iba::{AckTimeout, AttrMask, QpAttr, QpState, QpType};

use crate::engine::Turn;
use crate::rig::{self, Process, run};

/// The `wr_id` of every receive.
const RECEIVE: u64 = 100;
/// The time that a program takes to answer at once.
const SOON: Duration = Duration::from_micros(1);
/// Longer than a datagram takes, and longer than the ACK timeout.
const PATIENCE: Duration = Duration::from_millis(300);
/// Longer than any acknowledgement waits for an answer.
const LATE: Duration = Duration::from_millis(1);

impl Process {
    fn owes_answers(&self) -> bool {
        self.engine.qps.get(self.qp).expect("it lives").qp.owes_answers()
    }

    fn sent(&self) -> u64 {
        self.engine.counters().tx_udp_packets
    }

    /// Polls until a message of the peer has arrived, as a program does. A packet that the kernel
    /// gave to the peer's socket comes back through a ring.
    fn await_message(&mut self, peer: &mut Self) {
        let mut got = Vec::new();
        let mut began = Instant::now();
        while !got.contains(&RECEIVE) {
            if began.elapsed() >= PATIENCE {
                // There was no ring yet: the packet is sent again.
                peer.engine.clock.pass(PATIENCE);
                began = Instant::now();
            }
            peer.engine.progress(Turn::Everything);
            self.engine.progress(Turn::Poll);
            got.extend(self.completed());
        }
        self.post_recv(RECEIVE);
    }

    /// Checks again, as the background thread does.
    fn look(&mut self) {
        self.engine.progress_of_timers();
    }
}

/// Two processes of one host that treat each other as processes of different hosts.
fn pair(test: &str) -> [Process; 2] {
    let mut nic = rig::nic(test);
    nic.config.force_udp = true;
    let mut pair = Process::pair(&nic, QpType::Rc);
    pair.iter_mut().for_each(|process| process.post_recv(RECEIVE));
    // Each learns which socket is whose, or has a ring for packets that reach the wrong one.
    let [one, two] = &mut pair;
    one.send(50);
    two.await_message(one);
    two.send(51);
    one.await_message(two);
    pair
}

/// Each sends after it has received, until the policy trusts both and each knows which socket is
/// whose. The first one has received last.
fn play([one, two]: &mut [Process; 2]) {
    for wr_id in 0.. {
        one.send(wr_id);
        two.await_message(one);
        two.engine.clock.pass(SOON);
        let has_waited = two.owes_answers();
        two.send(wr_id);
        one.await_message(two);
        one.engine.clock.pass(SOON);
        let is_steering = [&one, &two].iter().any(|side| side.engine.receivers.udp.wants_upkeep());
        if has_waited && one.owes_answers() && !is_steering {
            return;
        }
    }
}

#[test]
fn a_program_that_answers_at_once_sends_the_acknowledgement_with_the_answer() {
    let mut pair = pair("late-joined");
    play(&mut pair);
    let [one, two] = &mut pair;
    let before = one.sent();
    assert!(one.owes_answers());
    one.send(30);
    assert_eq!(one.sent(), before + 2, "the request, and the acknowledgement");
    two.await_message(one);
    run(&mut [&mut one.engine, &mut two.engine]);
    assert_eq!(one.completed().last(), Some(&30));
}

#[test]
fn a_program_that_did_not_answer_before_acknowledges_at_once() {
    let [one, two] = &mut pair("late-stranger");
    let before = two.sent();
    one.send(1);
    two.await_message(one);
    assert_eq!(two.sent(), before + 1);
}

#[test]
fn a_poll_that_finds_nothing_releases_the_acknowledgement_and_the_next_does_not_wait() {
    let mut pair = pair("late-idle");
    play(&mut pair);
    let [one, two] = &mut pair;
    let before = one.sent();
    one.engine.progress(Turn::Poll);
    assert_eq!(one.sent(), before + 1);
    // The program is no longer trusted.
    run(&mut [&mut two.engine]);
    two.send(31);
    one.await_message(two);
    assert_eq!(one.sent(), before + 2);
}

#[test]
fn the_background_thread_releases_an_overdue_acknowledgement() {
    let mut pair = pair("late-overdue");
    play(&mut pair);
    let [one, _two] = &mut pair;
    let before = one.sent();
    assert!(one.engine.delayed_acks.take_waited(), "the thread must check more often");
    one.look();
    assert_eq!(one.sent(), before, "it is not yet overdue");
    one.engine.clock.pass(LATE);
    one.look();
    assert_eq!(one.sent(), before + 1);
}

#[test]
fn a_late_answer_does_not_count() {
    let mut pair = pair("late-slow");
    play(&mut pair);
    let [one, two] = &mut pair;
    // The first time, the poll may have been late.
    for wr_id in [30, 31] {
        one.engine.clock.pass(LATE);
        let before = one.sent();
        let waits = u64::from(one.owes_answers());
        one.send(wr_id);
        assert_eq!(one.sent(), before + 1 + waits);
        two.await_message(one);
        two.send(wr_id);
        one.await_message(two);
    }
    assert!(!one.owes_answers(), "from now on at once");
}

#[test]
fn a_timer_starts_when_its_packet_is_sent_however_old_the_last_clock_reading() {
    let mut pair = pair("late-timer");
    play(&mut pair);
    let [one, _two] = &mut pair;
    one.engine.clock.pass(PATIENCE);
    one.send(30);
    let qp = &one.engine.qps.get(one.qp).expect("it lives").qp;
    let timeout = qp.ack_timeout().expect("it has one");
    assert_eq!(qp.poll_timeout(), Some(one.engine.clock.now() + timeout));
    assert!(one.engine.next_deadline() <= qp.poll_timeout(), "it is looked at then");
}

#[test]
fn a_program_that_polls_late_and_then_answers_still_answers_at_once() {
    let mut pair = pair("late-poll");
    play(&mut pair);
    let [one, two] = &mut pair;
    for wr_id in 30..50 {
        assert!(one.owes_answers());
        one.send(wr_id);
        two.await_message(one);
        two.send(wr_id);
        one.engine.clock.pass(LATE);
        one.await_message(two);
        one.engine.clock.pass(SOON);
    }
}

#[test]
fn a_qp_with_a_short_timeout_acknowledges_at_once() {
    let mut pair = pair("late-hurry");
    play(&mut pair);
    let [one, two] = &mut pair;
    let timeout = AckTimeout::from_code(10).expect("4 ms");
    for (state, more) in [
        (QpState::Sqd, AttrMask::empty()),
        (QpState::Sqd, AttrMask::TIMEOUT),
        (QpState::Rts, AttrMask::empty()),
    ] {
        let attr = QpAttr { state, timeout, ..QpAttr::default() };
        let _ = one.engine.modify_qp(one.qp, &attr, AttrMask::STATE | more).expect("it may");
    }
    one.send(30);
    two.await_message(one);
    two.send(31);
    one.await_message(two);
    assert!(!one.owes_answers());
}

#[test]
fn a_qp_that_is_destroyed_acknowledges_first() {
    let mut pair = pair("late-destroyed");
    play(&mut pair);
    let [one, two] = &mut pair;
    let before = one.sent();
    let _ = one.engine.destroy_qp(one.qp).expect("nothing uses it");
    assert_eq!(one.sent(), before + 1);
    run(&mut [&mut two.engine]);
    assert!(!two.completed().is_empty(), "the peer's request is done");
}
