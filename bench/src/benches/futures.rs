//! Requests as futures (`verbs::aio`) against the same requests of a C program.

use std::future::Future;
use std::pin::pin;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use verbs::aio::{Cq, Qp, QpOptions};
use verbs::owned::{Buffer, RemoteSlice};

use super::in_turns;
use crate::child::{Role, Words};
use crate::pairs::Place;
use crate::perftest;
use crate::report::{Report, Row, Target};
use crate::sample::Sample;
use crate::{Outcome, exchange};

const NAME: &str = "futures";
/// Rounds of one measurement, and before it.
const ROUNDS: u64 = 20_000;
const WARM_UP: u64 = 1000;
/// Rounds between two clock reads.
const BATCH: u64 = 10;
const LENGTH: usize = 1 << 20;
const WRITES: u32 = 2000;

pub(super) fn run(reps: u32, report: &mut Report) -> Outcome<()> {
    let rounds = ROUNDS.to_string();
    let (ours, theirs) = in_turns(NAME, reps, report, ping, || {
        perftest::run(&Place::here(), "ib_send_lat", &["-s", "8", "-n", &rounds])
    })?;
    report.row(Row {
        bench: NAME,
        what: "send and recv, 8 bytes".to_owned(),
        ours: ours.into(),
        beside: "ib_send_lat".to_owned(),
        theirs: theirs.into(),
        unit: "us",
        target: Target::AtMost(1.3),
    });
    let (length, writes) = (LENGTH.to_string(), WRITES.to_string());
    let (ours, theirs) = in_turns(NAME, reps, report, write, || {
        perftest::run(&Place::here(), "ib_write_bw", &["-s", &length, "-n", &writes])
    })?;
    report.row(Row {
        bench: NAME,
        what: "write, 1 MiB".to_owned(),
        ours: ours.into(),
        beside: "ib_write_bw".to_owned(),
        theirs: theirs.into(),
        unit: "MiB/s",
        target: Target::AtLeast(1.0),
    });
    Ok(())
}

/// A QP whose completions are polled for.
pub(crate) fn polled_qp() -> Outcome<Qp> {
    let context = verbs::devices()?.first().ok_or("there is no device")?.open()?;
    let pd = context.alloc_pd()?;
    Ok(Cq::polled(&context, 256)?.create_qp(&pd, &QpOptions::default())?)
}

/// A role that has a QP, what it reported, and a QP that is connected to that one.
fn connected(role: &str, args: &[String]) -> Outcome<(Role, Words, Qp)> {
    let qp = polled_qp()?;
    let (mut role, words) = Role::start(&[], role, args)?;
    qp.connect(&exchange::endpoint(&words.get::<String>(0)?)?)?;
    role.ask(&format!("connect {}", exchange::show(&qp.endpoint()?)))?;
    Ok((role, words, qp))
}

/// Half a round trip, in microseconds: the typical one, as perftest says it.
fn ping() -> Outcome<f64> {
    let (mut echo, _, qp) = connected("echo", &[])?;
    echo.ask(&format!("echo {}", WARM_UP + ROUNDS))?;
    let buffer = qp.pd().register(vec![1_u8; 8])?;
    let typical = spin(rounds(&qp, buffer))?;
    echo.answer()?;
    Ok(typical)
}

async fn rounds(qp: &Qp, mut buffer: Buffer) -> Outcome<f64> {
    let mut batches = Sample::default();
    for batch in 0..(WARM_UP + ROUNDS) / BATCH {
        let start = Instant::now();
        for _ in 0..BATCH {
            // As `ib_send_lat` does: its send has completed before it looks for the answer.
            let (sent, back) = qp.send(buffer).await;
            sent?;
            if qp.recv().await?.len() != 8 {
                return Err("a message of 8 bytes came back with another length".into());
            }
            buffer = back;
        }
        if batch >= WARM_UP / BATCH {
            batches.push(start.elapsed().as_secs_f64() * 1e6 / BATCH as f64 / 2.0);
        }
    }
    Ok(batches.median())
}

/// WRITEs one after the other, in MiB/s.
fn write() -> Outcome<f64> {
    let args = ["anonymous".to_owned(), LENGTH.to_string()];
    let (mut owner, words, qp) = connected("owner", &args)?;
    let there = exchange::memory(&words.get::<String>(1)?)?;
    let there = RemoteSlice::<u8>::new(there, LENGTH as u64)?;
    let mut buffer = qp.pd().register(vec![7_u8; LENGTH])?;
    let rate = spin(async {
        let mut start = Instant::now();
        for round in 0..=WRITES {
            let (result, back) = qp.write(buffer, there).await;
            result?;
            buffer = back;
            if round == 0 {
                // The first waits for the peer's answer; then the path is known.
                start = Instant::now();
            }
        }
        Outcome::Ok(f64::from(WRITES) / start.elapsed().as_secs_f64())
    })?;
    owner.ask("check 7")?;
    Ok(rate)
}

/// Runs a future whose tasks look for completions themselves.
pub(crate) fn spin<F: Future>(future: F) -> F::Output {
    let (mut future, mut cx) = (pin!(future), Context::from_waker(Waker::noop()));
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut cx) {
            return output;
        }
    }
}
