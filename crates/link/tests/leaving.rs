//! What peers see at once when a descriptor is closed. A separate test binary, in which nothing
//! starts a process: a child holds copies of all our descriptors between its fork and its exec.

use std::os::fd::AsFd;

use link::registry::{Claim, ClaimError, ConnectError, Event, NicIdentity};
use link::shm::{DEFAULT_CAPACITY, Inbound, InboundState, Outbound, OutboundState};
use rustix::event::{PollFd, PollFlags, Timespec, poll};

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

#[test]
fn the_lowest_free_vf_is_claimed_and_given_back() {
    let nic = nic("lowest");
    let (zero, one, two) = (claim(&nic), claim(&nic), claim(&nic));
    assert_eq!([zero.vf(), one.vf(), two.vf()], [0, 1, 2]);
    drop(one);
    assert_eq!(claim(&nic).vf(), 1);
    assert!(matches!(Claim::new("a/b", NIC), Err(ClaimError::BadName(_))));
}

#[test]
fn a_process_that_leaves_is_gone() {
    let nic = nic("leave");
    let (mut a, mut b) = (claim(&nic), claim(&nic));
    let (mut outbound, mut inbound) = connected(&mut a, &mut b);
    outbound.push(1, |_| Ok::<_, ()>(())).expect("room");
    assert_eq!(inbound.poll(), InboundState::Up);
    drop(outbound);
    assert!(readable(&*inbound));
    assert_eq!(inbound.poll(), InboundState::Gone);
    assert_eq!(inbound.pop(|r| r.len()), Ok(Some(1)), "last words can be read");

    let (mut outbound, inbound) = connected(&mut a, &mut b);
    drop(inbound);
    assert!(readable(&outbound));
    assert_eq!(*outbound.poll(), OutboundState::Gone);

    let vf = b.vf();
    let mut waiting = a.connect(vf, DEFAULT_CAPACITY).expect("b listens");
    drop(b);
    assert_eq!(*waiting.poll(), OutboundState::Gone, "before it accepted");
    assert!(matches!(a.connect(vf, DEFAULT_CAPACITY), Err(ConnectError::NoSuchVf { .. })));
}
