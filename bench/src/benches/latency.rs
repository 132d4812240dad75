//! Half round trips of 8 bytes between two processes of one host that both poll.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use umem::HostBuf;

use super::in_turns;
use crate::Outcome;
use crate::bare::process_vm_writev;
use crate::child::Role;
use crate::pairs::Place;
use crate::perftest;
use crate::report::{Report, Row, Target};
use crate::roles::cell_pair;
use crate::sample::Sample;
use crate::ucx;

/// Rounds before the clock runs: the answerer must start.
pub(crate) const WARM_UP: u64 = 1000;
/// Where the two words are in their page.
pub(crate) const CELLS: [usize; 2] = [0, 256];
/// Rounds of one measurement.
const ROUNDS: u64 = 20_000;
/// Rounds between two clock reads, each of which takes a quarter of a round of the fastest path.
pub(crate) const BATCH: u64 = 10;

/// What perftest's programs are asked for.
const ARGS: [&str; 4] = ["-s", "8", "-n", "20000"];

const WRITE: &str = "write-lat";
const SEND: &str = "send-lat";

pub(super) fn write(reps: u32, report: &mut Report) -> Outcome<()> {
    let (ours, theirs) = in_turns(WRITE, reps, report, || program("ib_write_lat"), pages)?;
    report.row(Row {
        bench: WRITE,
        what: "ib_write_lat, 8 bytes".to_owned(),
        ours: ours.into(),
        beside: "process_vm_writev".to_owned(),
        theirs: theirs.into(),
        unit: "us",
        target: Target::AtMost(1.5),
    });
    let mapped = || perftest::run_shared(&Place::here(), "ib_write_lat", &ARGS);
    let (ours, theirs) = in_turns(WRITE, reps, report, mapped, cells)?;
    report.row(Row {
        bench: WRITE,
        what: "ib_write_lat, 8 bytes, --shared-heap".to_owned(),
        ours: ours.into(),
        beside: "two cache lines".to_owned(),
        theirs: theirs.into(),
        unit: "us",
        target: Target::AtMost(2.0),
    });
    Ok(())
}

pub(super) fn send(reps: u32, report: &mut Report) -> Outcome<()> {
    // UCX may be missing: its failure is not ours.
    let both = || Ok((cells()?, ucx_latency().map_err(|error| error.to_string())));
    let (ours, theirs) = in_turns(SEND, reps, report, || program("ib_send_lat"), both)?;
    let (bare, ucx): (Vec<_>, Vec<_>) = theirs.into_iter().unzip();
    let mut row = |beside: &str, theirs: Vec<f64>, target| {
        report.row(Row {
            bench: SEND,
            what: "ib_send_lat, 8 bytes".to_owned(),
            ours: ours.clone().into(),
            beside: beside.to_owned(),
            theirs: theirs.into(),
            unit: "us",
            target,
        });
    };
    row("two cache lines", bare, Target::AtMost(3.0));
    match ucx.into_iter().collect() {
        Ok(ucx) => row("ucx_perftest tag_lat", ucx, Target::None),
        Err(why) => report.note(SEND, format!("ucx_perftest did not run: {why}")),
    }
    Ok(())
}

fn ucx_latency() -> Outcome<f64> {
    Ok(ucx::run("tag_lat", 8, 20_000)?.median)
}

fn program(name: &str) -> Outcome<f64> {
    perftest::run(&Place::here(), name, &ARGS)
}

/// Two processes, each of which stores into the line that the other polls.
fn cells() -> Outcome<f64> {
    let buffer = HostBuf::memfd("bench-cells", 4096)?;
    let fd = buffer.fd().map(|fd| std::os::fd::AsRawFd::as_raw_fd(&fd)).ok_or("no file")?;
    let path = format!("/proc/{}/fd/{fd}", std::process::id());
    let (_answerer, _) = Role::start(&[], "cells", &[path, ROUNDS.to_string()])?;
    let [ping, pong] = cell_pair(buffer.foreign())?;
    half_round(pong, |round| {
        ping.store(round, Ordering::Release);
        Ok(())
    })
}

/// Two processes that write into each other's memory by the system call, and poll their own.
fn pages() -> Outcome<f64> {
    // See the role: only where Yama restricts ptrace.
    let _ = rustix::process::set_ptracer(rustix::process::PTracer::Any);
    let (mut answerer, words) = Role::start(&[], "pages", &[])?;
    let (pid, there) = (answerer.pid(), words.get(0)?);
    let buffer = HostBuf::anonymous(4096)?;
    let here = buffer.as_ptr().addr() + CELLS[0];
    answerer.ask(&format!("{} {here} {ROUNDS}", std::process::id()))?;
    let from = HostBuf::anonymous(4096)?;
    half_round(buffer.foreign().atomic_u64(CELLS[0])?, |round| {
        from.store_u64(0, round, Ordering::Relaxed)?;
        Ok(process_vm_writev(pid, &from, 8, there)?)
    })
}

/// The median of many short batches, in microseconds: occasional interruptions do not show.
fn half_round(answer: &AtomicU64, mut send: impl FnMut(u64) -> Outcome<()>) -> Outcome<f64> {
    let mut round = 0;
    let mut once = || {
        round += 1;
        send(round)?;
        wait_for(answer, round)
    };
    for _ in 0..WARM_UP {
        once()?;
    }
    let mut batches = Sample::default();
    for _ in 0..ROUNDS / BATCH {
        let start = Instant::now();
        for _ in 0..BATCH {
            once()?;
        }
        batches.push(start.elapsed().as_secs_f64() * 1e6 / BATCH as f64 / 2.0);
    }
    Ok(batches.median())
}

/// Polls until `word` holds `value`.
#[inline(always)]
pub(crate) fn wait_for(word: &AtomicU64, value: u64) -> Outcome<()> {
    for spins in 1u64.. {
        if word.load(Ordering::Acquire) == value {
            return Ok(());
        }
        std::hint::spin_loop();
        // The process that should answer may wait for this very core, or be gone.
        if spins.is_multiple_of(1 << 14) {
            std::thread::yield_now();
        }
        if spins >= 1 << 32 {
            break;
        }
    }
    Err("the other side does not answer".into())
}
