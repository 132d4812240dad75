//! Acknowledgements that nobody asked for: what holds them, and what sends them.

use iba::{AttrMask, QpAttr, QpState, QpType, SendFlags};

use crate::engine::Turn;
use crate::rig::{self, Process, run};
use crate::thresholds::{POLLS_PER_CLOCK, POLLS_TO_ACK};

/// Two processes; one has sent a message that asks for nothing, and the other has taken it.
fn pair(test: &str) -> [Process; 2] {
    let [mut one, mut other] = Process::pair_with(&rig::nic(test), QpType::Rc, false);
    run(&mut [&mut one.engine, &mut other.engine]);
    while other.engine.progress(Turn::Poll) {}
    other.engine.progress(Turn::Poll);
    send(&mut one, &mut other, 1);
    [one, other]
}

fn send(one: &mut Process, other: &mut Process, wr_id: u64) {
    other.post_recv(wr_id);
    let mut wr = rig::send(wr_id, None);
    wr.flags.remove(SendFlags::SIGNALED);
    one.post(wr);
    assert!(other.engine.progress(Turn::Poll), "it lies there");
    assert_eq!(other.completed(), [wr_id]);
}

fn is_acknowledged(one: &mut Process) -> bool {
    while one.engine.progress(Turn::Poll) {}
    one.engine.qps.get(one.qp).expect("it lives").qp.sends() == 0
}

#[test]
fn it_goes_after_some_polls_that_found_nothing() {
    let [mut one, mut other] = pair("unasked-polls");
    for _ in 1..POLLS_TO_ACK {
        other.engine.progress(Turn::Poll);
        assert!(!is_acknowledged(&mut one));
    }
    other.engine.progress(Turn::Poll);
    assert!(is_acknowledged(&mut one));
}

#[test]
fn one_answers_all_that_came() {
    let [mut one, mut other] = pair("unasked-one");
    let before = other.engine.counters().tx_shm_packets;
    for wr_id in 2..6 {
        send(&mut one, &mut other, wr_id);
    }
    for _ in 0..POLLS_TO_ACK {
        other.engine.progress(Turn::Poll);
    }
    assert!(is_acknowledged(&mut one));
    assert_eq!(other.engine.counters().tx_shm_packets - before, 1);
}

#[test]
fn it_goes_if_polls_always_find_something() {
    let [mut one, mut other] = pair("unasked-busy");
    let mut polls = 0;
    while !is_acknowledged(&mut one) {
        // Not from that QP, whose messages ask from time to time: the number of the turns decides.
        other.engine.progress(Turn::Poll);
        polls += 1;
        assert!(polls < 2 * POLLS_PER_CLOCK);
    }
}

#[test]
fn a_call_that_is_no_poll_sends_it() {
    let [mut one, mut other] = pair("unasked-call");
    other.engine.progress(Turn::Call);
    assert!(is_acknowledged(&mut one));
}

#[test]
fn the_background_thread_sends_it() {
    let [mut one, mut other] = pair("unasked-thread");
    other.engine.progress(Turn::Again);
    assert!(is_acknowledged(&mut one));
}

#[test]
fn while_the_background_thread_sleeps_none_is_held() {
    let [mut one, mut other] = pair("unasked-asleep");
    other.engine.progress(Turn::Again);
    assert!(is_acknowledged(&mut one));
    other.engine.fall_asleep(None);
    send(&mut one, &mut other, 2);
    assert!(is_acknowledged(&mut one), "nobody would send it if the program did nothing more");
}

#[test]
fn the_end_of_a_qp_sends_it() {
    let [mut one, mut other] = pair("unasked-destroy");
    let _ = other.engine.destroy_qp(other.qp).expect("nothing uses it");
    assert!(is_acknowledged(&mut one));

    let [mut one, mut other] = pair("unasked-error");
    let attr = QpAttr { state: QpState::Err, ..QpAttr::default() };
    let _ = other.engine.modify_qp(other.qp, &attr, AttrMask::STATE).expect("always");
    assert!(is_acknowledged(&mut one));
}

#[test]
fn a_request_takes_it_along() {
    let [mut one, mut other] = pair("unasked-request");
    one.post_recv(1);
    other.send(2);
    assert!(is_acknowledged(&mut one));
}
