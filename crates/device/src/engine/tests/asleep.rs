//! Work is left only if a thread is awake to do it (`engine::alarm`).
//!
//! Here no thread polls. Programs post and then wait for events; their background threads do the
//! remaining work, and sleep except for what wakes them: the alarm, the bell, a deadline. Virtual
//! time passes only when all sleep.

use std::mem;
use std::time::Duration;

use iba::QpType;

use crate::engine::Engine;
use crate::engine::Turn;
use crate::engine::state::Alarm;
use crate::rig::Numbers;
use crate::rig::{self, Process};
use crate::waits::Woken;

/// More than a QP sends in one turn.
const MANY: u64 = 50;

/// The background thread of a process, as `hca` runs it while the program does not poll, until it
/// sleeps. Returns false if nothing woke it.
fn run_thread(engine: &mut Engine, asleep: &mut bool) -> bool {
    let woken = engine.common.out.shm.waits().wait(Some(Duration::ZERO), false);
    let is_due = until_alarm(engine).is_some_and(|wait| wait.is_zero());
    if *asleep && woken == Woken::Nothing && !is_due {
        return false;
    }
    engine.wake_up();
    engine.common.out.shm.doorbell().inspect(|bell| bell.drain());
    engine.progress(Turn::Everything);
    loop {
        engine.common.out.shm.doorbell().inspect(|bell| bell.set_sleeping());
        if !engine.progress(Turn::Again) && !engine.has_ready() {
            break;
        }
    }
    *asleep = true;
    engine.fall_asleep(None);
    true
}

/// How long until the thread wakes by itself.
fn until_alarm(engine: &Engine) -> Option<Duration> {
    match engine.alarm() {
        Alarm::At(at) => Some(at.since(engine.clock.now())),
        Alarm::Awake | Alarm::Never => None,
    }
}

/// Lets threads run, and time pass when all sleep, until `is_done` holds, nothing would ever wake
/// them, or `limit` has passed.
fn settle(
    pair: &mut [Process; 2],
    limit: Duration,
    mut is_done: impl FnMut(&mut [Process; 2]) -> bool,
) {
    for process in &mut *pair {
        // The last thing a program's call does is to drop its guard.
        process.engine.mind_alarm();
    }
    let mut asleep = pair.each_ref().map(|process| process.engine.alarm() != Alarm::Awake);
    let mut left = limit;
    loop {
        let mut ran = true;
        while mem::take(&mut ran) {
            for (process, asleep) in pair.iter_mut().zip(&mut asleep) {
                ran |= run_thread(&mut process.engine, asleep);
            }
        }
        if is_done(pair) {
            return;
        }
        let alarms = pair.iter().filter_map(|process| until_alarm(&process.engine));
        let Some(step) = alarms.min().filter(|step| *step <= left) else { return };
        left -= step;
        for process in &mut *pair {
            process.engine.clock.pass(step);
        }
    }
}

/// A connected pair whose threads sleep.
fn asleep(test: &str, qp_type: QpType, force_udp: bool, ring_size: u64) -> [Process; 2] {
    let mut nic = rig::nic(test);
    nic.config.force_udp = force_udp;
    nic.config.direct = false;
    nic.config.ring_size = ring_size;
    let mut pair = Process::pair(&nic, qp_type);
    for Process { engine, .. } in &mut pair {
        let Engine { common, receivers, .. } = engine;
        assert!(receivers.udp.watch(common.out.shm.waits()));
    }
    settle(&mut pair, Duration::ZERO, |_| true);
    pair
}

/// Posts many sends at once, as a program that leaves work behind.
fn post_many(sender: &mut Process, count: u64) {
    for wr_id in 0..count {
        sender.engine.queue_send(sender.qp, rig::send(wr_id, None)).expect("room for it");
    }
    sender.engine.kick(sender.qp);
}

#[test]
fn a_qp_that_has_more_to_send_than_one_turn_is_not_left_to_a_thread_that_sleeps() {
    let [mut one, _other] = asleep("asleep-turn", QpType::Uc, false, 1 << 18);
    one.engine.set_alarm(Alarm::Never);
    post_many(&mut one, MANY);
    assert!(one.engine.has_ready(), "one turn is not enough for all");
    assert_eq!(one.engine.next_deadline(), None, "no timer wakes the thread either");
    one.engine.mind_alarm();
    assert_eq!(one.engine.alarm(), Alarm::Awake);
}

#[test]
fn a_full_ring_is_tried_again_soon() {
    let mut pair = asleep("asleep-full", QpType::Uc, false, 1 << 14);
    let [one, _] = &mut pair;
    let mut sent = 0;
    while !one.engine.has_blocked() {
        one.engine.set_alarm(Alarm::Never);
        post_many(one, 1);
        sent += 1;
        let _ = one.completed();
        assert!(sent < 10_000, "the ring is never full");
    }
    assert_eq!(one.engine.alarm(), Alarm::Never);
    one.engine.mind_alarm();
    assert_eq!(one.engine.alarm(), Alarm::Awake);
    let wait = one.engine.fall_asleep(None);
    assert!(wait.is_some_and(|wait| wait <= Duration::from_millis(2)), "{wait:?}");
    // A thread that checks soon enough is not woken.
    let alarm = one.engine.alarm();
    one.engine.mind_alarm();
    assert_eq!(one.engine.alarm(), alarm);
    settle(&mut pair, Duration::from_secs(1), |[one, _]| !one.engine.has_blocked());
    assert!(!pair[0].engine.has_blocked());
}

/// Every send completes on every carrier, whichever thread sleeps when, although the programs make
/// no call except to post.
#[test]
fn requests_of_programs_that_wait_for_events_are_carried_out() {
    for seed in 1..=200 {
        let mut random = Numbers(0x9E37_79B9_7F4A_7C15 ^ seed << 32);
        let mut draw = |below: u64| random.next() % below;
        let qp_type = if draw(2) == 0 { QpType::Rc } else { QpType::Uc };
        let (force_udp, ring_size) = (draw(3) == 0, 1 << (14 + draw(5)));
        let mut pair = asleep("asleep-random", qp_type, force_udp, ring_size);
        for round in 0..10 {
            let (from, count) = (draw(2) as usize, 1 + draw(MANY));
            let ours = &mut pair[1 - from];
            for wr_id in 0..count {
                ours.post_recv(1000 + wr_id);
            }
            post_many(&mut pair[from], count);
            let mut completed = [Vec::new(), Vec::new()];
            settle(&mut pair, Duration::from_secs(30), |pair| {
                for (completed, process) in completed.iter_mut().zip(pair) {
                    completed.append(&mut process.completed());
                }
                completed.iter().all(|completed| completed.len() as u64 == count)
            });
            let [sent, received] = [from, 1 - from].map(|side| mem::take(&mut completed[side]));
            let what = format!("seed {seed} round {round}: {qp_type:?} udp {force_udp}");
            assert_eq!(sent, (0..count).collect::<Vec<_>>(), "{what}");
            assert_eq!(received, (1000..1000 + count).collect::<Vec<_>>(), "{what}");
        }
    }
}
