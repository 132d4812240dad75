//! What an engine says of its objects, and to whom.

use std::time::Duration;

use iba::QpType;

use crate::hca::Hca;
use crate::rig::{self, Process};

#[test]
fn an_engine_describes_every_object_of_its_process() {
    let nic = rig::nic("view");
    let mut one = Process::new(&nic, QpType::Rc);
    let mut other = Process::new(&nic, QpType::Rc);
    let idle = one.engine.view();
    assert_eq!((idle.qps[0].state, idle.qps[0].path.as_ref()), (0, None), "not connected");

    one.connect(&nic, other.qpn);
    other.connect(&nic, one.qpn);
    other.post_recv(7);
    one.send(1);
    rig::run(&mut [&mut one.engine, &mut other.engine]);
    let view = one.engine.view();
    let [qp] = view.qps.as_slice() else { panic!("one QP: {:?}", view.qps) };
    assert_eq!((qp.kind, qp.state), (QpType::Rc as u8, 3));
    assert_eq!((qp.qpn, qp.remote_qpn), (one.qpn.value(), Some(other.qpn.value())));
    assert_eq!((qp.pd, qp.send_cq), (Some(view.pds[0].id), Some(view.cqs[0].id)));
    let path = qp.path.as_ref().expect("it is connected");
    assert_eq!((path.carrier.as_str(), path.vf), ("shared memory", Some(1)));
    assert_eq!(path.why, "the peer is another process of this host");
    let is_root = rustix::process::geteuid().is_root();
    assert_eq!(view.mrs[0].key, is_root.then_some(one.objects.mr.lkey), "for root alone");
    assert_eq!(view.mrs[0].length, 1 << 16);
    assert_eq!(view.cqs[0].held, 1, "the send has completed");
    assert_eq!((view.contexts.len(), view.left_out), (1, 0));
    assert_eq!(view.counter("tx_shm_packets"), 1);
    assert_eq!(view::Process::decode(&view.encode()), Ok(view));
}

#[test]
fn a_process_is_asked_while_it_sleeps() {
    let nic = rig::nic("view-asleep");
    let hca = Hca::start(&nic).expect("a VF is free");
    hca.lock().open_ctx().expect("descriptors");
    let seen = view::gather(&nic.config.name, Duration::from_secs(60)).expect("/proc is there");
    let [(_, pid, process)] = seen.processes.as_slice() else { panic!("one process: {seen:?}") };
    assert_eq!((*pid, process.pid), (std::process::id(), std::process::id()));
    assert_eq!(process.contexts.len(), 1);
}
