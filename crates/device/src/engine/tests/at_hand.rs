//! Operations for which all is at hand (`engine::at_hand`).

use iba::{
    Access, AttrMask, LKey, QpAttr, QpState, QpType, RKey, SendFlags, WcOpcode, WcStatus, WrOpcode,
};
use transport::wr::{Data, PlainOneSided, SendWr, SgList, Sge};
use umem::Umem;

use crate::engine::{Turn, Wc};
use crate::rig::{self, Process, run};

/// Bytes of an operation.
const SIZE: u32 = 1000;
/// Where they are at the peer.
const THERE: u64 = 5003;
/// Where they are on this side.
const HERE: u64 = 301;

/// Two processes, each with memory that the other maps, and what the first one's holds.
struct Pair {
    own: Process,
    peer: Process,
    bytes: Vec<u8>,
}

fn request(pair: &Pair, wr_id: u64, is_read: bool) -> PlainOneSided {
    PlainOneSided {
        wr_id,
        is_read,
        flags: SendFlags::SIGNALED,
        sge: Sge { addr: HERE, length: SIZE, lkey: LKey(pair.own.objects.mr.lkey) },
        remote_addr: THERE,
        rkey: RKey(pair.peer.objects.mr.rkey),
    }
}

impl Pair {
    /// Before the first operation.
    fn strangers(test: &str) -> Self {
        let [own, peer] = Process::pair(&rig::nic(test), QpType::Rc);
        let bytes: Vec<u8> = (0..SIZE).map(|at| (at * 7 + at / 256 + 1) as u8).collect();
        own.objects.buffer.write(HERE as usize, &bytes).expect("inside");
        Self { own, peer, bytes }
    }

    /// After the first operation, which finds the peer and maps its region.
    fn new(test: &str) -> Self {
        let mut pair = Self::strangers(test);
        for wr_id in [100, 101] {
            pair.post_by_queue(wr_id);
            pair.run();
            assert_eq!(pair.own.completed(), [wr_id]);
        }
        pair.clear();
        pair
    }

    fn post_by_queue(&mut self, wr_id: u64) {
        let PlainOneSided { sge, remote_addr, rkey, .. } = request(self, wr_id, false);
        let data = Data::Sges(SgList::from_iter([sge]));
        let wr = SendWr::new(wr_id, WrOpcode::RdmaWrite, SendFlags::SIGNALED, data);
        self.own.post(SendWr { remote_addr, rkey, ..wr });
    }

    fn is_at_hand(&mut self, request: &PlainOneSided) -> bool {
        self.own.engine.post_at_hand(self.own.qp, request)
    }

    fn clear(&self) {
        self.peer.objects.buffer.fill(0, 0, 1 << 16).expect("inside");
    }

    /// What lies where the operations write.
    fn there(&self) -> Vec<u8> {
        let mut bytes = vec![0; SIZE as usize];
        self.peer.objects.buffer.read(THERE as usize, &mut bytes).expect("inside");
        bytes
    }

    fn polled(&mut self) -> Option<Wc> {
        self.own.engine.pop_wc(self.own.objects.cq)
    }

    fn run(&mut self) {
        run(&mut [&mut self.own.engine, &mut self.peer.engine]);
    }
}

#[test]
fn a_write_is_over_when_it_is_posted() {
    let mut pair = Pair::new("hand-write");
    let before = pair.own.engine.counters();
    let write = request(&pair, 1, false);
    assert!(pair.is_at_hand(&write));
    assert_eq!(pair.there(), pair.bytes);
    let wc = pair.polled().expect("it was signaled");
    assert_eq!((wc.wr_id, wc.status, wc.opcode), (1, WcStatus::Success, WcOpcode::RdmaWrite));
    assert_eq!((wc.byte_len, wc.qpn), (SIZE, pair.own.qpn));
    assert!(pair.polled().is_none());
    let after = pair.own.engine.counters();
    assert_eq!(after.direct_operations - before.direct_operations, 1);
    assert_eq!(after.direct_bytes - before.direct_bytes, u64::from(SIZE));
    assert_eq!(after.tx_shm_packets, before.tx_shm_packets, "no packet was sent");
}

#[test]
fn a_read_brings_its_bytes() {
    let mut pair = Pair::new("hand-read");
    let bytes: Vec<u8> = (0..SIZE).map(|at| (at * 11 + at / 256 + 3) as u8).collect();
    pair.peer.objects.buffer.write(THERE as usize, &bytes).expect("inside");
    let read = request(&pair, 2, true);
    assert!(pair.is_at_hand(&read));
    let mut here = vec![0; SIZE as usize];
    pair.own.objects.buffer.read(HERE as usize, &mut here).expect("inside");
    assert_eq!(here, bytes);
    let wc = pair.polled().expect("it was signaled");
    assert_eq!((wc.wr_id, wc.opcode, wc.byte_len), (2, WcOpcode::RdmaRead, SIZE));
}

/// The peer learns of the operations from the next packet.
#[test]
fn packets_after_it_have_the_numbers_that_the_peer_awaits() {
    let mut pair = Pair::new("hand-psn");
    for wr_id in 0..5 {
        let write = request(&pair, wr_id, false);
        assert!(pair.is_at_hand(&write));
    }
    pair.peer.post_recv(77);
    pair.own.send(5);
    pair.run();
    assert_eq!(pair.own.completed(), [0, 1, 2, 3, 4, 5]);
    assert_eq!(pair.peer.completed(), [77]);
    let write = request(&pair, 6, false);
    assert!(pair.is_at_hand(&write), "nothing is in flight any more");
}

#[test]
fn nothing_is_at_hand_before_the_region_is_mapped() {
    let mut pair = Pair::strangers("hand-first");
    let write = request(&pair, 1, false);
    assert!(!pair.is_at_hand(&write));
    assert_eq!(pair.there(), vec![0; SIZE as usize]);
    assert!(pair.polled().is_none());
}

#[test]
fn it_does_not_overtake_a_send_in_flight() {
    let mut pair = Pair::new("hand-order");
    pair.peer.post_recv(77);
    pair.own.send(1);
    let write = request(&pair, 2, false);
    assert!(!pair.is_at_hand(&write), "the send is not acknowledged");
    pair.run();
    assert_eq!(pair.own.completed(), [1]);
    assert!(pair.is_at_hand(&write));
}

#[test]
fn what_is_wrong_is_left_to_the_queue() {
    let mut pair = Pair::new("hand-wrong");
    let right = request(&pair, 1, false);
    let sge = right.sge;
    let mut check = |what, wrong| {
        assert!(!pair.is_at_hand(&wrong), "{what}");
        assert!(pair.polled().is_none(), "{what}");
        assert_eq!(pair.there(), vec![0; SIZE as usize], "{what}");
    };
    check("no bytes", PlainOneSided { sge: Sge { length: 0, ..sge }, ..right });
    let past = (1 << 16) - u64::from(SIZE) + 1;
    check("past the peer's end", PlainOneSided { remote_addr: past, ..right });
    check("before the peer's region", PlainOneSided { remote_addr: u64::MAX, ..right });
    check("past our end", PlainOneSided { sge: Sge { addr: past, ..sge }, ..right });
    check("no key of ours", PlainOneSided { sge: Sge { lkey: LKey(0), ..sge }, ..right });
    check("no key", PlainOneSided { rkey: RKey(0), ..right });
    check("no key of the peer's", PlainOneSided { rkey: RKey(right.rkey.0 ^ 1), ..right });
    assert!(pair.is_at_hand(&right));
}

#[test]
fn a_region_that_is_gone_is_not_touched() {
    let mut pair = Pair::new("hand-gone");
    let write = request(&pair, 1, false);
    let id = pair.peer.objects.mr.id;
    let (mr, _) = pair.peer.engine.take_mr(id).expect("it exists");
    assert!(!pair.is_at_hand(&write), "withdrawn");
    pair.peer.engine.finish_dereg(mr).expect("nothing uses it");
    assert!(!pair.is_at_hand(&write));
    assert_eq!(pair.there(), vec![0; SIZE as usize]);
    pair.post_by_queue(2);
    pair.run();
    assert_eq!(pair.polled().map(|wc| wc.status), Some(WcStatus::RemAccessErr));
}

/// The place of a region in the file may be another one: it is mapped anew, by the queue.
#[test]
fn a_region_that_was_published_again_is_mapped_first() {
    let mut pair = Pair::new("hand-again");
    let write = request(&pair, 1, false);
    let id = pair.peer.objects.mr.id;
    let engine = &pair.peer.engine;
    let (table, mr) = (engine.common.out.shm.table(), engine.common.memory.mrs.get(id));
    table.expect("peers may").publish(id, mr.expect("it exists"));
    assert!(!pair.is_at_hand(&write));
    pair.post_by_queue(2);
    assert_eq!(pair.own.completed(), [2]);
    assert!(pair.is_at_hand(&write));
}

/// Keys of one index are told apart.
#[test]
fn a_region_with_the_index_of_another_is_mapped_first() {
    let mut pair = Pair::new("hand-index");
    let old = request(&pair, 1, false);
    assert!(pair.is_at_hand(&old));
    let peer = &mut pair.peer;
    let (mr, _) = peer.engine.take_mr(peer.objects.mr.id).expect("it exists");
    peer.engine.finish_dereg(mr).expect("nothing uses it");
    let (umem, access) = (Umem::host(&peer.objects.buffer), Access::LOCAL_WRITE | Access::REMOTE);
    let mr = peer.engine.reg_mr(peer.objects.pd, umem, 0, access).expect("good memory");
    assert_eq!(mr.rkey >> 8, old.rkey.0 >> 8, "the index is used again");
    peer.objects.mr = mr;
    pair.clear();
    let new = request(&pair, 2, false);
    assert!(!pair.is_at_hand(&new) && !pair.is_at_hand(&old));
    assert_eq!(pair.there(), vec![0; SIZE as usize]);
    pair.post_by_queue(3);
    assert_eq!(pair.own.completed(), [1, 3]);
    assert!(pair.is_at_hand(&new) && !pair.is_at_hand(&old));
}

#[test]
fn a_right_that_the_peer_takes_back_is_gone() {
    let mut pair = Pair::new("hand-right");
    let (write, read) = (request(&pair, 1, false), request(&pair, 2, true));
    let rights = Access::LOCAL_WRITE | Access::REMOTE_READ;
    let attr = QpAttr { access_flags: rights, ..QpAttr::default() };
    let (qp, mask) = (pair.peer.qp, AttrMask::ACCESS_FLAGS);
    let _ = pair.peer.engine.modify_qp(qp, &attr, mask).expect("allowed in RTS");
    assert!(!pair.is_at_hand(&write));
    assert_eq!(pair.there(), vec![0; SIZE as usize]);
    assert!(pair.is_at_hand(&read));
}

#[test]
fn a_process_that_ended_has_no_memory() {
    let mut pair = Pair::new("hand-ended");
    pair.peer.engine.common.out.shm.table().expect("peers may").pretend_mark(false);
    let write = request(&pair, 1, false);
    assert!(!pair.is_at_hand(&write));
    assert_eq!(pair.there(), vec![0; SIZE as usize]);
}

/// A completion that finds no room is left to be dealt with, and somebody must wake for it.
#[test]
fn a_completion_without_room_is_an_overrun() {
    let mut pair = Pair::new("hand-overrun");
    for wr_id in 0..64 {
        let write = request(&pair, wr_id, false);
        assert!(pair.is_at_hand(&write));
        assert!(!pair.own.engine.has_overrun());
    }
    let write = request(&pair, 64, false);
    assert!(pair.is_at_hand(&write));
    assert!(pair.own.engine.has_overrun());
    pair.own.engine.progress(Turn::Everything);
    assert!(!pair.own.engine.has_overrun());
    assert!(pair.own.engine.cq_is_broken(pair.own.objects.cq));
}

#[test]
fn a_completion_with_a_timestamp_has_the_time() {
    let mut pair = Pair::new("hand-stamps");
    pair.own.engine.stamp_completions();
    let write = request(&pair, 1, false);
    assert!(!pair.is_at_hand(&write));
}

/// IBA 10.3.1: a QP in ERR takes nothing, whatever brought it there.
#[test]
fn a_qp_in_err_is_not_written_to() {
    let mut pair = Pair::new("hand-err");
    let wrong = Data::Sges(SgList::from_iter([Sge { addr: 0, length: 8, lkey: LKey(0) }]));
    pair.peer.post(SendWr::new(9, WrOpcode::Send, SendFlags::SIGNALED, wrong));
    pair.peer.engine.progress(Turn::Everything);
    let wc = pair.peer.engine.pop_wc(pair.peer.objects.cq).expect("it failed");
    assert_eq!(wc.status, WcStatus::LocProtErr);
    let write = request(&pair, 1, false);
    assert!(!pair.is_at_hand(&write));
    pair.post_by_queue(2);
    pair.run();
    assert!(pair.polled().is_none(), "it waits for an acknowledgement");
    assert_eq!(pair.there(), vec![0; SIZE as usize]);
}

/// A program that moves its QP to ERR waits for the copies that began before.
#[test]
fn who_ends_a_qp_waits_for_copies_in_progress() {
    let mut pair = Pair::new("hand-wait");
    let rkey = pair.peer.objects.mr.rkey;
    let vf = crate::qp::vf_of(pair.peer.qpn);
    pair.own.engine.common.out.shm.hold(vf, rkey);
    let attr = QpAttr { state: QpState::Err, ..QpAttr::default() };
    let changed = pair.peer.engine.modify_qp(pair.peer.qp, &attr, AttrMask::STATE);
    let mut under_way = changed.expect("any state may end");
    assert!(pair.peer.engine.goes_on(&mut under_way));
    pair.own.engine.common.out.shm.free(vf);
    assert!(!pair.peer.engine.goes_on(&mut under_way));
}
