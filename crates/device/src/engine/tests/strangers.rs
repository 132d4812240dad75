//! What processes of other users may do to an engine, and what they may not.

use std::time::{Duration, Instant};

use iba::QpType;

use crate::engine::Engine;
use crate::rig::user::{as_another_user, is_root, stranger};
use crate::rig::{self, Objects, run};

/// Runs engines until the first one has a number of rings, and there is nothing else to do. Threads
/// receive what strangers send.
fn run_until_rings(engines: &mut [&mut Engine], rings: usize) {
    let began = Instant::now();
    loop {
        run(engines);
        if engines[0].receivers.shm.len() == rings {
            break;
        }
        assert!(began.elapsed() < Duration::from_secs(20), "{rings} rings never were");
        std::thread::yield_now();
    }
}

#[test]
fn records_of_others_wait_while_the_last_ones_of_a_dead_process_are_taken() {
    let nic = rig::nic("strangers-drain");
    let mut victim = rig::engine(&nic);
    let [mut goes, mut stays] = [rig::engine(&nic), rig::engine(&nic)];
    let vf = victim.common.nic.vf;
    for peer in [&mut goes, &mut stays] {
        peer.common.out.shm.prepare(vf);
    }
    run_until_rings(&mut [&mut victim, &mut goes, &mut stays], 2);
    // Records of an unknown kind: they count as malformed.
    for peer in [&mut goes, &mut stays] {
        let pushed = peer.common.out.shm.push_after(vf, &[0; 12], 0, |_| Ok::<_, ()>(()));
        assert!(pushed.is_ok());
    }
    drop(goes);
    victim.housekeeping();
    assert_eq!(victim.counters().rx_malformed_packets, 1, "that of the one that went");
    assert_eq!(victim.receivers.shm.len(), 1);
    victim.receive_local();
    assert_eq!(victim.counters().rx_malformed_packets, 2);
}

#[test]
fn a_vf_has_one_ring_to_us() {
    let nic = rig::nic("strangers-one");
    let mut victim = rig::engine(&nic);
    let mut peer = rig::engine(&nic);
    let vf = victim.common.nic.vf;
    let identity = peer.common.out.shm.claim.as_ref().map(link::registry::Claim::vf);
    let mut rings = Vec::new();
    for _ in 0..3 {
        let claim = peer.common.out.shm.claim.as_mut().expect("not the child of a fork");
        rings.push(claim.connect(vf, 1 << 16).expect("the victim listens"));
        run(&mut [&mut victim, &mut peer]);
        run(&mut [&mut victim, &mut peer]);
    }
    let left: Vec<_> = victim.receivers.shm.iter().map(|from| from.peer().nonce).collect();
    assert_eq!(left, [rings[2].nonce()], "the newest");
    assert_eq!(Some(victim.receivers.shm.get(0).peer().vf), identity);
}

#[test]
fn a_stranger_has_a_limit_of_rings_and_our_own_user_has_none() {
    if !is_root() {
        return;
    }
    let nic = rig::nic("strangers-quota");
    let mut victim = rig::engine(&nic);
    let vf = victim.common.nic.vf;
    // Five processes with rings of 16 MiB, of which 64 MiB are allowed.
    let connect = |engine: &mut Engine| {
        let claim = engine.common.out.shm.claim.as_mut().expect("not the child of a fork");
        claim.connect(vf, link::shm::MAX_CAPACITY).expect("the victim listens")
    };
    let mut strangers: Vec<_> = (0..5).map(|_| as_another_user(|| rig::engine(&nic))).collect();
    let mut rings: Vec<_> =
        strangers.iter_mut().map(|stranger| as_another_user(|| connect(stranger))).collect();
    let mut all: Vec<_> = std::iter::once(&mut victim).chain(&mut strangers).collect();
    run_until_rings(&mut all, 4);
    let refused = |ring: &mut link::shm::Outbound| match ring.poll() {
        link::shm::OutboundState::Refused(words) => words.contains("would exceed 67108864 bytes"),
        _ => false,
    };
    assert_eq!(rings.iter_mut().filter_map(|ring| refused(ring).then_some(())).count(), 1);
    let mut ours: Vec<_> = (0..5).map(|_| rig::engine(&nic)).collect();
    let _rings: Vec<_> = ours.iter_mut().map(connect).collect();
    let mut all: Vec<_> = std::iter::once(&mut victim).chain(&mut ours).collect();
    run_until_rings(&mut all, 9);
}

#[test]
fn a_ring_between_users_works_like_any_ring() {
    if !is_root() {
        return;
    }
    let nic = rig::nic("strangers-honest");
    let mut victim = rig::engine(&nic);
    let vf = victim.common.nic.vf;
    let mut peer = stranger(&nic, vf);
    run_until_rings(&mut [&mut victim, &mut peer], 1);
    let objects = Objects::new(&mut victim);
    let (_, qpn) = objects.qp(&mut victim, QpType::Ud);
    let mut headers = wire::Headers::new(wire::Opcode::UdSendOnly, qpn, iba::Psn::new(0));
    let src_qp = iba::Qpn::new(u32::from(peer.common.nic.vf) << 14 | 100);
    headers.set_deth(wire::deth::Deth { qkey: rig::QKEY, src_qp });
    let skipped = transport::env::Skipped::default();
    let record = crate::carrier::shm::record::Record {
        headers: &headers,
        length: 0,
        skipped,
        grh: None,
        source: src_qp,
    };
    assert!(peer.common.out.shm.push(vf, &record, |_| Ok::<_, ()>(())).is_ok());
    run(&mut [&mut victim, &mut peer]);
    assert_eq!(victim.counters().rx_shm_packets, 1);
}
