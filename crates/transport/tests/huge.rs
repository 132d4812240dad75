//! The longest messages: 2^31 bytes, which is 2^23 packets of the smallest MTU, half of all
//! sequence numbers.
//!
//! No memory moves, only lengths.

use std::collections::VecDeque;

use fabric_sim::build;
use fabric_sim::options::{BASE, PEER, QPN, RQ_PSN, SQ_PSN};
use fabric_sim::{Options, Rng};
use iba::{Access, QpEvent, QpState, RKey, WcStatus};
use transport::env::{AtomicOp, LocalError, RemoteError, Side, Source, To, TransmitError};
use transport::tm::Taken;
use transport::{Completion, Env, Poll, Qp, Rx, SendWr, Sge, Skipped, Time};
use wire::Headers;

const LONGEST: u32 = 1 << 31;

/// An environment in which every address is valid and no byte is stored.
#[derive(Default)]
struct Lengths {
    out: VecDeque<(Headers, u32)>,
    moved: u64,
    completions: Vec<Completion>,
}

impl Env for Lengths {
    type Payload = u32;

    fn transmit(
        &mut self,
        _: To<'_>,
        headers: &Headers,
        source: Source<'_>,
        _: Skipped,
    ) -> Result<(), TransmitError> {
        let length = match source {
            Source::Empty => 0,
            Source::Sges { length, .. } | Source::Remote { length, .. } => length,
            Source::Bytes(bytes) => bytes.len() as u32,
        };
        self.out.push_back((*headers, length));
        Ok(())
    }

    fn check_local(&self, _: &[Sge], _: Access) -> Result<(), LocalError> {
        Ok(())
    }

    fn scatter(
        &mut self,
        _: Side,
        _: &[Sge],
        offset: u64,
        payload: &u32,
    ) -> Result<(), LocalError> {
        assert_eq!(offset, self.moved, "stored in order");
        self.moved += u64::from(*payload);
        Ok(())
    }

    fn scatter_bytes(&mut self, _: Side, _: &[Sge], _: u64, _: &[u8]) -> Result<(), LocalError> {
        Ok(())
    }

    fn check_remote(&self, _: RKey, _: u64, _: u32, _: Access) -> Result<(), RemoteError> {
        Ok(())
    }

    fn write_remote(&mut self, _: RKey, addr: u64, payload: &u32) -> Result<(), RemoteError> {
        assert_eq!(addr, self.moved, "stored in order");
        self.moved += u64::from(*payload);
        Ok(())
    }

    fn atomic(&mut self, _: RKey, _: u64, _: AtomicOp) -> Result<u64, RemoteError> {
        Ok(0)
    }

    fn invalidate(&mut self, _: RKey) -> Result<(), RemoteError> {
        Ok(())
    }

    fn take_srq(&mut self, _: &Rx<'_, u32>) -> Option<Taken> {
        None
    }

    fn complete(&mut self, completion: &Completion) {
        self.completions.push(*completion);
    }

    fn event(&mut self, _: QpEvent) {}
}

/// Moves one message of the greatest length, and returns the bytes that arrived at each side.
fn carry(options: &Options, wr: SendWr, loss: u32) -> [u64; 2] {
    let mut host = options.host();
    let mut ends: Vec<(Qp, Lengths)> = [(QPN, PEER, SQ_PSN, RQ_PSN), (PEER, QPN, RQ_PSN, SQ_PSN)]
        .into_iter()
        .map(|(qpn, peer, sq_psn, rq_psn)| {
            let mut qp = options.qp(qpn);
            options.bring_to(&mut qp, &mut host, QpState::Rts, peer, sq_psn, rq_psn);
            (qp, Lengths::default())
        })
        .collect();
    ends[1].0.post_recv(build::recv(2, 0, LONGEST)).expect("it fits the queue");
    ends[0].0.post_send(wr).expect("2^31 bytes are allowed");

    let mut now = Time::ZERO;
    let mut rng = Rng::new(1);
    while ends[0].1.completions.is_empty() {
        for (from, to) in [(0, 1), (1, 0)] {
            let (qp, env) = &mut ends[from];
            if qp.poll_timeout().is_some_and(|due| due <= now) {
                qp.handle_timeout(env, now);
            }
            while qp.poll_transmit(env, now, 64) == Poll::More && env.out.len() < 512 {}
            let out = core::mem::take(&mut env.out);
            for (headers, length) in out {
                if rng.chance(loss) {
                    continue;
                }
                let (qp, env) = &mut ends[to];
                let (headers, payload) = (&headers, &length);
                let skipped = Skipped::default();
                qp.handle_packet(
                    env,
                    now,
                    &Rx { headers, payload, length, packets: 1, skipped, grh: None, marked: false },
                );
            }
        }
        now = now + core::time::Duration::from_micros(1);
    }
    assert_eq!(ends[0].1.completions[0].status, WcStatus::Success);
    assert_eq!(ends[0].1.completions[0].byte_len, LONGEST);
    assert_eq!(ends[0].0.query().sq_psn, SQ_PSN.add(1 << 23));
    assert_eq!(ends[1].0.query().rq_psn, SQ_PSN.add(1 << 23));
    [ends[0].1.moved, ends[1].1.moved]
}

fn options() -> Options {
    Options::rc().over_memory(64 << 10)
}

#[test]
fn a_send_of_two_gibibytes() {
    let moved = carry(&options(), build::send(1, BASE, LONGEST), 0);
    assert_eq!(moved, [0, LONGEST.into()]);
}

#[test]
fn a_write_of_two_gibibytes() {
    let moved = carry(&options(), build::write(1, BASE, LONGEST, 0), 0);
    assert_eq!(moved, [0, LONGEST.into()]);
}

#[test]
fn a_read_of_two_gibibytes() {
    let moved = carry(&options(), build::read(1, BASE, LONGEST, 0), 0);
    assert_eq!(moved, [LONGEST.into(), 0]);
}

#[test]
fn messages_of_two_gibibytes_survive_losses() {
    for wr in [build::send(1, BASE, LONGEST), build::read(1, BASE, LONGEST, 0)] {
        let moved = carry(&options(), wr, 10);
        assert_eq!(moved[0] + moved[1], LONGEST.into());
    }
}
