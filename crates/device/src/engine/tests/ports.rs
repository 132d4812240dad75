//! Which port a packet counts on.

use std::time::{Duration, Instant};

use iba::{Psn, QpType, Qpn};
use wire::{Headers, Opcode};

use crate::Counters;
use crate::carrier::About;
use crate::carrier::shm::Forwarded;
use crate::carrier::udp::UdpQueue;
use crate::counters::STAYS;
use crate::engine::{Engine, Turn};
use crate::nic::NicInfo;
use crate::rig::{self, Process};

/// Longer than any packet takes.
const LONG: Duration = Duration::from_secs(30);

/// A NIC with three ports.
fn nic(test: &str) -> NicInfo {
    let mut nic = rig::nic(test);
    nic.config.ports = 3;
    nic
}

/// A counter on each port.
fn on_ports(engine: &Engine, read: impl Fn(&Counters) -> u64) -> Vec<u64> {
    engine.port_counters().iter().map(read).collect()
}

/// A process whose QP is on the second port, connected to one whose QP is on the third.
fn pair(nic: &NicInfo, qp_type: QpType) -> [Process; 2] {
    let [mut one, mut other] = [(); 2].map(|()| Process::new(nic, qp_type));
    one.connect_on(2, nic, other.qpn);
    other.connect_on(3, nic, one.qpn);
    [one, other]
}

#[test]
fn a_packet_between_processes_counts_on_the_port_of_each_qp() {
    for qp_type in [QpType::Rc, QpType::Uc] {
        let mut pair = pair(&nic("ports-shm"), qp_type);
        for wr_id in 0..5 {
            rig::exchange(&mut pair, wr_id);
        }
        let [one, other] = &pair;
        assert_eq!(on_ports(&one.engine, |it| it.tx_shm_packets), [0, 5, 0], "{qp_type}");
        assert_eq!(on_ports(&one.engine, |it| it.tx_bytes), [0, 5 * (8 + STAYS), 0]);
        assert_eq!(on_ports(&other.engine, |it| it.rx_shm_packets), [0, 0, 5], "{qp_type}");
        assert_eq!(on_ports(&other.engine, |it| it.rx_bytes), [0, 0, 5 * (8 + STAYS)]);
        assert_eq!(one.engine.counters().tx_shm_packets, 5, "the device counts all");
    }
}

#[test]
fn a_datagram_counts_on_the_port_of_each_qp() {
    let mut nic = nic("ports-udp");
    nic.config.force_udp = true;
    for qp_type in [QpType::Rc, QpType::Uc] {
        let mut pair = pair(&nic, qp_type);
        for wr_id in 0..5 {
            rig::exchange(&mut pair, wr_id);
        }
        let [one, other] = &pair;
        let [sent, received] = [
            on_ports(&one.engine, |it| it.tx_udp_packets),
            on_ports(&other.engine, |it| it.rx_udp_packets - it.forwarded_packets),
        ];
        assert_eq!((sent[0], sent[2], received[0], received[1]), (0, 0, 0, 0), "{qp_type}");
        assert!(sent[1] >= 5 && received[2] >= 5, "{qp_type}: {sent:?} {received:?}");
        let [sent, received] =
            [on_ports(&one.engine, |it| it.tx_bytes), on_ports(&other.engine, |it| it.rx_bytes)];
        assert_eq!((sent[0], sent[2], received[0], received[1]), (0, 0, 0, 0), "{qp_type}");
        assert!(sent[1] > 0 && received[2] > 0, "{qp_type}: {sent:?} {received:?}");
    }
}

#[test]
fn datagrams_of_two_ports_to_one_process_are_two_trains() {
    let mut nic = nic("ports-trains");
    nic.config.force_udp = true;
    let mut one = Process::new(&nic, QpType::Ud);
    let mut other = Process::new(&nic, QpType::Ud);
    one.connect_on(2, &nic, Qpn::new(0));
    other.connect_on(3, &nic, Qpn::new(0));
    let (second, _) = one.objects.qp(&mut one.engine, QpType::Ud);
    rig::to_rts(&mut one.engine, second, QpType::Ud, &nic, Qpn::new(0));
    // The address handles name the first port, whichever their QP is on.
    let wr = |wr_id| rig::datagram(wr_id, &nic, other.qpn);
    for wr_id in 0..3 {
        one.post(wr(wr_id));
    }
    rig::post(&mut one.engine, second, wr(3));
    let began = Instant::now();
    while one.engine.counters().tx_udp_packets < 4 {
        assert!(began.elapsed() < LONG);
        one.engine.progress(Turn::Everything);
    }
    assert_eq!(on_ports(&one.engine, |it| it.tx_udp_packets), [1, 3, 0]);
}

#[test]
fn a_packet_within_a_process_is_sent_on_one_port_and_received_on_another() {
    let nic = nic("ports-loopback");
    let mut one = Process::new(&nic, QpType::Rc);
    let (receiver, number) = one.objects.qp(&mut one.engine, QpType::Rc);
    rig::to_rts_on(3, &mut one.engine, receiver, QpType::Rc, &nic, one.qpn);
    one.connect_on(2, &nic, number);
    let wr = one.objects.recv(7);
    one.engine.post_recv(receiver, wr).expect("room for it");
    one.send(1);
    rig::run(&mut [&mut one.engine]);
    // The message, and its acknowledgement.
    assert_eq!(on_ports(&one.engine, |it| it.loopback_packets), [0, 1, 1]);
    assert_eq!(on_ports(&one.engine, |it| it.rx_loopback_packets), [0, 1, 1]);
    assert_eq!(on_ports(&one.engine, |it| it.tx_bytes), [0, 8 + STAYS, STAYS]);
    assert_eq!(on_ports(&one.engine, |it| it.rx_bytes), [0, STAYS, 8 + STAYS]);
}

#[test]
fn a_forwarded_datagram_counts_where_its_qp_is() {
    let nic = nic("ports-forwarded");
    let mut owner = Process::new(&nic, QpType::Ud);
    owner.connect_on(2, &nic, Qpn::new(0));
    owner.post_recv(7);
    let mut sibling = rig::engine(&nic);
    let (port, av) = (nic.config.udp_port, rig::av(&nic));
    let mut headers = Headers::new(Opcode::UdSendOnly, owner.qpn, Psn::new(0));
    headers.set_deth(wire::deth::Deth { qkey: rig::QKEY, src_qp: Qpn::new(0x77_7777) });
    let mut queue = UdpQueue::new(1, port, port);
    let pushed = queue.push(av.dgid, &av, &headers, 8, |room| {
        room.fill(9);
        Ok(())
    });
    assert_eq!(pushed, Ok(()));
    let bytes = queue.front().expect("one was pushed").bytes().to_vec();
    let end = std::net::SocketAddr::new(av.dgid.to_ip(), port);
    let about = About { src: end, dst: end, traffic_class: 0, hop_limit: 64 };
    let vf = owner.engine.common.nic.vf;
    let shm = &mut sibling.common.out.shm;
    assert_eq!(shm.forward(sibling.common.now, vf, &about, &bytes), Forwarded::Yes);
    rig::run(&mut [&mut sibling, &mut owner.engine]);
    assert_eq!(owner.completed(), [7]);
    assert_eq!(on_ports(&owner.engine, |it| it.rx_udp_packets), [0, 1, 0]);
    assert_eq!(on_ports(&owner.engine, |it| it.rx_bytes), [0, bytes.len() as u64, 0]);
}

#[test]
fn a_process_describes_the_ports_that_counted_something() {
    let mut pair = pair(&nic("ports-view"), QpType::Rc);
    rig::exchange(&mut pair, 1);
    let view = pair[0].engine.view();
    assert_eq!(view.qps[0].port, 2);
    let [port] = view.other_ports.as_slice() else { panic!("{:?}", view.other_ports) };
    assert_eq!(port.number, 2);
    assert!(port.counters.iter().all(|counter| counter.value > 0), "{port:?}");
    assert!(port.counters.iter().any(|counter| counter.name == "tx_shm_packets"));
    let first = view.counters.iter().find(|counter| counter.name == "tx_shm_packets");
    assert_eq!(first.map(|counter| counter.value), Some(0), "the first has all names");
    assert_eq!(view.counter("tx_shm_packets"), 1);
}
