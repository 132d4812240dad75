//! Short operations that wait for others (`engine::held`).

use std::time::{Duration, Instant};

use iba::{Access, AttrMask, LKey, QpAttr, QpState, QpType, RKey, SendFlags, WcStatus, WrOpcode};
use transport::RUN;
use transport::wr::{Data, SendWr, SgList, Sge};
use umem::{HostBuf, Umem};

use crate::MrInfo;
use crate::engine::Turn;
use crate::rig::{self, Process, run};
use crate::thresholds::{LONGEST_HOLD, POSTS_AT_ONCE};

/// How many go at once before others wait.
const FIRST: u64 = POSTS_AT_ONCE as u64;
/// Bytes of an operation.
const SIZE: u32 = 24;
/// From one operation's memory to the next one's.
const STRIDE: u64 = 64;

/// A process that writes and reads ordinary memory of another one, and that memory.
struct Pair {
    own: Process,
    peer: Process,
    local: (HostBuf, MrInfo),
    remote: (HostBuf, MrInfo),
}

fn ordinary(process: &mut Process) -> (HostBuf, MrInfo) {
    let buffer = HostBuf::anonymous(1 << 16).expect("memory");
    let access = Access::LOCAL_WRITE | Access::REMOTE;
    let mr = process.engine.reg_mr(process.objects.pd, Umem::host(&buffer), 0, access);
    (buffer, mr.expect("good memory"))
}

impl Pair {
    fn new(test: &str) -> Self {
        let nic = rig::nic(test);
        let [mut own, mut peer] = Process::pair(&nic, QpType::Rc);
        let (local, remote) = (ordinary(&mut own), ordinary(&mut peer));
        let mut pair = Self { own, peer, local, remote };
        for at in 0..1 << 10 {
            let (word, mark) = (at * 7 + 1, u64::MAX - at);
            pair.local.0.write(at as usize * 8, &word.to_ne_bytes()).expect("inside");
            pair.remote.0.write(at as usize * 8, &mark.to_ne_bytes()).expect("inside");
        }
        // The first operation finds the peer, the second that its region is ordinary memory.
        for wr_id in [1000, 1001] {
            pair.post(WrOpcode::RdmaRead, wr_id);
            pair.run();
            assert_eq!(pair.poll(), [wr_id]);
        }
        pair
    }

    fn request(&self, opcode: WrOpcode, wr_id: u64) -> SendWr {
        let at = wr_id * STRIDE % (1 << 15);
        let sge = Sge { addr: at, length: SIZE, lkey: LKey(self.local.1.lkey) };
        let data = Data::Sges(SgList::from_iter([sge]));
        let wr = SendWr::new(wr_id, opcode, SendFlags::SIGNALED, data);
        SendWr { remote_addr: at, rkey: RKey(self.remote.1.rkey), ..wr }
    }

    fn post(&mut self, opcode: WrOpcode, wr_id: u64) {
        let wr = self.request(opcode, wr_id);
        self.own.post(wr);
    }

    fn write(&mut self, wr_ids: impl IntoIterator<Item = u64>) {
        wr_ids.into_iter().for_each(|wr_id| self.post(WrOpcode::RdmaWrite, wr_id));
    }

    /// Whether a WRITE has arrived whole.
    fn has_arrived(&self, wr_id: u64) -> bool {
        let at = (wr_id * STRIDE % (1 << 15)) as usize;
        let [mut ours, mut theirs] = [[0; SIZE as usize]; 2];
        self.local.0.read(at, &mut ours).expect("inside");
        self.remote.0.read(at, &mut theirs).expect("inside");
        ours == theirs
    }

    fn arrived(&self, wr_ids: impl IntoIterator<Item = u64>) -> Vec<u64> {
        wr_ids.into_iter().filter(|wr_id| self.has_arrived(*wr_id)).collect()
    }

    /// How many wait.
    fn waiting(&self) -> usize {
        self.own.engine.qps.get(self.own.qp).expect("it lives").qp.sends()
    }

    fn run(&mut self) {
        run(&mut [&mut self.own.engine, &mut self.peer.engine]);
    }

    /// A poll of the program that finds nothing at first.
    fn poll(&mut self) -> Vec<u64> {
        self.own.engine.held.note_poll();
        self.own.engine.progress(Turn::Poll);
        self.own.completed()
    }

    /// The thread looks when no operation may wait any longer.
    fn look_late(&mut self) {
        self.own.engine.clock.pass(LONGEST_HOLD);
        self.own.engine.progress_of_timers();
    }
}

#[test]
fn the_first_go_at_once_and_the_others_together_at_a_poll() {
    let mut pair = Pair::new("held-poll");
    pair.write(0..20);
    assert_eq!(pair.arrived(0..20), Vec::from_iter(0..FIRST));
    assert_eq!(pair.waiting() as u64, 20 - FIRST);
    let before = pair.own.engine.counters();
    assert_eq!(pair.poll(), Vec::from_iter(0..20), "in order");
    assert_eq!(pair.arrived(0..20), Vec::from_iter(0..20));
    let after = pair.own.engine.counters();
    assert_eq!(after.direct_operations - before.direct_operations, 20 - FIRST);
    assert_eq!(after.direct_bytes - before.direct_bytes, (20 - FIRST) * u64::from(SIZE));
    assert_eq!(after.tx_shm_packets, before.tx_shm_packets, "no packet was sent");
}

#[test]
fn reads_wait_as_writes_do_and_bring_their_bytes() {
    let mut pair = Pair::new("held-read");
    (0..20).for_each(|wr_id| pair.post(WrOpcode::RdmaRead, wr_id));
    assert_eq!(pair.arrived(0..20), Vec::from_iter(0..FIRST));
    assert_eq!(pair.poll(), Vec::from_iter(0..20));
    assert_eq!(pair.arrived(0..20), Vec::from_iter(0..20));
}

#[test]
fn no_more_wait_than_are_carried_out_together() {
    let mut pair = Pair::new("held-many");
    let all = FIRST + RUN as u64;
    pair.write(0..all - 1);
    assert_eq!(pair.waiting(), RUN - 1);
    pair.write([all - 1]);
    assert_eq!(pair.waiting(), 0);
    assert_eq!(pair.arrived(0..all), Vec::from_iter(0..all));
}

#[test]
fn a_program_that_polls_after_each_never_waits() {
    let mut pair = Pair::new("held-each");
    for wr_id in 0..200 {
        pair.write([wr_id]);
        assert!(pair.has_arrived(wr_id), "{wr_id}");
        assert_eq!(pair.poll(), [wr_id]);
    }
}

#[test]
fn the_thread_carries_out_what_nobody_polls_for_and_is_needed_less_and_less() {
    let mut pair = Pair::new("held-late");
    pair.write(0..8);
    pair.own.engine.progress_of_timers();
    assert_eq!(pair.waiting() as u64, 8 - FIRST, "it is not late yet");
    assert!(pair.own.engine.next_deadline().is_some(), "somebody wakes the thread");
    pair.look_late();
    assert_eq!(pair.arrived(0..8), Vec::from_iter(0..8));
    assert_eq!(pair.own.completed(), Vec::from_iter(0..8));
    let mut last = 0;
    for round in 0..3 {
        let mut at_once = 0;
        while pair.waiting() == 0 {
            pair.write([100 + at_once % 100]);
            at_once += 1;
            pair.own.completed();
        }
        assert!(2 * at_once > 3 * last || round == 0, "{at_once} after {last}");
        last = at_once;
        pair.look_late();
        pair.own.completed();
    }
}

#[test]
fn anything_else_that_the_program_does_ends_the_wait() {
    let mut pair = Pair::new("held-else");
    let waits = |pair: &mut Pair| {
        pair.poll();
        pair.write(0..8);
        assert!(pair.waiting() > 0);
    };
    waits(&mut pair);
    pair.peer.post_recv(9);
    pair.own.send(8);
    assert_eq!(pair.arrived(0..8), Vec::from_iter(0..8), "before the send");
    pair.run();

    waits(&mut pair);
    let fenced = SendWr {
        flags: SendFlags::SIGNALED | SendFlags::FENCE,
        ..pair.request(WrOpcode::RdmaWrite, 8)
    };
    pair.own.post(fenced);
    assert_eq!(pair.waiting(), 0);

    waits(&mut pair);
    pair.post(WrOpcode::RdmaRead, 8);
    assert_eq!(pair.waiting(), 0, "another operation");

    waits(&mut pair);
    let attr = QpAttr { state: QpState::Err, ..QpAttr::default() };
    let _ = pair.own.engine.modify_qp(pair.own.qp, &attr, AttrMask::STATE).expect("to ERR");
    assert!(pair.poll().ends_with(&Vec::from_iter(0..8)), "all succeeded");
}

#[test]
fn nothing_waits_if_an_event_is_awaited() {
    let mut pair = Pair::new("held-armed");
    pair.own.engine.req_notify_cq(pair.own.objects.cq, false).expect("it lives");
    // The first completion disarms the queue, and the program has its event then.
    for wr_id in 0..8 {
        pair.own.engine.req_notify_cq(pair.own.objects.cq, false).expect("it lives");
        pair.write([wr_id]);
        assert!(pair.has_arrived(wr_id));
    }
}

#[test]
fn a_wrong_address_fails_its_own_request_and_those_after_it() {
    let mut pair = Pair::new("held-wrong");
    pair.write(0..10);
    let wrong = SendWr { remote_addr: 1 << 16, ..pair.request(WrOpcode::RdmaWrite, 10) };
    pair.own.post(wrong);
    pair.write(11..20);
    assert!(pair.waiting() > 0);
    pair.own.engine.progress(Turn::Poll);
    pair.run();
    let found = std::iter::from_fn(|| pair.own.engine.pop_wc(pair.own.objects.cq));
    let found: Vec<_> = found.map(|wc| (wc.wr_id, wc.status)).collect();
    let status = |wr_id| match wr_id {
        0..10 => WcStatus::Success,
        10 => WcStatus::RemAccessErr,
        _ => WcStatus::WrFlushErr,
    };
    assert_eq!(found, Vec::from_iter((0..20).map(|wr_id| (wr_id, status(wr_id)))));
    assert_eq!(pair.arrived(0..20), Vec::from_iter(0..10));
}

#[test]
fn a_region_that_is_gone_is_not_written() {
    let mut pair = Pair::new("held-gone");
    pair.write(0..20);
    let (mr, _) = pair.peer.engine.take_mr(pair.remote.1.id).expect("it exists");
    pair.peer.engine.finish_dereg(mr).expect("nothing uses it");
    pair.own.engine.progress(Turn::Poll);
    pair.run();
    let found = std::iter::from_fn(|| pair.own.engine.pop_wc(pair.own.objects.cq));
    let found: Vec<_> = found.map(|wc| wc.status).collect();
    assert_eq!(found[FIRST as usize], WcStatus::RemAccessErr);
    assert_eq!(pair.arrived(0..20), Vec::from_iter(0..FIRST));
}

/// A program that posts and then waits for its bytes to arrive in some other way, with a thread
/// that sleeps, or that polled until then and has a thread that only checks now and then.
#[test]
fn the_thread_of_a_device_wakes_for_what_waits() {
    for polled in [false, true] {
        let nic = rig::nic(if polled { "held-polled" } else { "held-asleep" });
        let (hca, objects, qp, mut peer) = rig::hca_and_peer(&nic);
        let (memory, remote) = ordinary(&mut peer);
        objects.buffer.write(0, &[7; 64]).expect("inside");
        let post = |at: u64| {
            let sge = Sge { addr: at, length: 1, lkey: LKey(objects.mr.lkey) };
            let data = Data::Sges(SgList::from_iter([sge]));
            let wr = SendWr::new(at, WrOpcode::RdmaWrite, SendFlags::SIGNALED, data);
            let wr = SendWr { remote_addr: at, rkey: RKey(remote.rkey), ..wr };
            hca.lock().post_send(qp, wr).expect("a good request");
        };
        for at in [50, 51] {
            post(at);
            while hca.poll(objects.cq).pop_wc(objects.cq).is_none() {
                run(&mut [&mut peer.engine]);
            }
        }
        if polled {
            for _ in 0..1000 {
                drop(hca.poll(objects.cq));
            }
        }
        (0..10).for_each(post);
        let mut arrived = [0; 10];
        let began = Instant::now();
        while arrived != [7; 10] {
            assert!(began.elapsed() < Duration::from_secs(10), "{polled}: {arrived:?}");
            memory.read(0, &mut arrived).expect("inside");
        }
    }
}
