//! Many short WRITEs and READs between two processes of one host: of ordinary memory, and of a
//! shared heap.

use std::time::Instant;

use umem::HostBuf;

use super::in_turns;
use crate::Outcome;
use crate::bare::{memcpy, process_vm_writev_each};
use crate::child::Role;
use crate::pairs::Place;
use crate::perftest;
use crate::report::{Report, Row, Target};

const LENGTH: usize = 64 << 10;
const OPERATIONS: usize = 200_000;
/// As many as peerdma carries out together (`transport::RUN`).
const TOGETHER: usize = 64;
/// Program, bytes, QPs.
type Run = (&'static str, u32, &'static str);
const RUNS: [Run; 4] = [
    ("ib_write_bw", 8, "1"),
    ("ib_write_bw", 64, "1"),
    ("ib_write_bw", 8, "8"),
    ("ib_read_bw", 8, "1"),
];

pub(super) fn run(reps: u32, report: &mut Report) -> Outcome<()> {
    let (there, words) = Role::start(&[], "memory", &[LENGTH.to_string()])?;
    let (pid, addr) = (there.pid(), words.get(0)?);
    let from = HostBuf::anonymous(LENGTH)?;
    from.fill(0, 2, LENGTH)?;
    for run in RUNS {
        let (program, size, qps) = run;
        for (together, target) in [(TOGETHER, Target::AtLeast(0.5)), (1, Target::AtLeast(1.0))] {
            let bare = || process_vm_writev_each(pid, &from, size as usize, addr, together);
            let rates = in_turns(
                "small",
                reps,
                report,
                || by_perftest(perftest::run, run),
                || by_calls(OPERATIONS / together, bare),
            )?;
            let what = format!("{program}, {size} bytes, {qps} QP");
            let beside = format!("process_vm_writev, {together} in a call");
            row(report, what, beside, rates, target);
        }
    }
    on_shared_heap(reps, report)
}

/// The same where the programs' memory is a file: each operation is a copy without a system call.
fn on_shared_heap(reps: u32, report: &mut Report) -> Outcome<()> {
    let (to, from) = (HostBuf::memfd("bench-to", LENGTH)?, HostBuf::memfd("bench-from", LENGTH)?);
    from.fill(0, 2, LENGTH)?;
    for run in RUNS {
        let (program, size, qps) = run;
        let bare = || {
            memcpy(&to, &from, size as usize);
            Ok(())
        };
        let rates = in_turns(
            "small",
            reps,
            report,
            || by_perftest(perftest::run_shared, run),
            || by_calls(OPERATIONS, bare),
        )?;
        let what = format!("{program}, {size} bytes, {qps} QP, --shared-heap");
        row(report, what, "memcpy".to_owned(), rates, Target::None);
    }
    Ok(())
}

/// Millions of operations in a second, by a pair of programs.
fn by_perftest(
    pair: impl Fn(&Place, &str, &[&str]) -> Outcome<f64>,
    (program, size, qps): Run,
) -> Outcome<f64> {
    let (length, count) = (size.to_string(), OPERATIONS.to_string());
    let mib = pair(&Place::here(), program, &["-s", &length, "-n", &count, "-q", qps])?;
    Ok(mib * f64::from(1 << 20) / f64::from(size) / 1e6)
}

/// The same, where so many calls do them all.
fn by_calls(calls: usize, call: impl Fn() -> std::io::Result<()>) -> Outcome<f64> {
    let start = Instant::now();
    for _ in 0..calls {
        call()?;
    }
    Ok(OPERATIONS as f64 / 1e6 / start.elapsed().as_secs_f64())
}

fn row(
    report: &mut Report,
    what: String,
    beside: String,
    (ours, theirs): (Vec<f64>, Vec<f64>),
    target: Target,
) {
    let (ours, theirs) = (ours.into(), theirs.into());
    report.row(Row { bench: "small", what, ours, beside, theirs, unit: "M/s", target });
}
