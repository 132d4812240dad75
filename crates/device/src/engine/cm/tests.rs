//! Endpoints over real carriers: within a process, between two processes over rings, and over UDP.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use iba::{QKey, QpState, QpType, Qpn};
use link::registry::Directory;

use super::unheard::PATIENCE;
use crate::config::NicConfig;
use crate::engine::Engine;
use crate::ids::{CmId, QpId};
use crate::mad::Arrived;
use crate::nic::NicInfo;
use crate::rdma_cm::{
    BindOptions, ConnParam, Event, EventKind, PortSpace, Queue, RejReason, SidrStatus, Spec,
    Timeouts,
};
use crate::rig::{Objects, completed, engine, nic, post, run, send};
use crate::{Kind, Refusal};

const TCP: Spec = Spec { port_space: PortSpace::Tcp, qp_type: QpType::Rc, cookie: 7 };
const UDP: Spec = Spec { port_space: PortSpace::Udp, qp_type: QpType::Ud, cookie: 8 };

fn addr(nic: &NicInfo, port: u16) -> SocketAddr {
    (nic.gids[0].gid.to_ip(), port).into()
}

/// An engine with a queue of events, and objects for a QP.
struct Side {
    engine: Engine,
    queue: Arc<Queue>,
    objects: Objects,
}

impl Side {
    fn new(nic: &NicInfo) -> Self {
        let mut engine = engine(nic);
        let objects = Objects::new(&mut engine);
        Self { engine, queue: Arc::new(Queue::new().expect("descriptors")), objects }
    }

    fn create(&mut self, spec: &Spec) -> CmId {
        self.engine.cm_create(spec, self.queue.clone()).expect("a good spec")
    }

    fn listener(&mut self, spec: &Spec, at: SocketAddr) -> (CmId, SocketAddr) {
        let id = self.create(spec);
        let at = self.engine.cm_bind(id, at, BindOptions::default()).expect("it is free");
        self.engine.cm_listen(id, 1024).expect("it is ours");
        (id, at)
    }

    fn resolved(&mut self, spec: &Spec, to: SocketAddr) -> CmId {
        let id = self.create(spec);
        self.engine.cm_resolve(id, None, to).expect("there is a way");
        id
    }

    fn qp(&mut self) -> (QpId, Qpn) {
        self.objects.qp(&mut self.engine, QpType::Rc)
    }

    /// Brings a QP to RTS, as its endpoint says.
    fn bring_up(&mut self, id: CmId, qp: QpId) {
        for state in [QpState::Init, QpState::Rtr, QpState::Rts] {
            let (attr, mask) = self.engine.cm_qp_attr(id, state).expect("the endpoint knows");
            let _ = self.engine.modify_qp(qp, &attr, mask).expect("a good transition");
        }
    }
}

fn param(qpn: Qpn) -> ConnParam {
    ConnParam {
        private_data: b"hello".to_vec(),
        responder_resources: 4,
        initiator_depth: 3,
        retry_count: 7,
        rnr_retry_count: 7,
        qpn,
        ..ConnParam::default()
    }
}

/// Lets all run until one of the queues has an event: packets of a socket take time.
#[track_caller]
fn next(sides: &mut [&mut Side], of: usize) -> Event {
    let give_up = Instant::now() + Duration::from_secs(30);
    loop {
        run(&mut sides.iter_mut().map(|side| &mut side.engine).collect::<Vec<_>>());
        if let Some(event) = sides[of].queue.pop() {
            return event;
        }
        assert!(Instant::now() < give_up, "no event came");
        std::thread::yield_now();
    }
}

/// Lets time pass until a request without a listener stops waiting.
fn in_vain(sides: &mut [&mut Side]) {
    run(&mut sides.iter_mut().map(|side| &mut side.engine).collect::<Vec<_>>());
    for side in sides {
        side.engine.clock.pass(PATIENCE);
    }
}

/// Makes a connection, sends a message each way, and ends it.
fn live(sides: &mut [&mut Side], active: usize, passive: usize, to: SocketAddr) {
    let (a_qp, a_qpn) = sides[active].qp();
    let a = sides[active].resolved(&TCP, to);
    sides[active].engine.cm_connect(a, &param(a_qpn)).expect("it is resolved");

    let event = next(sides, passive);
    let EventKind::ConnectRequest { new: p, param: asked } = event.kind else {
        panic!("{event:?}")
    };
    assert_eq!((asked.qpn, asked.responder_resources, asked.initiator_depth), (a_qpn, 3, 4));
    assert_eq!((&asked.private_data[..6], asked.private_data.len()), (&b"hello\0"[..], 56));
    let theirs = sides[passive].engine.cm_addresses(p).expect("it exists");
    let ours = sides[active].engine.cm_addresses(a).expect("it exists");
    assert_eq!((theirs.local, theirs.remote), (Some(to), ours.local));
    assert_eq!(ours.remote, Some(to));
    let (p_qp, p_qpn) = sides[passive].qp();
    sides[passive].bring_up(p, p_qp);
    sides[passive].engine.cm_accept(p, &param(p_qpn)).expect("a request waits");

    let event = next(sides, active);
    let EventKind::ConnectResponse { param: answer } = event.kind else { panic!("{event:?}") };
    assert_eq!((event.id, event.cookie, answer.qpn), (a, 7, p_qpn));
    assert_eq!(answer.private_data.len(), 196);
    sides[active].bring_up(a, a_qp);
    sides[active].engine.cm_ready(a, &[]).expect("a response came");
    let event = next(sides, passive);
    assert!(matches!(event.kind, EventKind::Established { .. }), "{event:?}");
    assert_eq!(event.id, p);

    for (from, qp, to, at) in [(active, a_qp, passive, p_qp), (passive, p_qp, active, a_qp)] {
        let recv = sides[to].objects.recv(1);
        sides[to].engine.post_recv(at, recv).expect("room");
        post(&mut sides[from].engine, qp, send(2, None));
        let give_up = Instant::now() + Duration::from_secs(30);
        let mut done = Vec::new();
        while done.len() < 2 {
            run(&mut sides.iter_mut().map(|side| &mut side.engine).collect::<Vec<_>>());
            for side in sides.iter_mut() {
                let cq = side.objects.cq;
                done.extend(completed(&mut side.engine, cq));
            }
            assert!(Instant::now() < give_up, "the message did not arrive: {done:?}");
        }
    }

    sides[active].engine.cm_disconnect(a).expect("it stands");
    let event = next(sides, passive);
    assert_eq!((event.id, event.kind), (p, EventKind::Disconnected { timed_out: false }));
    sides[passive].engine.cm_disconnect(p).expect("it has ended");
    let event = next(sides, active);
    assert_eq!((event.id, event.kind), (a, EventKind::Disconnected { timed_out: false }));
    for (side, id) in [(active, a), (passive, p)] {
        let engine = &mut sides[side].engine;
        engine.clock.pass(Duration::from_secs(1));
        let event = next(sides, side);
        assert_eq!((event.id, event.kind), (id, EventKind::TimewaitExit));
        sides[side].engine.cm_destroy(id).expect("it exists");
    }
    for (side, qp) in [(active, a_qp), (passive, p_qp)] {
        let _ = sides[side].engine.destroy_qp(qp).expect("it exists");
    }
}

/// Nothing of connection management is left.
fn assert_clean(side: &mut Side, listeners: usize) {
    let cm = &side.engine.cm;
    assert_eq!(cm.endpoints.len(), listeners);
    assert!(cm.cm.is_empty() && cm.by_conn.is_empty() && cm.mads.unsent.is_empty());
    assert!(side.engine.common.waiting.gsi.is_empty() && side.queue.pop().is_none());
}

#[test]
fn a_connection_within_a_process_works() {
    let nic = nic("cm-loopback");
    let mut side = Side::new(&nic);
    let (listener, at) = side.listener(&TCP, addr(&nic, 0));
    live(&mut [&mut side], 0, 0, at);
    assert_clean(&mut side, 1);
    side.engine.cm_destroy(listener).expect("it exists");
    assert_clean(&mut side, 0);
}

#[test]
fn connections_between_processes_work() {
    let nic = nic("cm-rings");
    let (mut a, mut b, mut c) = (Side::new(&nic), Side::new(&nic), Side::new(&nic));
    let at = addr(&nic, 7174);
    let (listener, _) = b.listener(&TCP, addr(&nic, 7174));
    for _ in 0..3 {
        live(&mut [&mut a, &mut b, &mut c], 0, 1, at);
    }
    assert_clean(&mut a, 0);
    assert_clean(&mut b, 1);
    // The port moves to another process, on the wildcard.
    b.engine.cm_destroy(listener).expect("it exists");
    c.listener(&TCP, "0.0.0.0:7174".parse().expect("an address"));
    live(&mut [&mut a, &mut b, &mut c], 0, 2, at);
    live(&mut [&mut a, &mut b, &mut c], 1, 2, at);
}

#[test]
fn a_request_that_names_the_qp_of_another_connection_ends_none() {
    let nic = nic("cm-not-stale");
    let (mut a, mut b, mut stranger) = (Side::new(&nic), Side::new(&nic), Side::new(&nic));
    let at = addr(&nic, 7174);
    b.listener(&TCP, at);
    let mut sides = [&mut a, &mut b, &mut stranger];
    let (_, qpn) = sides[0].qp();
    let request = |sides: &mut [&mut Side], from: usize| {
        let id = sides[from].resolved(&TCP, at);
        sides[from].engine.cm_connect(id, &param(qpn)).expect("it is resolved");
        let event = next(sides, 1);
        let EventKind::ConnectRequest { new, .. } = event.kind else { panic!("{event:?}") };
        let (qp, number) = sides[1].qp();
        sides[1].bring_up(new, qp);
        sides[1].engine.cm_accept(new, &param(number)).expect("a request waits");
        let event = next(sides, from);
        assert!(matches!(event.kind, EventKind::ConnectResponse { .. }), "{event:?}");
        sides[from].engine.cm_ready(id, &[]).expect("a response came");
        let event = next(sides, 1);
        assert!(matches!(event.kind, EventKind::Established { .. }), "{event:?}");
    };
    request(&mut sides, 0);
    // With the same channel adapter, that of the host, and the QP of the first.
    request(&mut sides, 2);
    run(&mut sides.iter_mut().map(|side| &mut side.engine).collect::<Vec<_>>());
    assert!(sides.iter().all(|side| side.queue.pop().is_none()), "no connection ended");
}

#[test]
fn a_stranger_does_not_take_over_what_a_wildcard_listener_has() {
    let nic = nic("cm-takeover");
    let mut a = Side::new(&nic);
    let mut stranger = Directory::new(&nic.config.name, 900).expect("descriptors");
    let (_, at) = a.listener(&TCP, "0.0.0.0:0".parse().expect("an address"));
    let service = PortSpace::Tcp.service_id(at.port());
    let refused = stranger.claim(&super::ports::name_of(service, addr(&nic, 0).ip()));
    assert!(refused.is_err_and(|error| error.to_string().contains("held by pid")));
}

#[test]
fn connections_over_the_wire_work() {
    let mut nic = nic("cm-udp");
    nic.config = NicConfig { force_udp: true, ..nic.config };
    let (mut a, mut b) = (Side::new(&nic), Side::new(&nic));
    let at = addr(&nic, 7174);
    b.listener(&TCP, at);
    // Packets for QP 1 find their process, whichever one the kernel gives them to.
    live(&mut [&mut a, &mut b], 0, 1, at);
    let at = addr(&nic, 7175);
    a.listener(&TCP, at);
    live(&mut [&mut a, &mut b], 1, 0, at);
    let forwarded = |side: &Side| side.engine.counters().forwarded_packets;
    assert!(forwarded(&a) + forwarded(&b) > 0, "one of them got what was the other's");
}

#[test]
fn a_request_that_nobody_listens_for_is_refused() {
    let nic = nic("cm-nobody");
    let (mut a, mut b) = (Side::new(&nic), Side::new(&nic));
    for (spec, refused) in [(TCP, RejReason::INVALID_SERVICE_ID), (UDP, RejReason(0))] {
        let id = a.resolved(&spec, addr(&nic, 9));
        a.engine.cm_connect(id, &param(Qpn::new(5))).expect("it is resolved");
        in_vain(&mut [&mut a, &mut b]);
        let event = next(&mut [&mut a, &mut b], 0);
        match event.kind {
            EventKind::Rejected { reason, .. } => assert_eq!(reason, refused),
            EventKind::SidrRefused { status, .. } => {
                assert_eq!((status, spec), (SidrStatus::UNSUPPORTED, UDP));
            }
            other => panic!("{other:?}"),
        }
        a.engine.cm_destroy(id).expect("it exists");
    }
    assert_clean(&mut a, 0);
}

#[test]
fn a_process_that_only_holds_the_port_does_not_listen() {
    let nic = nic("cm-bound");
    let (mut a, mut b) = (Side::new(&nic), Side::new(&nic));
    let bound = b.create(&TCP);
    b.engine.cm_bind(bound, addr(&nic, 7174), BindOptions::default()).expect("it is free");
    let id = a.resolved(&TCP, addr(&nic, 7174));
    a.engine.cm_connect(id, &param(Qpn::new(5))).expect("it is resolved");
    in_vain(&mut [&mut a, &mut b]);
    let event = next(&mut [&mut a, &mut b], 0);
    let EventKind::Rejected { reason, .. } = event.kind else { panic!("{event:?}") };
    assert_eq!(reason, RejReason::INVALID_SERVICE_ID);
}

#[test]
fn a_process_that_listens_a_moment_later_gets_the_request() {
    let nic = nic("cm-late");
    let (mut a, mut b) = (Side::new(&nic), Side::new(&nic));
    // Its port is free, or belongs to another process, or to this one.
    for (port, by) in [(7174, 1), (7175, 1), (7176, 0)] {
        let bound = (port == 7175).then(|| {
            let id = b.create(&TCP);
            b.engine.cm_bind(id, addr(&nic, port), BindOptions::default()).expect("it is free");
            id
        });
        let id = a.resolved(&TCP, addr(&nic, port));
        a.engine.cm_connect(id, &param(Qpn::new(port.into()))).expect("it is resolved");
        run(&mut [&mut a.engine, &mut b.engine]);
        if let Some(bound) = bound {
            b.engine.cm_listen(bound, 1).expect("it is ours");
        } else {
            [&mut a, &mut b][by].listener(&TCP, addr(&nic, port));
        }
        // The process that has the port now is asked first.
        let event = (0..15).find_map(|_| {
            a.engine.clock.pass(PATIENCE / 20);
            b.engine.clock.pass(PATIENCE / 20);
            run(&mut [&mut a.engine, &mut b.engine]);
            [&mut a, &mut b][by].queue.pop()
        });
        let kind = event.map(|event| event.kind);
        assert!(matches!(kind, Some(EventKind::ConnectRequest { .. })), "{port}: {kind:?}");
        assert_eq!(a.queue.pop(), None);
    }
    // A peer that has stopped waiting for the answer gets none.
    let id = a.resolved(&TCP, addr(&nic, 7177));
    a.engine.cm_connect(id, &param(Qpn::new(5))).expect("it is resolved");
    a.engine.cm_destroy(id).expect("it exists");
    b.listener(&TCP, addr(&nic, 7177));
    in_vain(&mut [&mut a, &mut b]);
    run(&mut [&mut a.engine, &mut b.engine]);
    assert_eq!(b.queue.pop(), None);
}

#[test]
fn a_service_is_resolved_to_a_qp() {
    let nic = nic("cm-sidr");
    let (mut a, mut b) = (Side::new(&nic), Side::new(&nic));
    b.listener(&UDP, addr(&nic, 7174));
    for accepts in [true, false] {
        let id = a.resolved(&UDP, addr(&nic, 7174));
        a.engine.cm_connect(id, &param(Qpn::new(5))).expect("it is resolved");
        let event = next(&mut [&mut a, &mut b], 1);
        let EventKind::ConnectRequest { new, param: asked } = event.kind else {
            panic!("{event:?}")
        };
        assert_eq!((&asked.private_data[..5], asked.private_data.len()), (&b"hello"[..], 180));
        if accepts {
            let answer = ConnParam { qkey: QKey(0x77), ..param(Qpn::new(0x42)) };
            b.engine.cm_accept(new, &answer).expect("it waits");
        } else {
            b.engine.cm_reject(new, RejReason::CONSUMER_DEFINED, &[], b"no").expect("it waits");
        }
        b.engine.cm_destroy(new).expect("it exists");
        match next(&mut [&mut a, &mut b], 0).kind {
            EventKind::Established { param } if accepts => {
                assert_eq!((param.qpn, param.qkey), (Qpn::new(0x42), QKey(0x77)));
            }
            EventKind::SidrRefused { status, private_data } if !accepts => {
                assert_eq!((status, &private_data[..2]), (SidrStatus::REJECT, &b"no"[..]));
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(a.engine.cm_route(id).expect("resolved").dgid, nic.gids[0].gid);
        a.engine.cm_destroy(id).expect("it exists");
    }
    assert_clean(&mut a, 0);
    assert_clean(&mut b, 1);
}

#[test]
fn a_peer_whose_process_dies_has_ended_its_connections() {
    let nic = nic("cm-death");
    let (mut a, mut b) = (Side::new(&nic), Side::new(&nic));
    b.listener(&TCP, addr(&nic, 7174));
    let id = a.resolved(&TCP, addr(&nic, 7174));
    a.engine.cm_connect(id, &param(Qpn::new(5))).expect("it is resolved");
    let event = next(&mut [&mut a, &mut b], 1);
    let EventKind::ConnectRequest { new, .. } = event.kind else { panic!("{event:?}") };
    b.engine.cm_accept(new, &param(Qpn::new(6))).expect("it waits");
    next(&mut [&mut a, &mut b], 0);
    a.engine.cm_ready(id, &[]).expect("a response came");
    next(&mut [&mut a, &mut b], 1);
    drop(b);
    let event = next(&mut [&mut a], 0);
    assert_eq!((event.id, event.kind), (id, EventKind::Disconnected { timed_out: false }));
    a.engine.cm_disconnect(id).expect("it has ended");
    // Its port is free, and no process listens on it.
    let again = a.resolved(&TCP, addr(&nic, 7174));
    a.engine.cm_connect(again, &param(Qpn::new(5))).expect("it is resolved");
    in_vain(&mut [&mut a]);
    let event = next(&mut [&mut a], 0);
    assert!(matches!(event.kind, EventKind::Rejected { .. }), "{event:?}");
}

#[test]
fn a_stopped_peer_is_reported_unreachable_after_the_retries() {
    let nic = nic("cm-stopped");
    let (mut a, mut b) = (Side::new(&nic), Side::new(&nic));
    b.listener(&TCP, addr(&nic, 7174));
    let id = a.resolved(&TCP, addr(&nic, 7174));
    a.engine.cm_set_timeouts(id, Timeouts { response_timeout: 14, max_retries: 2 }).expect("good");
    a.engine.cm_connect(id, &param(Qpn::new(5))).expect("it is resolved");
    // `b` does not run: it does not even answer that the port is its own.
    for _ in 0..6 {
        a.engine.clock.pass(Duration::from_secs(1));
        run(&mut [&mut a.engine]);
    }
    let event = a.queue.pop().expect("three times 0.6 s are over");
    assert_eq!((event.id, event.kind), (id, EventKind::Unreachable));
    // Its request from that time arrives late, and is refused.
    a.engine.cm_destroy(id).expect("it exists");
    run(&mut [&mut a.engine, &mut b.engine]);
    assert!(a.queue.pop().is_none());
}

#[test]
fn ports_and_addresses_are_refused_by_rule() {
    let nic = nic("cm-refused");
    let (mut a, mut b) = (Side::new(&nic), Side::new(&nic));
    let kind = |result: Result<SocketAddr, Refusal>| result.expect_err("it is refused").kind();
    a.listener(&TCP, addr(&nic, 7174));
    let bind = |side: &mut Side, at: SocketAddr, options| {
        let id = side.create(&TCP);
        side.engine.cm_bind(id, at, options)
    };
    let options = BindOptions { reuse_addr: true, ..BindOptions::default() };
    assert_eq!(kind(bind(&mut a, addr(&nic, 7174), options)), Kind::AddressInUse);
    assert_eq!(kind(bind(&mut b, addr(&nic, 7174), options)), Kind::AddressInUse);
    let any: SocketAddr = "0.0.0.0:7174".parse().expect("an address");
    assert_eq!(kind(bind(&mut b, any, options)), Kind::AddressNotAvailable);
    let stranger: SocketAddr = "192.0.2.1:1".parse().expect("an address");
    assert_eq!(kind(bind(&mut a, stranger, options)), Kind::AddressNotAvailable);
    bind(&mut a, addr(&nic, 7175), options).expect("free");
    bind(&mut a, addr(&nic, 7175), options).expect("shared");

    let id = a.create(&TCP);
    let refused = a.engine.cm_connect(id, &param(Qpn::new(1))).expect_err("not resolved");
    assert_eq!(refused.kind(), Kind::Invalid);
    let to: SocketAddr = "224.0.0.1:5".parse().expect("an address");
    a.engine.cm_resolve(id, None, to).expect("there is a way to a group");
    let refused = a.engine.cm_connect(id, &param(Qpn::new(1))).expect_err("a group");
    assert_eq!(refused.kind(), Kind::Invalid);
    let id = a.create(&TCP);
    let refused = a.engine.cm_resolve(id, Some(stranger), addr(&nic, 1)).expect_err("not ours");
    assert_eq!(refused.kind(), Kind::AddressNotAvailable);
    a.engine.cm_resolve(id, None, addr(&nic, 1)).expect("there is a way");
    let long = ConnParam { private_data: vec![0; 57], ..param(Qpn::new(1)) };
    let refused = a.engine.cm_connect(id, &long).expect_err("56 are the most");
    assert_eq!(refused.kind(), Kind::Invalid);
    let spec = Spec { qp_type: QpType::Ud, ..TCP };
    let refused = a.engine.cm_create(&spec, a.queue.clone()).expect_err("no such service");
    assert_eq!(refused.kind(), Kind::Invalid);
    assert_eq!(a.engine.cm_destroy(CmId(9999)).expect_err("unknown").kind(), Kind::NotFound);
}

#[test]
fn a_request_beyond_the_backlog_waits_until_the_program_takes_another() {
    let nic = nic("cm-crowd");
    let (mut a, mut b, mut c) = (Side::new(&nic), Side::new(&nic), Side::new(&nic));
    let listener = b.create(&TCP);
    let at = b.engine.cm_bind(listener, addr(&nic, 7174), BindOptions::default()).expect("free");
    b.engine.cm_listen(listener, 1).expect("it is ours");
    let ask = |side: &mut Side, qpn| {
        let id = side.resolved(&TCP, at);
        side.engine.cm_connect(id, &param(Qpn::new(qpn))).expect("it is resolved");
        id
    };
    let asked: Vec<_> = (1..=4).map(|qpn| ask(&mut a, qpn)).collect();
    run(&mut [&mut a.engine, &mut b.engine, &mut c.engine]);
    ask(&mut c, 5);
    run(&mut [&mut a.engine, &mut b.engine, &mut c.engine]);
    // No time passes, in which a request could be repeated.
    let waits = |b: &mut Side| {
        let EventKind::ConnectRequest { new, param } = b.queue.pop()?.kind else { return None };
        Some((new, param.qpn.value()))
    };
    let (first, qpn) = waits(&mut b).expect("there is room for one");
    assert_eq!((qpn, waits(&mut b)), (1, None));
    // One is taken back, and the process of another is gone.
    a.engine.cm_destroy(asked[2]).expect("it exists");
    drop(c);
    run(&mut [&mut a.engine, &mut b.engine]);
    b.engine.cm_taken(first).expect("it is a connection");
    let (second, qpn) = waits(&mut b).expect("there is room again");
    assert_eq!((qpn, waits(&mut b)), (2, None));
    b.engine.cm_reject(second, RejReason::CONSUMER_DEFINED, &[], &[]).expect("it waits");
    let (third, qpn) = waits(&mut b).expect("there is room again");
    assert_eq!((qpn, waits(&mut b)), (4, None));
    b.engine.cm_accept(third, &param(Qpn::new(6))).expect("it waits");
    assert_eq!(waits(&mut b), None);
    assert!(b.engine.cm.mads.crowded.is_empty());
}

#[test]
fn requests_that_wait_for_a_listener_that_goes_are_refused() {
    let nic = nic("cm-crowd-gone");
    let (mut a, mut b) = (Side::new(&nic), Side::new(&nic));
    let listener = b.create(&TCP);
    let at = b.engine.cm_bind(listener, addr(&nic, 7174), BindOptions::default()).expect("free");
    b.engine.cm_listen(listener, 1).expect("it is ours");
    let asked = [1, 2].map(|qpn| {
        let id = a.resolved(&TCP, at);
        a.engine.cm_connect(id, &param(Qpn::new(qpn))).expect("it is resolved");
        id
    });
    run(&mut [&mut a.engine, &mut b.engine]);
    b.engine.cm_destroy(listener).expect("it exists");
    let event = next(&mut [&mut a, &mut b], 0);
    assert_eq!(event.id, asked[1]);
    let EventKind::Rejected { reason, .. } = event.kind else { panic!("{event:?}") };
    assert_eq!(reason, RejReason::INVALID_SERVICE_ID);
}

#[test]
fn a_storm_of_connections_leaves_nothing_behind() {
    let nic = nic("cm-storm");
    let (mut a, mut b) = (Side::new(&nic), Side::new(&nic));
    b.listener(&TCP, addr(&nic, 7174));
    let fds = || std::fs::read_dir("/proc/self/fd").expect("/proc").count();
    let mut conns = Vec::new();
    let before = fds();
    for number in 0..1000 {
        let id = a.resolved(&TCP, addr(&nic, 7174));
        a.engine.cm_connect(id, &param(Qpn::new(0x100 + number))).expect("it is resolved");
        conns.push(id);
    }
    let (mut stand, mut ended) = (0, 0);
    let give_up = Instant::now() + Duration::from_secs(60);
    while stand < 1000 || ended < 2000 {
        assert!(Instant::now() < give_up, "{stand} stand, {ended} ended");
        run(&mut [&mut a.engine, &mut b.engine]);
        while let Some(event) = b.queue.pop() {
            match event.kind {
                EventKind::ConnectRequest { new, .. } => {
                    let qpn = Qpn::new(0x5000 + new.handle());
                    b.engine.cm_accept(new, &param(qpn)).expect("it waits");
                }
                EventKind::Established { .. } => stand += 1,
                EventKind::Disconnected { .. } => {
                    b.engine.cm_destroy(event.id).expect("it exists");
                    ended += 1;
                }
                other => panic!("{other:?}"),
            }
        }
        while let Some(event) = a.queue.pop() {
            match event.kind {
                EventKind::ConnectResponse { .. } => {
                    a.engine.cm_ready(event.id, &[]).expect("it came");
                    a.engine.cm_disconnect(event.id).expect("it stands");
                }
                EventKind::Disconnected { timed_out } => {
                    assert!(!timed_out);
                    a.engine.cm_destroy(event.id).expect("it exists");
                    ended += 1;
                }
                other => panic!("{other:?}"),
            }
        }
    }
    for side in [&mut a, &mut b] {
        side.engine.clock.pass(Duration::from_secs(2));
    }
    run(&mut [&mut a.engine, &mut b.engine]);
    assert_clean(&mut a, 0);
    assert_clean(&mut b, 1);
    // Other tests of this process open and close descriptors at the same time, but not hundreds.
    assert!(fds() < before + 500, "a descriptor per connection");
}

/// A process floods QP 1 with invalid datagrams.
#[test]
fn garbage_for_qp_1_is_counted_and_bounded() {
    let nic = nic("cm-garbage");
    let (mut a, mut b) = (Side::new(&nic), Side::new(&nic));
    b.listener(&TCP, addr(&nic, 7174));
    let ignored = |side: &Side| side.engine.counters().cm_ignored;
    let before = ignored(&b);
    let gid = nic.gids[0].gid;
    for number in 0..5000_u32 {
        let mut mad = Box::new([number as u8; 256]);
        if number % 2 == 0 {
            let header = wire::mad::MadHeader::cm(0x10 + (number % 16) as u16, 1).to_bytes();
            mad[..24].copy_from_slice(&header);
        }
        let from = ::cm::Peer { local: gid, remote: gid, via: Some(a.engine.common.nic.vf) };
        b.engine.common.waiting.gsi.push_back(Arrived::local(from, mad));
        run(&mut [&mut a.engine, &mut b.engine]);
    }
    assert!(ignored(&b) > before + 2500);
    assert!(b.engine.cm.cm.len() < 10);
}

#[test]
fn a_name_of_the_host_is_found_in_its_registry() {
    let nic = nic("cm-name");
    let mut a = Side::new(&nic);
    a.listener(&TCP, addr(&nic, 7174));
    let directory = Directory::new(&nic.config.name, 99).expect("descriptors");
    assert!(directory.is_held(&super::ports::name_of(0x0106_1c06, addr(&nic, 0).ip())));
    assert!(!directory.is_held(&super::ports::any_name(0x0106_1c06, true)));
}
