//! Two processes that take turns on a ring: what a poll still does if it always finds something.

use std::time::Duration;

use iba::QpType;

use crate::engine::Turn;
use crate::rig::{self, Process, run};
use crate::thresholds::POLLS_PER_CLOCK;

/// Polls until nothing comes.
fn poll_all(process: &mut Process) {
    while process.engine.progress(Turn::Poll) {}
}

fn pair(test: &str) -> [Process; 2] {
    let [mut one, mut other] = Process::pair(&rig::nic(test), QpType::Rc);
    run(&mut [&mut one.engine, &mut other.engine]);
    [one, other]
}

#[test]
fn messages_that_arrive_together_are_answered_together() {
    let [mut one, mut other] = pair("turns-answers");
    let answers = |process: &Process| process.engine.counters().tx_shm_packets;
    for (count, expected) in [(1, 1), (5, 2)] {
        poll_all(&mut other);
        let before = answers(&other);
        for wr_id in 0..count {
            other.post_recv(wr_id);
            one.send(wr_id);
        }
        poll_all(&mut other);
        // The first comes after an idle poll.
        assert_eq!(answers(&other) - before, expected, "to {count} messages");
        poll_all(&mut one);
        assert_eq!(one.completed(), (0..count).collect::<Vec<_>>());
        assert_eq!(other.completed(), (0..count).collect::<Vec<_>>());
    }
}

#[test]
fn a_poll_that_always_finds_something_still_reads_the_clock_in_the_end() {
    let [mut one, mut other] = pair("turns-clock");
    let passed = Duration::from_millis(10);
    one.engine.clock.pass(passed);
    let before = one.engine.common.now;
    let mut polls = 0;
    while one.engine.common.now < before + passed {
        other.post_recv(polls);
        one.send(polls);
        poll_all(&mut other);
        assert!(one.engine.progress(Turn::Poll), "the acknowledgement lies there");
        polls += 1;
        assert!(polls <= 2 * u64::from(POLLS_PER_CLOCK), "a caller that polls looks at no timer");
    }
    // Incoming records go before the clock, so this took longer than if nothing came.
    assert!(polls > u64::from(POLLS_PER_CLOCK));
}
