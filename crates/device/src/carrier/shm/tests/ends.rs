//! The two halves together: what one process pushes, the other takes.

use std::sync::Arc;
use std::time::{Duration, Instant};

use iba::Qpn;
use link::registry::{Claim, Event, NicIdentity};
use transport::env::Skipped;

use super::headers;
use crate::carrier::shm::record::{Incoming, Record, parse};
use crate::carrier::shm::{Peers, PushError, Receiver};
use crate::rig;
use crate::waits::Waits;

const SOON: Duration = Duration::from_secs(10);

/// One process on a NIC: both halves.
struct End {
    sender: Peers,
    receiver: Receiver,
    vf: u16,
}

impl End {
    fn new(nic: &str) -> Self {
        let identity = NicIdentity { guid: 0, ifindex: 1, settings: 0 };
        let claim = Claim::new(nic, identity).expect("a VF is free");
        let (vf, waits) = (claim.vf(), Arc::new(Waits::new().expect("descriptors")));
        let sender = Peers::new(claim, 64 << 10, None, waits);
        Self { sender, receiver: Receiver::default(), vf }
    }

    fn push(&mut self, to: u16, bytes: &[u8]) -> Result<(), PushError<()>> {
        let headers = headers();
        let (length, skipped) = (bytes.len() as u32, Skipped::default());
        let record =
            Record { headers: &headers, length, skipped, grh: None, source: Qpn::new(0x42) };
        self.sender.push(to, &record, |room| room.copy_from(bytes).map_err(|_| ())).map(|_| ())
    }

    /// Accepts new connections.
    fn accept(&mut self) {
        let claim = self.sender.claim.as_mut().expect("no child of a fork");
        for event in claim.poll_events() {
            if let Event::NewInbound(inbound) = event {
                self.receiver.add(*inbound);
            }
        }
        self.sender.poll();
    }

    /// The payload of the next record.
    fn take(&mut self) -> Option<Vec<u8>> {
        let mut headers = headers();
        let popped = self.receiver.busy()?.pop_if(|record| {
            let Ok(Incoming::Packet { payload, .. }) = parse(record, &mut headers) else {
                panic!("a packet was pushed");
            };
            let mut bytes = vec![0; payload.len()];
            payload.copy_to(&mut bytes).expect("the ring is there");
            Some(bytes)
        });
        popped.expect("the ring is whole")
    }
}

fn pair(test: &str) -> [End; 2] {
    let nic = rig::nic(test).config.name;
    [(); 2].map(|()| End::new(&nic))
}

#[test]
fn what_one_process_pushes_the_other_takes_in_order() {
    let [mut one, mut other] = pair("carrier-shm");
    for byte in 0..50_u8 {
        assert!(one.push(other.vf, &[byte; 9]).is_ok(), "there is room");
    }
    let (mut came, began) = (Vec::new(), Instant::now());
    while came.len() < 50 {
        assert!(began.elapsed() < SOON, "{} came", came.len());
        one.sender.poll();
        other.accept();
        came.extend(std::iter::from_fn(|| other.take()));
    }
    assert_eq!(came, (0..50).map(|byte| vec![byte; 9]).collect::<Vec<_>>());
    assert!(other.receiver.is_idle());
}

#[test]
fn a_full_ring_and_a_missing_process_are_reported() {
    let [mut one, mut other] = pair("carrier-shm-full");
    other.accept();
    let full = (0..100).map(|_| one.push(other.vf, &[7; 4096])).find(Result::is_err);
    assert!(matches!(full, Some(Err(PushError::Full))), "64 KiB hold no hundred of these");
    assert!(matches!(one.push(1000, &[1]), Err(PushError::Gone)));
}

#[test]
fn a_process_that_ends_is_found_gone_after_its_last_records() {
    let [mut one, mut other] = pair("carrier-shm-gone");
    let vf = one.vf;
    assert!(one.push(other.vf, b"last").is_ok());
    let began = Instant::now();
    while other.receiver.len() == 0 {
        assert!(began.elapsed() < SOON);
        one.sender.poll();
        other.accept();
    }
    drop(one);
    let mut gone = Vec::new();
    while gone.is_empty() {
        assert!(began.elapsed() < SOON);
        other.receiver.find_gone(&mut gone);
    }
    assert_eq!(gone, [vf]);
    other.receiver.close_gone();
    assert_eq!(other.take().as_deref(), Some(&b"last"[..]));
    other.receiver.close_gone();
    assert_eq!(other.receiver.len(), 0);
}
