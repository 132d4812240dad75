//! Multicast groups: which QPs receive, which are refused.

use std::time::{Duration, Instant};

use iba::{Gid, QpType, Qpn};
use transport::wr::{SendWr, UdDest};

use crate::Kind;
use crate::engine::Engine;
use crate::engine::Turn;
use crate::ids::QpId;
use crate::nic::NicInfo;
use crate::rig::{self, Objects, QKEY, completed, post, send, to_rts};

/// A group of the block that every site may use (RFC 2365).
fn group() -> Gid {
    Gid::from(std::net::IpAddr::from([239, 77, 0, 1]))
}

/// A process with two datagram QPs that are ready.
struct Process {
    engine: Engine,
    objects: Objects,
    qps: [QpId; 2],
}

impl Process {
    fn new(nic: &NicInfo) -> Self {
        let mut engine = rig::engine(nic);
        let objects = Objects::new(&mut engine);
        let qps = [(); 2].map(|()| {
            let (qp, _) = objects.qp(&mut engine, QpType::Ud);
            to_rts(&mut engine, qp, QpType::Ud, nic, Qpn::new(0));
            qp
        });
        Self { engine, objects, qps }
    }

    /// Posts a receive to each QP, with a `wr_id` that names the QP.
    fn post_recvs(&mut self) {
        for (wr_id, qp) in (100..).zip(self.qps) {
            let wr = self.objects.recv(wr_id);
            self.engine.post_recv(qp, wr).expect("room for it");
        }
    }

    fn take(&mut self) -> Vec<u64> {
        self.engine.progress(Turn::Everything);
        let mut ids = completed(&mut self.engine, self.objects.cq);
        ids.sort_unstable();
        ids
    }
}

fn to_group(wr_id: u64, nic: &NicInfo, qkey: iba::QKey) -> SendWr {
    let mut av = rig::av(nic);
    av.dgid = group();
    send(wr_id, Some(UdDest { av, remote_qpn: Qpn::MULTICAST, remote_qkey: qkey }))
}

/// Runs all until each has completed the given receives, and nothing else.
#[track_caller]
fn expect(processes: &mut [&mut Process], wanted: &[&[u64]]) {
    let mut seen = vec![Vec::new(); processes.len()];
    let deadline = Instant::now() + Duration::from_secs(10);
    while seen.iter().zip(wanted).any(|(seen, wanted)| seen != wanted) {
        assert!(Instant::now() < deadline, "completed {seen:?}, not {wanted:?}");
        for (process, seen) in processes.iter_mut().zip(&mut seen) {
            seen.extend(process.take());
            seen.sort_unstable();
        }
    }
}

#[test]
fn only_members_receive_and_each_does() {
    let nic = rig::nic("group");
    let (mut one, mut two) = (Process::new(&nic), Process::new(&nic));
    for process in [&mut one, &mut two] {
        process.post_recvs();
    }
    // Both QPs of one process, the second of the other.
    for qp in one.qps {
        one.engine.attach_mcast(qp, group()).expect("a free group");
    }
    two.engine.attach_mcast(two.qps[1], group()).expect("a free group");
    // The sender is a member, and receives its own message.
    let sender = one.qps[0];
    post(&mut one.engine, sender, to_group(1, &nic, QKEY));
    expect(&mut [&mut one, &mut two], &[&[1, 100, 101], &[101]]);
    assert_eq!(one.engine.counters().tx_multicast_packets, 1);
    assert_eq!(one.engine.counters().rx_multicast_packets, 1);
    // The GRH names the group, and the payload follows it.
    let mut bytes = [0; 48];
    two.objects.buffer.read(0, &mut bytes).expect("within the buffer");
    assert_eq!(bytes[36..40], [239, 77, 0, 1]);
    assert_eq!(bytes[40..48], 1u64.to_be_bytes());
}

#[test]
fn a_member_that_left_receives_nothing() {
    let nic = rig::nic("leave");
    let (mut one, mut two) = (Process::new(&nic), Process::new(&nic));
    for process in [&mut one, &mut two] {
        process.post_recvs();
        let [first, second] = process.qps;
        process.engine.attach_mcast(first, group()).expect("a free group");
        process.engine.attach_mcast(second, group()).expect("a free group");
        process.engine.detach_mcast(first, group()).expect("a member");
    }
    let [_, second] = two.qps;
    two.engine.detach_mcast(second, group()).expect("a member");
    let sender = two.qps[0];
    post(&mut two.engine, sender, to_group(1, &nic, QKEY));
    expect(&mut [&mut one, &mut two], &[&[101], &[1]]);
    // Packets to a group that this process is not in do not reach it at all.
    assert_eq!(two.engine.counters().rx_multicast_packets, 0);
}

#[test]
fn a_member_needs_the_right_key_and_a_receive() {
    let nic = rig::nic("gkeys");
    let mut one = Process::new(&nic);
    let [first, second] = one.qps;
    for qp in one.qps {
        one.engine.attach_mcast(qp, group()).expect("a free group");
    }
    let wr = one.objects.recv(100);
    one.engine.post_recv(first, wr).expect("room for it");
    post(&mut one.engine, second, to_group(1, &nic, iba::QKey(0x99)));
    post(&mut one.engine, second, to_group(2, &nic, QKEY));
    expect(&mut [&mut one], &[&[1, 2, 100]]);
    let counters = one.engine.counters();
    assert_eq!((counters.qkey_violation, counters.out_of_buffer), (2, 1));
}

#[test]
fn attaching_follows_the_kernels_rules() {
    let nic = rig::nic("grules");
    let mut one = Process::new(&nic);
    let (engine, qp) = (&mut one.engine, one.qps[0]);
    let kind = |result: crate::Result<()>| result.expect_err("against a rule").kind();
    let (rc, _) = one.objects.qp(engine, QpType::Rc);
    assert_eq!(kind(engine.attach_mcast(rc, group())), Kind::Invalid);
    assert_eq!(kind(engine.detach_mcast(rc, group())), Kind::Invalid);
    let unicast = Gid::from(std::net::IpAddr::from([127, 0, 0, 1]));
    assert_eq!(kind(engine.attach_mcast(qp, unicast)), Kind::Invalid);
    assert_eq!(kind(engine.detach_mcast(qp, group())), Kind::Invalid);
    // Attaching twice changes nothing.
    engine.attach_mcast(qp, group()).expect("a free group");
    engine.attach_mcast(qp, group()).expect("a member already");
    assert_eq!(engine.destroy_qp(qp).map(drop).expect_err("in a group").kind(), Kind::Busy);
    engine.detach_mcast(qp, group()).expect("a member");
    assert_eq!(kind(engine.detach_mcast(qp, group())), Kind::Invalid);
    engine.destroy_qp(qp).map(drop).expect("in no group");
}

#[test]
fn limits_hold_and_closing_leaves_every_group() {
    let nic = rig::nic("glimits");
    let mut one = Process::new(&nic);
    one.engine.common.nic.attr.max_mcast_grp = 2;
    one.engine.common.nic.attr.max_mcast_qp_attach = 1;
    let [first, second] = one.qps;
    let groups = [1, 2, 3].map(|last| Gid::from(std::net::IpAddr::from([239, 77, 1, last])));
    for group in &groups[..2] {
        one.engine.attach_mcast(first, *group).expect("below the limit");
    }
    for (qp, group) in [(first, groups[2]), (second, groups[0])] {
        let refused = one.engine.attach_mcast(qp, group).expect_err("beyond the limit");
        assert_eq!(refused.kind(), Kind::NoMemory);
    }
    let closing = one.engine.begin_close(one.objects.ctx);
    assert!(one.engine.common.objects.groups.is_empty());
    one.engine.finish_close(closing.ctx, closing.mrs);
}
