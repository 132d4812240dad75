//! Running out of file descriptors. A test binary of its own: the limit is the process's.

use std::os::fd::{AsFd, OwnedFd};

use link::registry::{Claim, Event, NicIdentity};
use link::shm::{DEFAULT_CAPACITY, OutboundState};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

const NIC: NicIdentity = NicIdentity { guid: 1, ifindex: 1, settings: 1 };

fn readable(fd: impl AsFd) -> bool {
    let mut fds = [PollFd::new(&fd, PollFlags::IN)];
    poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).expect("poll") > 0
}

/// Otherwise the listener would stay readable, and an engine that sleeps on it would spin.
#[test]
fn a_peer_is_told_that_we_have_no_descriptors_left() {
    let nic = format!("test-descriptors-{}", std::process::id());
    // Before anything is opened: the number that we keep free must still be allowed.
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(64), ..limit }).expect("lower is allowed");
    let mut a = Claim::new(&nic, NIC).expect("free");
    let mut b = Claim::new(&nic, NIC).expect("free");
    let mut outbound = a.connect(b.vf(), DEFAULT_CAPACITY).expect("b listens");

    let mut hoard: Vec<OwnedFd> = Vec::new();
    while let Ok(fd) = rustix::io::dup(&a) {
        hoard.push(fd);
    }
    let event = b.poll_events().pop();
    let Some(Event::Refused(refused)) = event else { panic!("{event:?}") };
    assert!(refused.reason.contains("descriptors"), "{}", refused.reason);
    assert!(!readable(&b), "nothing is left to accept");
    assert_eq!(*outbound.poll(), OutboundState::Refused(refused.reason));

    drop(hoard);
    let _second = a.connect(b.vf(), DEFAULT_CAPACITY).expect("b listens");
    assert!(matches!(b.poll_events().pop(), Some(Event::NewInbound(_))), "all is well again");
    setrlimit(Resource::Nofile, limit).expect("back to where it was");
}
