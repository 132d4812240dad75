//! Two real processes and one ring: loom does not model memory shared by two processes.
//!
//! The test starts this very test binary again, with one test selected, and an environment
//! variable that tells it to be the other end.

use std::convert::Infallible;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};

use rustix::event::{PollFd, PollFlags, poll};

use link::registry::{Claim, Event, NicIdentity};
use link::shm::{Inbound, InboundState, Outbound, OutboundState, PushError};

const ROLE: &str = "PEERDMA_LINK_TEST_NIC";
const RECORDS: u64 = 1_000_000;
const NIC: NicIdentity = NicIdentity { guid: 77, ifindex: 1, settings: 3 };

/// Length of record `i`: mostly short, with some long ones.
fn len_of(i: u64) -> usize {
    let mixed = i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
    if mixed.is_multiple_of(64) { 8 + mixed as usize % 3000 } else { 8 + mixed as usize % 49 }
}

/// A child that is killed if the test fails.
struct Peer(Child);

impl Drop for Peer {
    fn drop(&mut self) {
        // Errors mean that it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_million_records_between_two_processes() {
    if let Ok(nic) = std::env::var(ROLE) {
        return receive(&nic);
    }
    let nic = format!("test-million-{}", std::process::id());
    let mut claim = Claim::new(&nic, NIC).expect("a name of our own");
    let mut child = Command::new(std::env::current_exe().expect("this test has a file"))
        .args(["--exact", "a_million_records_between_two_processes"])
        .args(["--nocapture", "--test-threads=1"])
        .env(ROLE, &nic)
        .stdout(Stdio::piped())
        .spawn()
        .map(Peer)
        .expect("this test can be started again");
    let mut lines = BufReader::new(child.0.stdout.take().expect("piped")).lines();
    let vf = loop {
        let line = lines.next().expect("the peer says its VF").expect("text");
        if let Some((_, vf)) = line.split_once("listening as VF ") {
            break vf.parse().expect("a number");
        }
    };
    assert_ne!(vf, claim.vf());
    send(&mut claim, vf);
    let status = child.0.wait().expect("our child");
    assert!(status.success(), "the receiving process found a fault: {status}");
}

fn send(claim: &mut Claim, vf: u16) {
    let mut outbound = claim.connect(vf, 16 << 10).expect("the peer listens");
    for i in 0..RECORDS {
        let len = len_of(i);
        loop {
            let pushed = outbound.push(len, |record| {
                let mut bytes = vec![i as u8; len];
                bytes[..8].copy_from_slice(&i.to_ne_bytes());
                record.copy_from(&bytes).expect("there");
                Ok::<_, Infallible>(())
            });
            match pushed {
                Ok(()) => break,
                Err(PushError::Full) => wait_for_space(claim, &mut outbound, len),
                Err(e) => panic!("record {i}: {e:?}"),
            }
        }
        outbound.ring_doorbell_if_sleeping();
    }
    // The peer closes when it has seen everything.
    while !matches!(outbound.poll(), OutboundState::Gone) {
        let mut fds = [PollFd::new(&outbound, PollFlags::IN)];
        poll(&mut fds, None).expect("poll");
    }
    assert_eq!(outbound.ring().consumed_up_to(), outbound.ring().position());
}

fn wait_for_space(claim: &Claim, outbound: &mut Outbound, len: usize) {
    let bell = claim.doorbell();
    bell.set_sleeping();
    outbound.ring_doorbell_if_sleeping();
    if !outbound.ring().want_space(len).expect("an honest peer") {
        let fd = bell.fd();
        let mut fds = [PollFd::new(&*outbound, PollFlags::IN), PollFd::new(&fd, PollFlags::IN)];
        poll(&mut fds, None).expect("poll");
    }
    bell.set_awake();
    bell.drain();
    let state = outbound.poll();
    assert!(matches!(state, OutboundState::Connecting | OutboundState::Up(_)), "{state:?}");
}

fn receive(nic: &str) {
    let mut claim = Claim::new(nic, NIC).expect("the second VF");
    println!("listening as VF {}", claim.vf());
    let mut inbound = loop {
        let mut fds = [PollFd::new(&claim, PollFlags::IN)];
        poll(&mut fds, None).expect("poll");
        match claim.poll_events().pop() {
            Some(Event::NewInbound(inbound)) => break inbound,
            Some(other) => panic!("{other:?}"),
            None => {}
        }
    };
    let parent = std::os::unix::process::parent_id();
    assert_eq!(inbound.peer().pid, Some(parent));
    let mut next = 0;
    let mut bytes = Vec::new();
    while next < RECORDS {
        if take(&mut inbound, &mut bytes, &mut next) {
            continue;
        }
        let bell = claim.doorbell().clone();
        bell.set_sleeping();
        if !take(&mut inbound, &mut bytes, &mut next) {
            assert_eq!(inbound.poll(), InboundState::Up, "the sender left at record {next}");
            let fd = bell.fd();
            let mut fds = [PollFd::new(&*inbound, PollFlags::IN), PollFd::new(&fd, PollFlags::IN)];
            poll(&mut fds, None).expect("poll");
        }
        bell.set_awake();
        bell.drain();
    }
    assert!(!take(&mut inbound, &mut bytes, &mut next), "more than was sent");
}

/// Takes and checks one record, if there is one.
fn take(inbound: &mut Inbound, bytes: &mut Vec<u8>, next: &mut u64) -> bool {
    let popped = inbound.pop(|record| {
        bytes.resize(record.len(), 0);
        record.copy_to(bytes).expect("there");
    });
    if popped.expect("an honest sender").is_none() {
        return false;
    }
    assert_eq!(bytes.len(), len_of(*next), "record {next}");
    assert_eq!(bytes[..8], next.to_ne_bytes(), "record {next}");
    assert!(bytes[8..].iter().all(|b| *b == *next as u8), "record {next}");
    *next += 1;
    true
}
