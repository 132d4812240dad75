//! What a fork does to a claim. A separate test binary, since a child inherits the descriptors of
//! other tests.
#![allow(unsafe_code, reason = "fork(2)")]

use std::os::fd::OwnedFd;
use std::sync::{Mutex, PoisonError};

use link::registry::{Claim, Event, NicIdentity};
use link::shm::{DEFAULT_CAPACITY, InboundState};

const NIC: NicIdentity = NicIdentity { guid: 1, ifindex: 1, settings: 1 };

/// Held by each test, so that its children inherit nothing of another test.
static ALONE: Mutex<()> = Mutex::new(());

/// Runs `child` in a forked process, and returns its pid and a pipe that keeps it alive.
fn fork(child: impl FnOnce()) -> (rustix::process::Pid, OwnedFd) {
    let (alive, keep) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).expect("a pipe");
    let (ready, tell) = rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).expect("a pipe");
    // SAFETY: the child closes descriptors, reads a pipe and exits; the only lock it takes is that
    // of malloc, which glibc resets in the child.
    let pid = unsafe { libc::fork() };
    if pid == 0 {
        child();
        drop((keep, ready));
        let _ = rustix::io::write(&tell, b"x");
        let _ = rustix::io::read(&alive, &mut [0]);
        // SAFETY: ends the child without running what belongs to the parent.
        unsafe { libc::_exit(0) };
    }
    let pid = rustix::process::Pid::from_raw(pid).expect("fork works");
    drop(tell);
    rustix::io::read(&ready, &mut [0]).expect("the child is ready");
    (pid, keep)
}

#[test]
fn a_child_that_abandons_its_claim_keeps_nothing_alive() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let nic = format!("test-fork-{}", std::process::id());
    let mut a = Claim::new(&nic, NIC).expect("free");
    let mut b = Claim::new(&nic, NIC).expect("free");
    let outbound = a.connect(b.vf(), DEFAULT_CAPACITY).expect("b listens");
    let Some(Event::NewInbound(mut inbound)) = b.poll_events().pop() else { panic!("connected") };
    let (mut a, mut outbound) = (Some(a), Some(outbound));
    let (child, keep) = fork(|| {
        // In the child, the objects are copies of the parent's.
        a.take().expect("inherited").abandon_in_child();
        outbound.take().expect("inherited").abandon_in_child();
    });
    assert_eq!(inbound.poll(), InboundState::Up);
    drop(outbound);
    assert_eq!(inbound.poll(), InboundState::Gone, "the child does not hold the connection");
    drop(a);
    assert_eq!(Claim::new(&nic, NIC).expect("free").vf(), 0, "the child does not hold the name");
    drop(keep);
    let _ = rustix::process::waitpid(Some(child), rustix::process::WaitOptions::empty());
}

#[test]
fn memory_is_not_inherited() {
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let nic = format!("test-dontfork-{}", std::process::id());
    let mut claim = Claim::new(&nic, NIC).expect("free");
    let outbound = claim.connect(0, DEFAULT_CAPACITY).expect("to ourselves");
    let ring = outbound.scratch().as_ptr() as u64;
    let (child, keep) = fork(|| {});
    let maps = |pid: &str| std::fs::read_to_string(format!("/proc/{pid}/maps")).expect("/proc");
    let holds = |maps: &str| {
        maps.lines().any(|line| {
            let range = line.split_once(' ').and_then(|(range, _)| range.split_once('-'));
            let range = range.and_then(|(from, to)| {
                Some(u64::from_str_radix(from, 16).ok()?..u64::from_str_radix(to, 16).ok()?)
            });
            range.is_some_and(|r| r.contains(&ring))
        })
    };
    assert!(holds(&maps("self")));
    assert!(!holds(&maps(&child.as_raw_nonzero().to_string())));
    drop(keep);
    let _ = rustix::process::waitpid(Some(child), rustix::process::WaitOptions::empty());
}
