//! What the state machines cost for one eight-byte message, without a carrier, memory or a
//! completion queue.
//!
//! `cargo bench -p peerdma-transport`. The environment keeps the last packet and counts
//! completions; the benchmark feeds a requester and a responder by hand.

use std::hint::black_box;
use std::time::Instant;

use fabric_sim::Options;
use fabric_sim::build;
use fabric_sim::options::{BASE, PEER, QPN, RQ_PSN, SQ_PSN};
use iba::{Access, QpEvent, QpState, RKey};
use transport::env::{AtomicOp, LocalError, RemoteError, Side, Source, To, TransmitError};
use transport::tm::Taken;
use transport::{Completion, Env, Poll, Qp, Rx, Sge, Skipped, Time};
use wire::Headers;

const MESSAGES: u32 = 2_000_000;

/// An environment that does almost nothing.
#[derive(Default)]
struct Null {
    sent: Option<Headers>,
    completed: u64,
}

impl Env for Null {
    type Payload = ();

    fn transmit(
        &mut self,
        _: To<'_>,
        headers: &Headers,
        source: Source<'_>,
        _: Skipped,
    ) -> Result<(), TransmitError> {
        black_box(source);
        self.sent = Some(*headers);
        Ok(())
    }

    fn check_local(&self, _: &[Sge], _: Access) -> Result<(), LocalError> {
        Ok(())
    }

    fn scatter(&mut self, _: Side, sges: &[Sge], _: u64, (): &()) -> Result<(), LocalError> {
        black_box(sges);
        Ok(())
    }

    fn scatter_bytes(&mut self, _: Side, _: &[Sge], _: u64, _: &[u8]) -> Result<(), LocalError> {
        Ok(())
    }

    fn check_remote(&self, _: RKey, _: u64, _: u32, _: Access) -> Result<(), RemoteError> {
        Ok(())
    }

    fn write_remote(&mut self, _: RKey, addr: u64, (): &()) -> Result<(), RemoteError> {
        black_box(addr);
        Ok(())
    }

    fn atomic(&mut self, _: RKey, _: u64, _: AtomicOp) -> Result<u64, RemoteError> {
        Ok(0)
    }

    fn invalidate(&mut self, _: RKey) -> Result<(), RemoteError> {
        Ok(())
    }

    fn take_srq(&mut self, _: &Rx<'_, ()>) -> Option<Taken> {
        None
    }

    fn complete(&mut self, completion: &Completion) {
        black_box(completion);
        self.completed += 1;
    }

    fn event(&mut self, _: QpEvent) {}
}

fn main() {
    let options = Options::rc();
    let mut host = options.host();
    let mut requester = options.qp(QPN);
    options.bring_to(&mut requester, &mut host, QpState::Rts, PEER, SQ_PSN, RQ_PSN);
    let mut responder = options.qp(PEER);
    options.bring_to(&mut responder, &mut host, QpState::Rts, QPN, RQ_PSN, SQ_PSN);

    let mut env = Null::default();
    let mut spent = [0u128; 4];
    let mut timed = |index: usize, work: &mut dyn FnMut()| {
        let start = Instant::now();
        work();
        spent[index] += start.elapsed().as_nanos();
    };
    // The clock is read once for this many messages, so that reading it does not count.
    const BURST: u32 = 32;
    let now = Time::ZERO;
    let transmit = |qp: &mut Qp, env: &mut Null| {
        while qp.poll_transmit(env, now, 1) == Poll::More {}
        env.sent.take()
    };
    let receive = |qp: &mut Qp, env: &mut Null, headers: &Headers, length: u32| {
        let rx = Rx {
            headers,
            payload: &(),
            length,
            skipped: Skipped::default(),
            grh: None,
            packets: 1,
            marked: false,
        };
        qp.handle_packet(env, now, &rx);
    };
    for _ in 0..MESSAGES / BURST {
        let mut packets = Vec::with_capacity(BURST as usize);
        let mut acks = Vec::with_capacity(BURST as usize);
        timed(0, &mut || {
            for wr_id in 0..BURST {
                requester.post_send(build::send(wr_id.into(), BASE, 8)).expect("there is room");
                packets.push(transmit(&mut requester, &mut env).expect("a SEND"));
            }
        });
        timed(1, &mut || {
            for wr_id in 0..BURST {
                responder.post_recv(build::recv(wr_id.into(), BASE, 8)).expect("there is room");
            }
        });
        timed(2, &mut || {
            for packet in &packets {
                receive(&mut responder, &mut env, packet, 8);
                acks.push(transmit(&mut responder, &mut env).expect("an ACK"));
            }
        });
        timed(3, &mut || {
            for ack in &acks {
                receive(&mut requester, &mut env, ack, 0);
            }
        });
    }
    assert_eq!(env.completed, u64::from(MESSAGES / BURST * BURST) * 2);
    let names = ["post_send + transmit", "post_recv", "receive + complete + ack", "ack + complete"];
    for (name, spent) in names.iter().zip(spent) {
        println!("{name:26} {:6.1} ns", spent as f64 / f64::from(MESSAGES));
    }
    println!("size of a QP               {:6} bytes", size_of::<Qp>());
}
