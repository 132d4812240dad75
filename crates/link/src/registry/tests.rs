//! Two engines in one process: claiming, greeting, refusing, leaving.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::message::{Hello, Message, Received, recv};
use super::name::address;
use super::*;
use crate::shm::{DEFAULT_CAPACITY, Inbound, Outbound, OutboundState};

const NIC: NicIdentity = NicIdentity { guid: 0xa, ifindex: 1, settings: 5 };

/// A nic name that no other test and no other run uses.
fn nic(test: &str) -> String {
    format!("test-{test}-{}", std::process::id())
}

fn claim(nic: &str) -> Claim {
    Claim::new(nic, NIC).expect("a nic of our own has free VFs")
}

/// Connects `a` to `b`, and lets both notice.
fn connected(a: &mut Claim, b: &mut Claim) -> (Outbound, Box<Inbound>) {
    let mut outbound = a.connect(b.vf(), DEFAULT_CAPACITY).expect("b listens");
    assert_eq!(*outbound.poll(), OutboundState::Connecting);
    let event = b.poll_events().pop().expect("a connected");
    let Event::NewInbound(inbound) = event else { panic!("{event:?}") };
    assert!(matches!(outbound.poll(), OutboundState::Up(_)), "{:?}", outbound.state());
    // B's check of the VF leaves a connection without a greeting.
    assert!(a.poll_events().is_empty());
    (outbound, inbound)
}

fn readable(fd: impl AsFd) -> bool {
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).expect("poll") > 0
}

/// A raw socket bound to the name of `vf`.
fn squat(nic: &str, vf: u16) -> OwnedFd {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        .expect("sockets exist");
    rustix::net::bind(&socket, &address(nic, vf).expect("a good name")).expect("a free name");
    socket
}

#[test]
fn a_name_without_a_listener_is_skipped_and_reported() {
    let nic = nic("squat");
    let _squatter = squat(&nic, 0);
    let mut ours = claim(&nic);
    assert_eq!(ours.vf(), 1);
    assert_eq!(ours.squatters().len(), 1);
    assert_eq!(ours.squatters()[0].vf, 0);
    let e = ours.connect(0, DEFAULT_CAPACITY).expect_err("nobody listens there");
    assert!(matches!(e, ConnectError::NoSuchVf { vf: 0, .. }));
}

#[test]
fn a_process_that_listens_on_many_names_is_reported_with_their_number() {
    let nic = nic("hoard");
    let _ours = claim(&nic);
    let hoard: Vec<_> = (1..8).map(|vf| squat(&nic, vf)).collect();
    for socket in &hoard {
        rustix::net::listen(socket, 1).expect("it is bound");
    }
    let holders = claim::holders(&nic);
    let refused = ClaimError::NoFreeVf { nic, holders, squatters: Vec::new() }.to_string();
    let (pid, uid) = (std::process::id(), rustix::process::geteuid().as_raw());
    assert!(refused.ends_with(&format!("are taken: 8 by pid {pid} (uid {uid})")), "{refused}");
}

#[test]
fn messages_that_a_peer_sent_before_it_ended_are_received() {
    let nic = nic("last-words");
    let (mut a, mut b) = (claim(&nic), claim(&nic));
    let speak = |from: &mut Claim, to: u16| {
        let mut outbound = from.connect(to, DEFAULT_CAPACITY).expect("it listens");
        let pushed = outbound.push(3, |record| {
            record.copy_from(b"bye").expect("there");
            Ok::<_, ()>(())
        });
        pushed.expect("an empty ring has room");
    };
    // We already have a connection to it.
    let _known = a.connect(b.vf(), DEFAULT_CAPACITY).expect("b listens");
    speak(&mut b, a.vf());
    let vf = b.vf();
    drop(b);
    let event = a.poll_events().pop().expect("b connected");
    let Event::NewInbound(inbound) = event else { panic!("{event:?}") };
    assert_eq!(inbound.peer().vf, vf);
    // A stranger that ended may have been any process.
    let mut stranger = claim(&nic);
    a.dialled.clear();
    speak(&mut stranger, a.vf());
    drop(stranger);
    let event = a.poll_events().pop().expect("it connected");
    assert!(matches!(event, Event::Refused(_)), "{event:?}");
}

#[test]
fn both_sides_learn_the_identity_of_the_other() {
    let nic = nic("who");
    let (mut a, mut b) = (claim(&nic), claim(&nic));
    let (outbound, inbound) = connected(&mut a, &mut b);
    let OutboundState::Up(peer) = *outbound.state() else { panic!("connected") };
    let pid = std::process::id();
    assert_eq!((peer.vf, peer.pid, peer.own_pid), (b.vf(), Some(pid), pid));
    assert_eq!(peer.probe, b.probe());
    assert!(peer.same_uid());
    let peer = inbound.peer();
    assert_eq!((peer.vf, peer.pid, peer.own_pid), (a.vf(), Some(pid), pid));
    assert_eq!(peer.probe, a.probe());
    assert_eq!(format!("{peer}"), format!("VF 0 (pid {pid}, uid {})", peer.uid));
}

#[test]
fn records_pushed_before_the_welcome_arrive() {
    let nic = nic("early");
    let (mut a, mut b) = (claim(&nic), claim(&nic));
    let mut outbound = a.connect(b.vf(), DEFAULT_CAPACITY).expect("b listens");
    let fill = |record: umem::Foreign<'_>| {
        record.copy_from(b"early").expect("there");
        Ok::<_, ()>(())
    };
    outbound.push(5, fill).expect("an empty ring");
    assert!(readable(&b), "the connection wakes b");
    let Some(Event::NewInbound(mut inbound)) = b.poll_events().pop() else { panic!("connected") };
    assert_eq!(inbound.pop(|r| r.len()), Ok(Some(5)));
    assert_eq!(inbound.pop(|r| r.len()), Ok(None));
    // B sleeps before A has read its Welcome: A must ring when it does.
    b.doorbell().set_sleeping();
    outbound.push(5, fill).expect("an empty ring");
    outbound.ring_doorbell_if_sleeping();
    assert!(!readable(b.doorbell().fd()));
    outbound.poll();
    assert!(readable(b.doorbell().fd()));
}

#[test]
fn a_consumer_wakes_a_producer_that_waits_for_space() {
    let nic = nic("space");
    let (mut a, mut b) = (claim(&nic), claim(&nic));
    let (mut outbound, mut inbound) = connected(&mut a, &mut b);
    while outbound.push(1000, |_| Ok::<_, ()>(())).is_ok() {}
    a.doorbell().set_sleeping();
    assert!(!outbound.ring().want_space(1000).expect("an honest peer"));
    assert!(!readable(a.doorbell().fd()));
    while inbound.pop(|_| ()).expect("an honest peer").is_some() {}
    assert!(readable(a.doorbell().fd()));
}

#[test]
fn tables_travel_both_ways() {
    let nic = nic("table");
    let (mut a, mut b) = (claim(&nic), claim(&nic));
    let (a_out, a_in) = rustix::pipe::pipe().expect("pipes exist");
    a.set_table(a_out);
    let (b_out, b_in) = rustix::pipe::pipe().expect("pipes exist");
    b.set_table(b_out);
    let (mut outbound, mut inbound) = connected(&mut a, &mut b);
    for (table, writer) in [(inbound.take_table(), a_in), (outbound.take_table(), b_in)] {
        let table = table.expect("it came along");
        assert!(!readable(&table));
        rustix::io::write(&writer, b"x").expect("a pipe");
        assert!(readable(&table), "it is the same pipe");
    }
    assert!(inbound.take_table().is_none(), "once");
}

#[test]
fn another_nic_is_refused_in_words() {
    let nic = nic("other");
    let mut a = Claim::new(&nic, NicIdentity { settings: 6, ..NIC }).expect("free");
    let mut b = claim(&nic);
    let mut outbound = a.connect(b.vf(), DEFAULT_CAPACITY).expect("b listens");
    let Some(Event::Refused(refused)) = b.poll_events().pop() else { panic!("refused") };
    assert!(refused.reason.contains("settings 0000000000000006"), "{}", refused.reason);
    assert_eq!(refused.pid, Some(std::process::id()));
    assert_eq!(*outbound.poll(), OutboundState::Refused(refused.reason));
    assert!(a.poll_events().is_empty());
}

#[test]
fn the_last_records_of_a_peer_end_even_if_another_process_keeps_writing() {
    let nic = nic("refilled");
    let (mut a, mut b) = (claim(&nic), claim(&nic));
    let (mut outbound, mut inbound) = connected(&mut a, &mut b);
    let mut push = || outbound.push(8, |_| Ok::<_, ()>(())).expect("there is room");
    push();
    assert!(!inbound.may_hold_last_words(), "it lives");
    inbound.hang_up();
    inbound.poll();
    let mut words = 0;
    while inbound.may_hold_last_words() {
        // As a process that has the ring, but not the socket, can do.
        push();
        assert_eq!(inbound.pop(|_| ()), Ok(Some(())));
        words += 1;
    }
    assert_eq!(words, DEFAULT_CAPACITY / crate::shm::record_size(8));
}

/// Sends `message` with `fds` to `claim` on a fresh connection and returns the reason it gives.
fn reason(nic: &str, claim: &mut Claim, message: &Message, fds: &[&OwnedFd]) -> String {
    let (socket, _) = socket::dial(nic, claim.vf(), true).expect("it listens");
    let fds: Vec<_> = fds.iter().map(|fd| fd.as_fd()).collect();
    message.send(&socket, &fds).expect("room in the socket");
    let event = claim.poll_events().pop();
    let Some(Event::Refused(refused)) = event else { panic!("not refused: {event:?}") };
    match recv(&socket) {
        Received::Message(Ok(Message::Refused(words)), _) => assert_eq!(words, refused.reason),
        other => panic!("{other:?}"),
    }
    refused.reason
}

#[test]
fn false_greetings_are_refused() {
    let nic = nic("liars");
    let mut ours = claim(&nic);
    let hello = |vf, capacity| {
        let probe = Probe { addr: 0, value: 0 };
        Message::Hello(Hello { vf, pid: 1, uid: 0, nic: NIC, nonce: 1, probe, capacity })
    };
    let (ring, page) = {
        let (_, ring) = crate::shm::Producer::create(8192).expect("memory files exist");
        let page = rustix::io::dup(ours.doorbell().page_fd()).expect("a descriptor");
        (ring, page)
    };
    let mut why = |message: &Message, fds: &[&OwnedFd]| reason(&nic, &mut ours, message, fds);
    assert!(why(&hello(5, 8192), &[&ring, &page]).contains("VF 5"), "a VF nobody holds");
    assert!(why(&hello(1024, 8192), &[&ring, &page]).contains("1024"), "a VF that cannot be");
    assert!(why(&hello(0, 4096), &[&ring, &page]).contains("its ring"), "a size that is not");
    assert!(why(&hello(0, u64::MAX), &[&ring, &page]).contains("its ring"), "a size out of range");
    assert!(why(&hello(0, 8192), &[&page, &page]).contains("its ring"), "not a ring");
    assert!(why(&hello(0, 8192), &[&ring, &ring]).contains("its doorbell"), "not a page");
    assert!(why(&hello(0, 8192), &[&ring]).contains("without ring and doorbell"));
    assert!(why(&Message::Wake, &[]).contains("no greeting"));
}

#[test]
fn strangers_are_told_that_they_speak_another_protocol() {
    let nic = nic("stranger");
    let mut ours = claim(&nic);
    let (socket, _) = socket::dial(&nic, 0, true).expect("it listens");
    assert!(ours.poll_events().is_empty(), "silent so far");
    assert!(!readable(&ours));
    rustix::io::write(&socket, b"GET / HTTP/1.1").expect("room in the socket");
    assert!(readable(&ours), "the silent one spoke");
    let Some(Event::Refused(refused)) = ours.poll_events().pop() else { panic!("refused") };
    assert!(refused.reason.contains("protocol"), "{}", refused.reason);
    assert!(!readable(&ours));
}

#[test]
fn a_listener_that_speaks_another_protocol_counts_as_a_refusal() {
    let nic = nic("babel");
    let squatter = squat(&nic, 0);
    rustix::net::listen(&squatter, 8).expect("a bound socket");
    let mut ours = claim(&nic);
    let mut outbound = ours.connect(0, DEFAULT_CAPACITY).expect("somebody listens");
    let socket = rustix::net::accept(&squatter).expect("a connection");
    rustix::io::write(&socket, b"hello?").expect("room in the socket");
    let state = outbound.poll();
    assert!(matches!(state, OutboundState::Refused(w) if w.contains("protocol")), "{state:?}");
}

#[test]
fn silent_connections_do_not_pile_up() {
    let nic = nic("pile");
    let mut ours = claim(&nic);
    let mut sockets = Vec::new();
    for _ in 0..300 {
        sockets.push(socket::dial(&nic, 0, true).expect("it listens"));
        assert!(ours.poll_events().is_empty());
    }
    let mut fds = Vec::new();
    ours.inherited(&mut fds);
    assert!(fds.len() < 150, "{} descriptors", fds.len());
    let mut b = claim(&nic);
    let _both = connected(&mut b, &mut ours);
}

#[test]
fn the_list_shows_which_holders_are_alive() {
    let nic = nic("list");
    let (mut alive, silent) = (claim(&nic), claim(&nic));
    let squatter = squat(&nic, 2);
    rustix::net::listen(&squatter, 8).expect("a bound socket");
    // Closed early, a connection refuses the question before its answer is read.
    let mut accepted = Vec::new();
    let listed = std::thread::scope(|scope| {
        let lister = scope.spawn(|| list(&nic, Duration::from_secs(1)).expect("/proc is there"));
        while !lister.is_finished() {
            let _ = alive.poll_events();
            if let Ok(socket) = rustix::net::accept(&squatter) {
                rustix::io::write(&socket, b"what?").expect("room in the socket");
                accepted.push(socket);
            }
            std::thread::yield_now();
        }
        lister.join().expect("no panic")
    });
    assert_eq!(listed.iter().map(|i| i.vf).collect::<Vec<_>>(), [0, 1, 2]);
    assert_eq!(listed[0].answer, Answer::Alive);
    assert_eq!(listed[0].pid, Some(std::process::id()));
    assert!(listed[0].comm.is_some());
    assert_eq!(listed[silent.vf() as usize].answer, Answer::Silent);
    assert!(matches!(&listed[2].answer, Answer::Stranger(w) if w.contains("protocol")));
}
