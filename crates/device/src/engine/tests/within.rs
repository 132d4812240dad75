//! One-sided operations between QPs of one process (`engine::within`).

use iba::{
    Access, AttrMask, LKey, Psn, QpAttr, QpState, QpType, Qpn, RKey, SendFlags, WcStatus, WrOpcode,
};
use smallvec::SmallVec;
use transport::wr::{Bind, Data, PlainOneSided, SendWr, SgList, Sge};

use crate::engine::{Engine, MwType, Turn, Wc};
use crate::ids::QpId;
use crate::nic::NicInfo;
use crate::rig::{self, Objects};

/// Where operations read or write, on this side and on the other.
const HERE: u64 = 300;
const THERE: u64 = 5000;

/// Two QPs of one process, each with a domain, a queue and memory of its own.
struct Two {
    engine: Engine,
    ends: [Objects; 2],
    qps: [(QpId, Qpn); 2],
    /// What had been counted before the test began.
    before: (u64, u64),
}

impl Two {
    fn new(test: &str, qp_type: QpType) -> Self {
        Self::on(&rig::nic(test), qp_type)
    }

    /// After the first operation, which is a packet: it tells whether the peer is there.
    fn on(nic: &NicInfo, qp_type: QpType) -> Self {
        let mut two = Self::strangers(nic, qp_type);
        assert_eq!(two.post(two.write()), [WcStatus::Success]);
        two.before = two.counts();
        two
    }

    fn strangers(nic: &NicInfo, qp_type: QpType) -> Self {
        let mut engine = rig::engine(nic);
        let ends = [(); 2].map(|()| Objects::new(&mut engine));
        let qps = [&ends[0], &ends[1]].map(|end| end.qp(&mut engine, qp_type));
        rig::to_rts(&mut engine, qps[0].0, qp_type, nic, qps[1].1);
        rig::to_rts(&mut engine, qps[1].0, qp_type, nic, qps[0].1);
        Self { engine, ends, qps, before: (0, 0) }
    }

    fn sge(&self, addr: u64, length: u32) -> Sge {
        Sge { addr, length, lkey: LKey(self.ends[0].mr.lkey) }
    }

    /// An operation of the first QP with these bytes of its own memory.
    fn request(&self, opcode: WrOpcode, sges: &[Sge]) -> SendWr {
        let data = Data::Sges(SgList::from_iter(sges.iter().copied()));
        let wr = SendWr::new(1, opcode, SendFlags::SIGNALED, data);
        SendWr { remote_addr: THERE, rkey: RKey(self.ends[1].mr.rkey), ..wr }
    }

    fn write(&self) -> SendWr {
        self.request(WrOpcode::RdmaWrite, &[self.sge(HERE, 8)])
    }

    fn put(&self, end: usize, at: u64, bytes: &[u8]) {
        self.ends[end].buffer.write(at as usize, bytes).expect("inside");
    }

    fn get<const N: usize>(&self, end: usize, at: u64) -> [u8; N] {
        let mut bytes = [0; N];
        self.ends[end].buffer.read(at as usize, &mut bytes).expect("inside");
        bytes
    }

    /// Posts to the first QP, and returns the completions before anything else runs.
    fn post(&mut self, wr: SendWr) -> Vec<WcStatus> {
        rig::post(&mut self.engine, self.qps[0].0, wr);
        self.polled(0).iter().map(|wc| wc.status).collect()
    }

    fn polled(&mut self, end: usize) -> Vec<Wc> {
        let cq = self.ends[end].cq;
        std::iter::from_fn(|| self.engine.pop_wc(cq)).collect()
    }

    /// Operations that needed no packet, and packets.
    fn counts(&self) -> (u64, u64) {
        let counters = self.engine.counters();
        let (direct, packets) = self.before;
        (counters.direct_operations - direct, counters.loopback_packets - packets)
    }

    /// Changes attributes of the second QP.
    fn modify(&mut self, attr: QpAttr, mask: AttrMask) {
        let _ = self.engine.modify_qp(self.qps[1].0, &attr, mask).expect("allowed in its state");
    }

    /// Moves the second QP to ERR as an error does: it posts a request with a wrong key.
    fn fail_second(&mut self) {
        let sge = Sge { addr: 0, length: 8, lkey: LKey(0) };
        let data = Data::Sges(SgList::from_iter([sge]));
        let wr = SendWr::new(9, WrOpcode::Send, SendFlags::SIGNALED, data);
        rig::post(&mut self.engine, self.qps[1].0, wr);
        self.engine.progress(Turn::Everything);
        assert_eq!(self.polled(1).len(), 1);
        let state = self.engine.query_qp(self.qps[1].0).expect("it exists").state;
        assert_eq!(state, QpState::Err);
    }
}

#[test]
fn they_are_over_when_they_are_posted_and_need_no_packet() {
    let mut two = Two::new("within", QpType::Rc);
    two.put(0, HERE, b"a write!");
    assert_eq!(two.post(two.write()), [WcStatus::Success]);
    assert_eq!(&two.get(1, THERE), b"a write!");

    two.put(1, THERE, b"and read");
    let read = two.request(WrOpcode::RdmaRead, &[two.sge(HERE, 8)]);
    assert_eq!(two.post(read), [WcStatus::Success]);
    assert_eq!(&two.get(0, HERE), b"and read");

    two.put(1, THERE, &41_u64.to_ne_bytes());
    let add = two.request(WrOpcode::AtomicFetchAndAdd, &[two.sge(HERE, 8)]);
    assert_eq!(two.post(SendWr { compare_add: 1, ..add }), [WcStatus::Success]);
    assert_eq!(u64::from_ne_bytes(two.get(0, HERE)), 41);
    assert_eq!(u64::from_ne_bytes(two.get(1, THERE)), 42);

    let swap = two.request(WrOpcode::AtomicCmpAndSwp, &[two.sge(HERE, 8)]);
    assert_eq!(two.post(SendWr { compare_add: 42, swap: 7, ..swap }), [WcStatus::Success]);
    assert_eq!(u64::from_ne_bytes(two.get(1, THERE)), 7);
    assert_eq!(two.counts(), (4, 0));
}

/// What hardware would find with its first packet is found.
#[test]
fn the_first_operation_is_a_packet() {
    let nic = rig::nic("within-first");
    let mut two = Two::strangers(&nic, QpType::Rc);
    assert_eq!(two.post(two.write()), [WcStatus::Success]);
    // The WRITE, and its acknowledgement.
    assert_eq!(two.counts(), (0, 2));
    assert_eq!(two.post(two.write()), [WcStatus::Success]);
    assert_eq!(two.counts(), (1, 2));

    let mut two = Two::strangers(&nic, QpType::Rc);
    two.put(0, HERE, b"a write!");
    let reset = QpAttr { state: QpState::Reset, ..QpAttr::default() };
    two.modify(reset, AttrMask::STATE);
    assert_eq!(two.post(two.write()), [], "nobody acknowledges");
    assert_eq!((two.get(1, THERE), two.counts().0), ([0; 8], 0));
}

#[test]
fn a_peer_without_room_for_answers_answers_nothing() {
    let nic = rig::nic("within-no-room");
    let mut two = Two::on(&nic, QpType::Rc);
    two.modify(QpAttr { state: QpState::Reset, ..QpAttr::default() }, AttrMask::STATE);
    let (first, second) = (two.qps[0].1, two.qps[1].0);
    // The first QP has sent one packet, and received none but its acknowledgement.
    rig::to_rts_with(&mut two.engine, second, QpType::Rc, &nic, first, |attr| {
        (attr.max_dest_rd_atomic, attr.rq_psn) = (0, Psn::new(1));
    });
    assert_eq!(two.post(two.write()), [WcStatus::Success]);
    assert_eq!(two.counts(), (1, 0));
    let read = two.request(WrOpcode::RdmaRead, &[two.sge(HERE, 8)]);
    assert_eq!(two.post(read), [WcStatus::RemInvReqErr]);
    assert_eq!(two.counts().0, 1);
}

/// The form in which every interface posts a plain operation first.
#[test]
fn a_plain_one_is_at_hand_from_the_first() {
    let mut two = Two::new("within-hand", QpType::Rc);
    let (sge, rkey) = (two.sge(HERE, 8), RKey(two.ends[1].mr.rkey));
    let flags = SendFlags::SIGNALED;
    let write = PlainOneSided { wr_id: 3, is_read: false, flags, sge, remote_addr: THERE, rkey };
    two.put(0, HERE, b"at hand!");
    assert!(two.engine.post_at_hand(two.qps[0].0, &write));
    assert_eq!(&two.get(1, THERE), b"at hand!");
    assert_eq!(two.polled(0).iter().map(|wc| wc.wr_id).collect::<Vec<_>>(), [3]);
    two.put(1, THERE, b"way back");
    let read = PlainOneSided { is_read: true, ..write };
    assert!(two.engine.post_at_hand(two.qps[0].0, &read));
    assert_eq!(&two.get(0, HERE), b"way back");
    assert_eq!(two.counts(), (2, 0));
    let wrong = PlainOneSided { rkey: RKey(rkey.0 ^ 1), ..write };
    assert!(!two.engine.post_at_hand(two.qps[0].0, &wrong));
}

#[test]
fn lists_and_inline_bytes_are_gathered() {
    let mut two = Two::new("within-list", QpType::Rc);
    two.put(0, 0, b"abcdefgh");
    let sges = [two.sge(4, 4), two.sge(0, 2), two.sge(2, 2)];
    let many = two.request(WrOpcode::RdmaWrite, &sges);
    assert_eq!(two.post(many), [WcStatus::Success]);
    assert_eq!(&two.get(1, THERE), b"efghabcd");
    let mut inline = two.write();
    inline.data = Data::Inline(SmallVec::from_slice(b"inline"));
    inline.flags |= SendFlags::INLINE;
    assert_eq!(two.post(inline), [WcStatus::Success]);
    assert_eq!(&two.get(1, THERE), b"inline");
    assert_eq!(two.counts(), (2, 0));
}

/// The peer learns of the operations from the next packet.
#[test]
fn packets_after_them_have_the_numbers_that_the_peer_awaits() {
    let mut two = Two::new("within-psn", QpType::Rc);
    for _ in 0..5 {
        assert_eq!(two.post(two.write()), [WcStatus::Success]);
    }
    let receive = two.ends[1].recv(77);
    two.engine.post_recv(two.qps[1].0, receive).expect("room for it");
    rig::post(&mut two.engine, two.qps[0].0, rig::send(6, None));
    rig::run(&mut [&mut two.engine]);
    assert_eq!(rig::completed(&mut two.engine, two.ends[0].cq), [6]);
    assert_eq!(rig::completed(&mut two.engine, two.ends[1].cq), [77]);
    assert_eq!(two.post(two.write()), [WcStatus::Success]);
    assert_eq!(two.counts().0, 6);
}

/// What the peer refuses goes as a packet, so that both QPs end as the standard requires.
#[test]
fn a_refusal_ends_both() {
    type Change = fn(&mut Two, &mut SendWr);
    use WcStatus::{RemAccessErr, RemInvReqErr};
    let cases: [(&str, WcStatus, Change); 5] = [
        ("another key", RemAccessErr, |_, wr| wr.rkey.0 ^= 1),
        ("past the end", RemAccessErr, |_, wr| wr.remote_addr = (1 << 16) - 7),
        ("a domain that is not the peer's", RemAccessErr, |two, wr| {
            wr.rkey = RKey(two.ends[0].mr.rkey)
        }),
        ("no right on the QP", RemInvReqErr, |two, _| {
            let access_flags = Access::REMOTE_READ;
            two.modify(QpAttr { access_flags, ..QpAttr::default() }, AttrMask::ACCESS_FLAGS);
        }),
        ("a window of another QP", RemAccessErr, |two, wr| {
            let (_, key) = two.engine.alloc_mw(two.ends[1].pd, MwType::Two).expect("below max_mw");
            let other = two.ends[1].qp(&mut two.engine, QpType::Rc);
            let mr = two.engine.common.memory.mrs.get_mut(two.ends[1].mr.id).expect("it exists");
            mr.access |= Access::MW_BIND;
            let bind = Bind {
                window: (key & !(1 << 31)) >> 8,
                key: RKey(5),
                lkey: LKey(two.ends[1].mr.lkey),
                addr: 0,
                length: 1 << 16,
                access: Access::REMOTE_WRITE,
            };
            let mrs = &mut two.engine.common.memory.mrs;
            mrs.bind(two.ends[1].pd, other.1, &bind).expect("a good window");
            wr.rkey = RKey(key & !0xff | 5);
        }),
    ];
    for (what, expected, change) in cases {
        let mut two = Two::new("within-refused", QpType::Rc);
        two.put(0, HERE, b"refused!");
        let mut wr = two.write();
        change(&mut two, &mut wr);
        let status = two.post(wr);
        assert_eq!(status, [expected], "{what}");
        assert_eq!(two.get(1, THERE), [0; 8], "{what}");
        assert_eq!(two.counts().0, 0, "{what}");
        for (qp, _) in two.qps {
            let state = two.engine.query_qp(qp).expect("it exists").state;
            assert_eq!(state, QpState::Err, "{what}");
        }
    }
}

#[test]
fn a_list_with_a_wrong_key_changes_nothing() {
    let mut two = Two::new("within-key", QpType::Rc);
    two.put(0, HERE, b"nothing!");
    let (right, wrong) = (two.sge(HERE, 4), Sge { lkey: LKey(0), ..two.sge(HERE + 4, 4) });
    assert_eq!(two.post(two.request(WrOpcode::RdmaWrite, &[wrong])), [WcStatus::LocProtErr]);
    assert_eq!(two.get(1, THERE), [0; 8]);
    let mut two = Two::new("within-keys", QpType::Rc);
    two.put(0, HERE, b"nothing!");
    let wr = two.request(WrOpcode::RdmaWrite, &[right, wrong]);
    rig::post(&mut two.engine, two.qps[0].0, wr);
    assert_eq!(two.get(1, THERE), [0; 8]);
}

/// IBA 10.3.1: a QP in ERR takes nothing.
#[test]
fn a_qp_in_err_is_not_written_to() {
    let mut two = Two::new("within-err", QpType::Rc);
    assert_eq!(two.post(two.write()), [WcStatus::Success]);
    two.fail_second();
    two.put(0, HERE, b"too late");
    assert_eq!(two.post(two.write()), [], "it waits for an acknowledgement");
    assert_eq!(two.get(1, THERE), [0; 8]);
    assert_eq!(two.counts().0, 1);
}

/// A SEND that was posted before is delivered before.
#[test]
fn nothing_of_an_unreliable_qp_is_overtaken() {
    let mut two = Two::new("within-uc", QpType::Uc);
    assert_eq!(two.post(two.write()), [WcStatus::Success]);
    let receive = two.ends[1].recv(77);
    two.engine.post_recv(two.qps[1].0, receive).expect("room for it");
    two.put(0, HERE, b"a write!");
    let write = SendWr { remote_addr: 0, ..two.write() };
    two.engine.queue_send(two.qps[0].0, rig::send(2, None)).expect("room for it");
    two.engine.queue_send(two.qps[0].0, write).expect("room for it");
    two.engine.kick(two.qps[0].0);
    assert_eq!(&two.get(1, 0), b"a write!", "what came last");
    assert_eq!(two.polled(1).len(), 1);
    assert_eq!(two.counts().0, 1);
}

#[test]
fn without_a_table_they_are_packets() {
    let mut nic = rig::nic("within-off");
    nic.config.direct = false;
    let mut two = Two::on(&nic, QpType::Rc);
    assert_eq!(two.post(two.write()), [WcStatus::Success]);
    assert_eq!(two.counts(), (0, 2));
}
