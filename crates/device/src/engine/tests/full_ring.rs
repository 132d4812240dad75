//! Many QPs that share a ring which is full.

use iba::{LKey, QpType, SendFlags, WrOpcode};
use transport::wr::{Data, SendWr, SgList, Sge};

use crate::engine::Turn;
use crate::ids::QpId;
use crate::rig::{self, Objects, Process, to_rts};

const QPS: usize = 8;
const MESSAGES: u64 = 64;

/// Two processes with some connections, whose rings hold a few messages.
fn crowd(test: &str) -> ([Process; 2], [Vec<QpId>; 2]) {
    let mut nic = rig::nic(test);
    nic.config.ring_size = 16 << 10;
    let mut both = Process::pair(&nic, QpType::Rc);
    let mut qps = both.each_ref().map(|process| vec![process.qp]);
    for _ in 1..QPS {
        let made = both.each_mut().map(|process| {
            let Process { engine, objects, .. } = process;
            objects.qp(engine, QpType::Rc)
        });
        for (end, process) in both.iter_mut().enumerate() {
            to_rts(&mut process.engine, made[end].0, QpType::Rc, &nic, made[1 - end].1);
            qps[end].push(made[end].0);
        }
    }
    (both, qps)
}

/// A message of which the ring holds a dozen.
fn message(objects: &Objects, wr_id: u64) -> SendWr {
    let sge = Sge { addr: 0, length: 1000, lkey: LKey(objects.mr.lkey) };
    let data = Data::Sges(SgList::from_iter([sge]));
    SendWr::new(wr_id, WrOpcode::Send, SendFlags::SIGNALED, data)
}

/// The completions so far, by QP: the message's number has it in its upper half.
fn completed(process: &mut Process, done: &mut [Vec<u64>]) {
    let Process { engine, objects: Objects { cq, .. }, .. } = process;
    for wr_id in rig::completed(engine, *cq) {
        done[(wr_id >> 32) as usize].push(wr_id & 0xffff_ffff);
    }
}

#[test]
fn all_of_them_go_on_and_none_falls_far_behind() {
    let ([mut one, mut other], [from, to]) = crowd("full-ring");
    let mut posted = [0; QPS];
    let (mut sent, mut received) = (vec![Vec::new(); QPS], vec![Vec::new(); QPS]);
    // The queue of completions is that of all QPs, so few are under way at a time.
    let mut turns = 0;
    while received.iter().any(|done| done.len() < MESSAGES as usize) {
        turns += 1;
        assert!(turns < 10_000, "{sent:?} {received:?}");
        for (qp, posted) in posted.iter_mut().enumerate() {
            let number = (qp as u64) << 32 | *posted;
            let is_due = *posted < MESSAGES && *posted < sent[qp].len() as u64 + 6;
            if is_due {
                let receive = other.objects.recv(number);
                other.engine.post_recv(to[qp], receive).expect("room for it");
                one.engine.post_send(from[qp], message(&one.objects, number)).expect("room for it");
                *posted += 1;
            }
        }
        one.engine.held.note_poll();
        one.engine.progress(Turn::Everything);
        completed(&mut one, &mut sent);
        if turns % 8 == 0 {
            other.engine.progress(Turn::Everything);
            completed(&mut other, &mut received);
            let counts = received.iter().map(Vec::len);
            let (least, most) = (counts.clone().min(), counts.max());
            assert!(most <= least.map(|least| 2 * least + 12), "{received:?}");
        }
    }
    for done in &received {
        assert!(done.iter().copied().eq(0..MESSAGES), "{done:?}");
    }
}

/// A request that is posted to a QP which waits for room is not tried at once, and is not lost.
#[test]
fn who_waits_for_room_is_tried_when_there_is_some() {
    let ([mut one, mut other], [from, to]) = crowd("full-wait");
    let mut posted = 0;
    while one.engine.qps.get(from[0]).expect("it exists").waits_for_ring().is_none() {
        assert!(posted < 60, "the ring is small");
        one.post(message(&one.objects, posted));
        posted += 1;
    }
    let before = one.engine.counters().tx_shm_packets;
    one.engine.post_send(from[1], message(&one.objects, 1000)).expect("room for it");
    one.post(message(&one.objects, posted));
    one.engine.progress(Turn::Everything);
    assert_eq!(one.engine.counters().tx_shm_packets, before);
    for qp in &to[..2] {
        for wr_id in 0..=posted {
            let receive = other.objects.recv(wr_id);
            other.engine.post_recv(*qp, receive).expect("room for it");
        }
    }
    let mut done = Vec::new();
    for _ in 0..100 {
        rig::run(&mut [&mut one.engine, &mut other.engine]);
        done.extend(one.completed());
        other.completed();
    }
    done.sort_unstable();
    assert!(done.iter().copied().eq((0..=posted).chain([1000])), "{done:?}");
}
