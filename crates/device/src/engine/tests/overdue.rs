//! A timer that is due, and packets that arrived before.

use std::time::Duration;

use iba::QpType;

use crate::engine::Turn;
use crate::rig::{self, Process};

#[test]
fn an_answer_in_a_ring_that_is_not_known_yet_counts_as_in_time() {
    let [mut one, mut other] = Process::pair(&rig::nic("overdue"), QpType::Rc);
    other.post_recv(7);
    one.send(1);
    // The other one answers through a ring of its own.
    while other.engine.progress(Turn::Everything) {}
    assert_eq!(other.completed(), [7]);

    let sent = one.engine.counters().tx_shm_packets;
    one.engine.clock.pass(Duration::from_secs(60));
    // As a background thread does that finds work each time, and skips rare things.
    one.engine.progress(Turn::Again);
    assert_eq!(one.completed(), [1]);
    assert_eq!(one.engine.counters().tx_shm_packets, sent, "it was sent again");
}
