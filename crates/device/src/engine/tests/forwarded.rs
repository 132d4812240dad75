//! Datagrams that another process claims to have received for us.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use iba::{Psn, QpType, Qpn};
use transport::env::Skipped;
use wire::grh::Grh;
use wire::{Headers, Opcode};

use crate::carrier::About;
use crate::carrier::shm::Forwarded;
use crate::carrier::shm::record::Record;
use crate::carrier::udp::{SILENCE, UdpQueue};
use crate::engine::Engine;
use crate::nic::NicInfo;
use crate::rig::user::{self, as_another_user, is_root};
use crate::rig::{self, Objects, completed, run, to_rts};

const STRANGER: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(198, 51, 100, 7));

/// A receiver with a datagram QP and a receive.
struct Victim {
    nic: NicInfo,
    engine: Engine,
    objects: Objects,
    qpn: Qpn,
}

impl Victim {
    fn new(nic: NicInfo) -> Self {
        let mut engine = rig::engine(&nic);
        let objects = Objects::new(&mut engine);
        let (qp, qpn) = objects.qp(&mut engine, QpType::Ud);
        to_rts(&mut engine, qp, QpType::Ud, &nic, Qpn::new(0));
        let wr = objects.recv(7);
        engine.post_recv(qp, wr).expect("room for it");
        Self { nic, engine, objects, qpn }
    }

    /// The datagram that a host far away would have sent, forwarded by `by`.
    fn forward(&mut self, by: &mut Engine, to: Qpn) {
        let (about, bytes) = packet(&self.nic, to);
        let vf = self.engine.common.nic.vf;
        assert_eq!(by.common.out.shm.forward(by.common.now, vf, &about, &bytes), Forwarded::Yes);
        run(&mut [by, &mut self.engine]);
    }

    fn completed(&mut self) -> Vec<u64> {
        completed(&mut self.engine, self.objects.cq)
    }
}

/// A datagram of a stranger with a valid ICRC.
fn packet(nic: &NicInfo, to: Qpn) -> (About, Vec<u8>) {
    let (port, av) = (nic.config.udp_port, rig::av(nic));
    let mut headers = Headers::new(Opcode::UdSendOnly, to, Psn::new(0));
    headers.set_deth(wire::deth::Deth { qkey: rig::QKEY, src_qp: Qpn::new(0x77_7777) });
    let mut queue = UdpQueue::new(1, port, port);
    let pushed = queue.push(STRANGER.into(), &av, &headers, 8, |room| {
        room.fill(9);
        Ok(())
    });
    assert!(pushed.is_ok());
    let about = About {
        src: SocketAddr::new(STRANGER, port),
        dst: SocketAddr::new(av.dgid.to_ip(), port),
        traffic_class: 0x6a,
        hop_limit: 7,
    };
    (about, queue.front().expect("one was pushed").bytes().to_vec())
}

/// The engine of another user, with a ring to the victim.
fn stranger(victim: &mut Victim) -> Engine {
    let mut engine = user::stranger(&victim.nic, victim.engine.common.nic.vf);
    // A thread receives what another user sends.
    while victim.engine.receivers.shm.len() == 0 {
        run(&mut [&mut engine, &mut victim.engine]);
        std::thread::yield_now();
    }
    engine
}

#[test]
fn a_process_of_the_same_user_may_forward() {
    let mut victim = Victim::new(rig::nic("forwarded-same"));
    let mut sibling = rig::engine(&victim.nic);
    let to = victim.qpn;
    victim.forward(&mut sibling, to);
    assert_eq!(victim.completed(), [7]);
    // The receive reports the traffic class and the hop limit of the packet, in the IPv4 header of
    // the last 20 bytes.
    let mut grh = [0; 40];
    victim.objects.buffer.read(0, &mut grh).expect("our own memory");
    assert_eq!((grh[20], grh[21], grh[28]), (0x45, 0x6a, 7));
    let grh = Grh::parse(&grh);
    assert_eq!((grh.traffic_class(), grh.hop_limit()), (0x6a, 7));
    assert_eq!(grh.sgid(), STRANGER.into());
}

/// Otherwise a third process could send in the name of the second, through two rings.
#[test]
fn a_forwarded_datagram_is_not_forwarded_again() {
    let mut victim = Victim::new(rig::nic("forwarded-twice"));
    let mut sibling = rig::engine(&victim.nic);
    let mut third = Victim::new(victim.nic.clone());
    let to = third.qpn;
    victim.forward(&mut sibling, to);
    run(&mut [&mut victim.engine, &mut third.engine]);
    assert_eq!(third.completed(), [0; 0]);
    assert_eq!(victim.engine.counters().forwarded_packets, 0);
    assert_eq!(victim.engine.counters().rx_unknown_qpn, 1);
}

#[test]
fn another_user_cannot_forge_what_it_never_received() {
    if !is_root() {
        return;
    }
    let mut victim = Victim::new(rig::nic("forwarded-forged"));
    let mut forger = stranger(&mut victim);
    let to = victim.qpn;
    victim.forward(&mut forger, to);
    assert_eq!(victim.completed(), [0; 0]);
    assert_eq!(victim.engine.counters().rx_wrong_source, 1);
}

#[test]
fn the_user_that_holds_the_port_forwards_to_those_that_do_not() {
    if !is_root() {
        return;
    }
    let nic = rig::nic("forwarded-holder");
    let port = nic.config.udp_port;
    let held = as_another_user(|| UdpSocket::bind(("0.0.0.0", port)).expect("a free port"));
    let mut victim = Victim::new(nic);
    assert!(victim.engine.receivers.udp.link().is_some_and(|udp| udp.source_port() != port));
    let mut holder = stranger(&mut victim);
    let to = victim.qpn;
    victim.forward(&mut holder, to);
    assert_eq!(victim.completed(), [7]);

    // It is no longer trusted after it has given up the port.
    drop(held);
    victim.engine.clock.pass(Duration::from_millis(100));
    victim.forward(&mut holder, to);
    assert_eq!(victim.engine.counters().rx_wrong_source, 1);
}

/// Otherwise nobody would forward any more.
#[test]
fn a_port_that_another_user_gave_up_is_taken() {
    if !is_root() {
        return;
    }
    let nic = rig::nic("forwarded-taken");
    let port = nic.config.udp_port;
    let held = as_another_user(|| UdpSocket::bind(("0.0.0.0", port)).expect("a free port"));
    let mut engine = rig::engine(&nic);
    let source = |engine: &mut Engine| engine.receivers.udp.link().map(|udp| udp.source_port());
    engine.clock.pass(SILENCE);
    run(&mut [&mut engine]);
    assert!(
        engine.common.out.udp.is_deaf() && source(&mut engine) != Some(port),
        "it is still held"
    );

    drop(held);
    engine.clock.pass(2 * SILENCE);
    run(&mut [&mut engine]);
    assert!(!engine.common.out.udp.is_deaf());
    assert_eq!(source(&mut engine), Some(port));
    // Packets now leave from that port.
    let (headers, av) = (Headers::new(Opcode::UcSendOnly, Qpn::new(9), Psn::new(0)), rig::av(&nic));
    let queue = &mut engine.common.out.udp;
    queue.push(av.dgid, &av, &headers, 0, |_| Ok(())).expect("room for it");
    let batch = queue.front().expect("one was pushed").bytes().to_vec();
    let mut fresh = UdpQueue::new(1, port, port);
    fresh.push(av.dgid, &av, &headers, 0, |_| Ok(())).expect("room for it");
    assert_eq!(batch, fresh.front().expect("one was pushed").bytes(), "the ICRC covers the port");
}

/// A datagram that never left the host names its source in the GRH that its sender built, and in
/// the DETH.
#[test]
fn a_local_datagram_has_a_local_source() {
    let mut victim = Victim::new(rig::nic("forwarded-local"));
    let mut sender = rig::engine(&victim.nic);
    let (vf, theirs, av) =
        (victim.engine.common.nic.vf, sender.common.nic.vf, rig::av(&victim.nic));
    let own = Qpn::new(u32::from(theirs) << 14 | 100);
    for (src, src_qp, wrong) in [
        (STRANGER, own, 1),
        (av.dgid.to_ip(), Qpn::new(u32::from(vf) << 14 | 100), 2),
        (av.dgid.to_ip(), own, 2),
    ] {
        let mut headers = Headers::new(Opcode::UdSendOnly, victim.qpn, Psn::new(0));
        headers.set_deth(wire::deth::Deth { qkey: rig::QKEY, src_qp });
        let grh = Grh::new(src, av.dgid.to_ip(), 0, 64, 40).expect("one family").to_bytes();
        let record = Record {
            headers: &headers,
            length: 8,
            skipped: Skipped::default(),
            grh: Some(&grh),
            source: own,
        };
        let pushed = sender.common.out.shm.push(vf, &record, |room| {
            room.copy_from(&[5; 8]).unwrap();
            Ok::<(), ()>(())
        });
        assert!(pushed.is_ok());
        run(&mut [&mut sender, &mut victim.engine]);
        assert_eq!(victim.engine.counters().rx_wrong_source, wrong);
    }
    assert_eq!(victim.completed(), [7], "the last one");
}
