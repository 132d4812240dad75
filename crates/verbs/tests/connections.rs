//! Connections by address and port, and groups. `crates/peerdma` runs this file with a library,
//! too.

mod chosen;

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use verbs::cm::{ConnParam, Event, EventChannel, EventKind, Group, Id, MULTICAST_QPN, RejReason};
use verbs::{Access, Context, Cq, HostBuf, Kind, Pd, Qp, QpSpec, SendRequest, Wc, WcStatus};

const PATIENCE: Duration = Duration::from_secs(30);

/// One role of a program, with a virtual function of its own.
struct Part {
    context: Context,
    pd: Pd,
    cq: Cq,
    channel: EventChannel,
}

impl Part {
    fn new(context: Context) -> Self {
        let pd = context.alloc_pd().unwrap();
        let cq = context.create_cq(64).unwrap();
        let channel = EventChannel::new(&context).unwrap();
        Self { context, pd, cq, channel }
    }

    fn qp(&self) -> Qp {
        self.pd.create_qp(&QpSpec::rc(&self.cq)).unwrap()
    }

    #[track_caller]
    fn event(&self) -> Event {
        self.channel.event(PATIENCE).unwrap().expect("an event within half a minute")
    }

    /// Listens at a free port of the NIC's first address.
    fn listen(&self) -> (Id, SocketAddr) {
        let id = self.channel.create_id().unwrap();
        let ip = self.context.default_gid().unwrap().gid.to_ip();
        let at = id.bind((ip, 0).into()).unwrap();
        id.listen(8).unwrap();
        assert_eq!(id.local_addr(), Some(at));
        (id, at)
    }

    /// Requests a connection.
    fn ask(&self, to: SocketAddr, private_data: &[u8]) -> (Id, Qp) {
        let (id, qp) = (self.channel.create_id().unwrap(), self.qp());
        id.resolve(None, to).unwrap();
        id.connect(&qp, &said(private_data)).unwrap();
        (id, qp)
    }

    #[track_caller]
    fn request(&self) -> (Id, ConnParam) {
        let event = self.event();
        let EventKind::ConnectRequest { param } = event.kind else { panic!("{event:?}") };
        (event.id, param)
    }
}

fn said(private_data: &[u8]) -> ConnParam {
    ConnParam { private_data: private_data.to_vec(), ..ConnParam::default() }
}

/// Two parts, as two processes have them. A software NIC is one of this test's own.
fn parts(name: &str) -> (Part, Part) {
    let device = chosen::device_for(&format!("conn-{name}"));
    (Part::new(device.open().unwrap()), Part::new(chosen::another(&device)))
}

#[track_caller]
fn completion(cq: &Cq) -> Wc {
    cq.wait_timeout(PATIENCE).unwrap().expect("a completion within half a minute")
}

/// A connection between two parts.
fn connected(active: &Part, passive: &Part) -> [(Id, Qp); 2] {
    let (_listener, at) = passive.listen();
    let (id, qp) = active.ask(at, b"");
    let (theirs, _) = passive.request();
    let their_qp = passive.qp();
    theirs.accept(&their_qp, &ConnParam::default()).unwrap();
    assert!(matches!(active.event().kind, EventKind::Established { .. }));
    assert!(matches!(passive.event().kind, EventKind::Established { .. }));
    [(id, qp), (theirs, their_qp)]
}

#[test]
fn a_connection_brings_private_data_each_way_and_its_qps_to_rts() {
    let (a, b) = parts("made");
    let (listener, at) = b.listen();
    let (id, qp) = a.ask(at, b"ping");
    let event = b.event();
    assert_eq!(event.listener, Some(listener));
    let EventKind::ConnectRequest { param } = event.kind else { panic!("{:?}", event.kind) };
    assert_eq!(&param.private_data[..5], b"ping\0");
    assert_eq!((event.id.local_addr(), event.id.peer_addr()), (Some(at), id.local_addr()));
    let their_qp = b.qp();
    let most = ConnParam { responder_resources: 2, ..said(b"pong") };
    event.id.accept(&their_qp, &most).unwrap();
    let established = a.event();
    assert_eq!(established.id, id);
    let EventKind::Established { param } = established.kind else { panic!("{established:?}") };
    assert_eq!(&param.private_data[..5], b"pong\0");
    assert!(matches!(b.event().kind, EventKind::Established { .. }));
    assert_eq!(their_qp.query().unwrap().max_dest_rd_atomic, 2);

    let memory = HostBuf::anonymous(4096).unwrap();
    let (from, to) = (
        a.pd.reg_mr(&memory, Access::LOCAL_WRITE).unwrap(),
        b.pd.reg_mr(&memory, Access::LOCAL_WRITE).unwrap(),
    );
    memory.write(0, b"message").unwrap();
    their_qp.post_recv(1, &[to.slice(1024, 64)]).unwrap();
    qp.post_send(&SendRequest::send(2, &[from.slice(0, 7)]).signaled()).unwrap();
    assert_eq!(completion(&a.cq).status, WcStatus::Success);
    assert_eq!(completion(&b.cq).byte_len, 7);
    let mut seen = [0; 7];
    memory.read(1024, &mut seen).unwrap();
    assert_eq!(&seen, b"message");
}

#[test]
fn a_disconnected_qp_flushes_what_is_posted_on_both_sides() {
    let (a, b) = parts("ended");
    let [(id, qp), (theirs, their_qp)] = connected(&a, &b);
    qp.post_recv(1, &[]).unwrap();
    their_qp.post_recv(2, &[]).unwrap();
    id.disconnect().unwrap();
    assert_eq!(completion(&a.cq).status, WcStatus::WrFlushErr);
    let event = b.event();
    assert!(matches!(event.kind, EventKind::Disconnected { timed_out: false }), "{event:?}");
    assert_eq!(event.id, theirs);
    theirs.disconnect().unwrap();
    assert_eq!(completion(&b.cq).status, WcStatus::WrFlushErr);
    assert!(matches!(a.event().kind, EventKind::Disconnected { timed_out: false }));
}

#[test]
fn an_identifier_that_is_dropped_ends_its_connection() {
    let (a, b) = parts("dropped");
    let [(id, qp), _theirs] = connected(&a, &b);
    qp.post_recv(1, &[]).unwrap();
    drop(id);
    assert_eq!(completion(&a.cq).status, WcStatus::WrFlushErr, "the QP went with it");
    assert!(matches!(b.event().kind, EventKind::Disconnected { .. }));
}

#[test]
fn a_request_is_refused_with_private_data_or_by_dropping_it() {
    let (a, b) = parts("refused");
    let (listener, at) = b.listen();
    for words in [&b"not you"[..], b""] {
        let (id, _qp) = a.ask(at, b"me");
        let (request, _) = b.request();
        if !words.is_empty() {
            request.reject(words).unwrap();
        }
        drop(request);
        let event = a.event();
        assert_eq!(event.id, id);
        let EventKind::Rejected { reason, private_data } = event.kind else { panic!("{event:?}") };
        assert_eq!(reason, RejReason::CONSUMER_DEFINED);
        assert_eq!(&private_data[..words.len()], words);
    }
    // Requests that the program does not take end with the channel.
    let (id, _qp) = a.ask(at, b"me");
    drop((listener, b));
    let event = a.event();
    assert_eq!(event.id, id);
    assert!(matches!(event.kind, EventKind::Rejected { .. }), "{event:?}");
}

#[test]
fn a_qp_that_cannot_be_connected_is_refused_with_a_reason() {
    let (a, b) = parts("wrong");
    let (_listener, at) = b.listen();
    let id = a.channel.create_id().unwrap();
    let qp = a.qp();
    let refusal = id.connect(&qp, &ConnParam::default()).expect_err("the route is not resolved");
    assert!(refusal.what().contains("not resolved"), "{refusal}");
    id.resolve(None, at).unwrap();
    let refusal = id.connect(&b.qp(), &ConnParam::default()).expect_err("not ours");
    assert!(refusal.what().contains("another device"), "{refusal}");
    let ud = a.pd.create_qp(&QpSpec::ud(&a.cq)).unwrap();
    let refusal = id.connect(&ud, &ConnParam::default()).expect_err("datagrams");
    assert!(refusal.what().contains("not RC"), "{refusal}");
    let refusal = id.connect(&qp, &said(&[0; 57])).expect_err("a REQ has room for 56");
    assert_eq!(refusal.kind(), Kind::Invalid);
    id.connect(&qp, &said(&[0; 56])).expect("nothing was taken before");
    let refusal = id.connect(&qp, &ConnParam::default()).expect_err("twice");
    assert!(refusal.what().contains("has a QP"), "{refusal}");
    let taken = b.channel.create_id().unwrap().bind(at).expect_err("it is the listener's");
    assert_eq!(taken.kind(), Kind::AddressInUse);
}

/// Events that wait move along, those of a listener's requests among them.
#[test]
fn an_identifier_moves_to_another_channel_with_its_events() {
    let (a, b) = parts("moved");
    let other = EventChannel::new(&b.context).unwrap();
    let (listener, at) = b.listen();
    if chosen::is_rxe() {
        // The kernel loses a request that waits: the identifier that it made for it stays with the
        // first channel (`ucma_migrate_id`).
        listener.migrate(&other).unwrap();
        let _asked = a.ask(at, b"after");
        let event = other.event(PATIENCE).unwrap().expect("the request, in the second channel");
        assert_eq!(event.listener, Some(listener));
        return;
    }
    let (id, _qp) = a.ask(at, b"before");
    let patience = Timespec { tv_sec: 30, tv_nsec: 0 };
    let ready = poll(&mut [PollFd::new(&b.channel, PollFlags::IN)], Some(&patience)).unwrap();
    assert_eq!(ready, 1, "the request waits in the first channel");
    listener.migrate(&other).unwrap();
    assert!(b.channel.event(Duration::ZERO).unwrap().is_none());
    for words in [&b"before"[..], b"after"] {
        let _asked = (words == b"after").then(|| a.ask(at, words));
        let event = other.event(PATIENCE).unwrap().expect("the request, in the second channel");
        let EventKind::ConnectRequest { param } = &event.kind else { panic!("{event:?}") };
        assert_eq!(&param.private_data[..words.len()], words);
        assert_eq!(event.listener.as_ref(), Some(&listener));
        if words == b"before" {
            event.id.reject(b"moved").unwrap();
            let event = a.event();
            assert_eq!(event.id, id);
            assert!(matches!(event.kind, EventKind::Rejected { .. }), "{event:?}");
        }
    }
    let elsewhere = listener.migrate(&a.channel).expect_err("of another open device");
    assert!(elsewhere.what().contains("another device"), "{elsewhere}");
}

/// A group of the family of the NIC's first address.
fn group_of(context: &Context) -> IpAddr {
    let [.., low] = std::process::id().to_le_bytes();
    match context.default_gid().unwrap().gid.to_ip() {
        IpAddr::V4(_) => [239, 195, 7, low].into(),
        IpAddr::V6(_) => [0xff15, 0, 0, 0, 0, 0, 0x4791, low.into()].into(),
    }
}

#[test]
fn a_datagram_to_a_group_reaches_the_qps_that_are_attached() {
    /// What stands before each received datagram.
    const GRH: u32 = 40;
    let (a, b) = parts("group");
    let datagrams = |part: &Part| {
        let qp = part.pd.create_qp(&QpSpec::ud(&part.cq)).unwrap();
        qp.to_rts().unwrap();
        qp
    };
    let (from, to) = (datagrams(&a), datagrams(&b));
    let addr = group_of(&b.context);
    let (here, there) = (Group::join(&a.context, addr).unwrap(), Group::join(&b.context, addr));
    let there = there.unwrap();
    assert_eq!((there.addr(), there.qkey()), (addr, here.qkey()));
    there.attach(&to).unwrap();
    let refusal = there.attach(&from).expect_err("a QP of another device");
    assert!(refusal.what().contains("another device"), "{refusal}");
    let refusal = there.attach(&b.qp()).expect_err("an RC QP");
    assert!(refusal.what().contains("not UD"), "{refusal}");

    let memory = HostBuf::anonymous(4096).unwrap();
    let source = a.pd.reg_mr(&memory, Access::LOCAL_WRITE).unwrap();
    let target = b.pd.reg_mr(&memory, Access::LOCAL_WRITE).unwrap();
    memory.write(0, b"everyone").unwrap();
    to.post_recv(1, &[target.slice(1024, GRH + 8)]).unwrap();
    let everyone = a.pd.create_ah(here.av()).unwrap();
    let request = SendRequest::send(2, &[source.slice(0, 8)]);
    from.post_send(&request.to(&everyone, MULTICAST_QPN, here.qkey()).signaled()).unwrap();
    assert_eq!(completion(&a.cq).status, WcStatus::Success);
    let received = completion(&b.cq);
    assert_eq!((received.wr_id, received.byte_len), (1, GRH + 8));
    let mut seen = [0; 8];
    memory.read(1024 + GRH as usize, &mut seen).unwrap();
    assert_eq!(&seen, b"everyone");

    there.detach(&to).unwrap();
    let refusal = there.detach(&to).expect_err("twice");
    assert_eq!(refusal.kind(), Kind::Invalid);
    let refusal = Group::join(&a.context, "192.0.2.1".parse().unwrap()).expect_err("no group");
    assert!(refusal.what().contains("is no group"), "{refusal}");
}
