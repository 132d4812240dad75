//! Datagrams that fill the queue of the carrier before the QP had its turn, and those that wait for
//! others of their train.

use iba::{QpType, SendFlags, WrOpcode};
use transport::wr::{Data, SendWr};

use crate::engine::Turn;
use crate::objects::cq::Armed;
use crate::rig::{self, Process};
use crate::thresholds::{LONGEST_HOLD, POSTS_AT_ONCE};

/// More trains than the queue holds, twice.
const MESSAGES: u64 = 12;

/// The background thread sleeps when a turn moved nothing and no QP is ready.
#[test]
fn a_qp_goes_on_at_once_if_the_socket_took_what_filled_the_queue() {
    for qp_type in [QpType::Uc, QpType::Ud] {
        let mut nic = rig::nic(&format!("trains-{qp_type:?}"));
        nic.config.force_udp = true;
        let [mut one, other] = Process::pair(&nic, qp_type);
        for number in 1..=MESSAGES {
            // Each is longer than the one before, so it needs a train of its own.
            let data = Data::Inline((0..4 * number as u8).collect());
            let ud = rig::datagram(number, &nic, other.qpn).ud.filter(|_| qp_type == QpType::Ud);
            let wr = SendWr::new(number, WrOpcode::Send, SendFlags::INLINE, data);
            let entry = one.engine.qps.get_mut(one.qp).expect("it lives");
            entry.qp.post_send(SendWr { ud, ..wr }).expect("room");
        }
        one.engine.kick(one.qp);
        while one.engine.progress(Turn::Again) || one.engine.has_ready() {}
        assert_eq!(one.engine.counters().tx_udp_packets, MESSAGES, "{qp_type:?}");
    }
}

/// Two processes that treat each other as processes of different hosts; the first only sends.
fn sender(test: &str) -> Process {
    let mut nic = rig::nic(test);
    nic.config.force_udp = true;
    let [one, _other] = Process::pair(&nic, QpType::Rc);
    one
}

/// Posts this many sends, and returns how many packets have left.
fn post(process: &mut Process, count: u32) -> u64 {
    for wr_id in 0..count {
        process.send(u64::from(wr_id));
    }
    process.engine.counters().tx_udp_packets
}

#[test]
fn packets_of_a_program_that_posts_many_share_a_train_until_it_polls() {
    let mut one = sender("trains-many");
    let at_once = u64::from(POSTS_AT_ONCE);
    assert_eq!(post(&mut one, POSTS_AT_ONCE), at_once, "nobody knows that there are more");
    assert_eq!(post(&mut one, 6), at_once, "these wait");
    one.engine.progress(Turn::Poll);
    assert_eq!(one.engine.counters().tx_udp_packets, at_once + 6);
    // A program that posts one and polls waits for nothing.
    one.engine.held.note_poll();
    assert_eq!(post(&mut one, 1), at_once + 7);
}

/// Those of other operations, and datagrams, do not take the fast path.
#[test]
fn packets_of_every_kind_wait_for_others_of_their_train() {
    let mut one = sender("trains-kinds");
    let at_once = u64::from(POSTS_AT_ONCE);
    for count in 1..=at_once + 2 {
        let data = Data::Inline((0..8).collect());
        one.post(SendWr::new(count, WrOpcode::SendWithImm, SendFlags::INLINE, data));
        assert_eq!(one.engine.counters().tx_udp_packets, count.min(at_once));
    }
    one.engine.progress(Turn::Poll);
    assert_eq!(one.engine.counters().tx_udp_packets, at_once + 2);

    let mut nic = rig::nic("trains-datagrams");
    nic.config.force_udp = true;
    let mut one = Process::new(&nic, QpType::Ud);
    one.connect(&nic, iba::Qpn::new(0));
    let other = Process::new(&nic, QpType::Ud).qpn;
    for count in 1..=at_once + 2 {
        one.post(rig::datagram(count, &nic, other));
        assert_eq!(one.engine.counters().tx_udp_packets, count.min(at_once));
    }
    one.engine.progress(Turn::Poll);
    assert_eq!(one.engine.counters().tx_udp_packets, at_once + 2);
}

#[test]
fn a_train_that_cannot_grow_does_not_wait() {
    let mut one = sender("trains-full");
    let at_once = u64::from(POSTS_AT_ONCE);
    assert_eq!(post(&mut one, POSTS_AT_ONCE + 2), at_once);
    // Only the last packet of a train may be shorter, and none longer.
    let data = Data::Inline((0..48).collect());
    one.post(SendWr::new(9, WrOpcode::Send, SendFlags::INLINE, data));
    assert_eq!(one.engine.counters().tx_udp_packets, at_once + 3);
}

#[test]
fn the_thread_sends_a_train_that_waited_too_long_and_the_next_do_not_wait() {
    let mut one = sender("trains-late");
    let at_once = u64::from(POSTS_AT_ONCE);
    assert_eq!(post(&mut one, POSTS_AT_ONCE + 2), at_once);
    one.engine.progress_of_timers();
    assert_eq!(one.engine.counters().tx_udp_packets, at_once, "it is not due");
    one.engine.clock.pass(LONGEST_HOLD);
    one.engine.progress_of_timers();
    assert_eq!(one.engine.counters().tx_udp_packets, at_once + 2);
    assert_eq!(post(&mut one, 3), at_once + 5, "the program does not poll for what it posts");
}

/// It will sleep until an event comes.
#[test]
fn nothing_waits_for_a_program_that_armed_its_queue() {
    let mut one = sender("trains-armed");
    one.engine.common.objects.cqs.get_mut(one.objects.cq.index()).expect("it lives").armed =
        Armed::Any;
    let count = POSTS_AT_ONCE + 5;
    assert_eq!(post(&mut one, count), u64::from(count));
}
