//! Two processes that take turns on a ring: what a poll that always finds something still does.

use std::time::Duration;

use iba::{QpType, Qpn};

use crate::engine::{Engine, POLLS_PER_CLOCK};
use crate::ids::QpId;
use crate::nic::NicInfo;
use crate::rig::{self, Objects, completed, post, run, send, to_rts};

/// A process with one QP of RC.
struct Process {
    engine: Engine,
    objects: Objects,
    qp: QpId,
    qpn: Qpn,
}

impl Process {
    fn new(nic: &NicInfo) -> Self {
        let mut engine = rig::engine(nic);
        let objects = Objects::new(&mut engine);
        let (qp, qpn) = objects.qp(&mut engine, QpType::Rc);
        Self { engine, objects, qp, qpn }
    }

    fn sends(&mut self, wr_id: u64) {
        post(&mut self.engine, self.qp, send(wr_id, None));
    }

    fn awaits(&mut self, wr_id: u64) {
        self.engine.post_recv(self.qp, self.objects.recv(wr_id)).expect("room for it");
    }

    fn completed(&mut self) -> Vec<u64> {
        completed(&mut self.engine, self.objects.cq)
    }

    /// Polls until nothing comes.
    fn polls(&mut self) {
        while self.engine.progress_for_poll() {}
    }
}

fn pair(test: &str) -> [Process; 2] {
    let nic = rig::nic(test);
    let [mut one, mut other] = [(); 2].map(|()| Process::new(&nic));
    to_rts(&mut one.engine, one.qp, QpType::Rc, &nic, other.qpn);
    to_rts(&mut other.engine, other.qp, QpType::Rc, &nic, one.qpn);
    run(&mut [&mut one.engine, &mut other.engine]);
    [one, other]
}

#[test]
fn messages_that_come_together_are_answered_together() {
    let [mut one, mut other] = pair("turns-answers");
    let answers = |process: &Process| process.engine.counters().tx_shm_packets;
    for (count, expected) in [(1, 1), (5, 2)] {
        other.polls();
        let before = answers(&other);
        for wr_id in 0..count {
            other.awaits(wr_id);
            one.sends(wr_id);
        }
        other.polls();
        // The first comes after an idle poll.
        assert_eq!(answers(&other) - before, expected, "to {count} messages");
        one.polls();
        assert_eq!(one.completed(), (0..count).collect::<Vec<_>>());
        assert_eq!(other.completed(), (0..count).collect::<Vec<_>>());
    }
}

#[test]
fn a_poll_that_always_finds_something_looks_at_the_clock_at_last() {
    let [mut one, mut other] = pair("turns-clock");
    let passed = Duration::from_millis(10);
    one.engine.clock.pass(passed);
    let before = one.engine.core.now;
    let mut polls = 0;
    while one.engine.core.now < before + passed {
        other.awaits(polls);
        one.sends(polls);
        other.polls();
        assert!(one.engine.progress_for_poll(), "the acknowledgement lies there");
        polls += 1;
        assert!(polls <= 2 * u64::from(POLLS_PER_CLOCK), "who polls looks at no timer");
    }
    // What comes goes before the clock, so that it took longer than where nothing comes.
    assert!(polls > u64::from(POLLS_PER_CLOCK));
}
