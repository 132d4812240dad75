//! Many short WRITEs and READs between two processes of one host: of ordinary memory, and of a
//! shared heap.

use std::time::Instant;

use umem::HostBuf;

use super::in_turns;
use crate::Outcome;
use crate::bare::{memcpy, process_vm_writev_each};
use crate::child::Role;
use crate::perftest::{self, Place};
use crate::report::{Report, Row, Target};

const LENGTH: usize = 64 << 10;
const OPERATIONS: usize = 200_000;
/// As many as peerdma carries out together (`transport::RUN`).
const TOGETHER: usize = 64;
/// Program, bytes, QPs.
const RUNS: [(&str, u32, &str); 4] = [
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
    let count = OPERATIONS.to_string();
    for (program, size, qps) in RUNS {
        let length = size.to_string();
        let what = format!("{program}, {size} bytes, {qps} QP");
        for (together, target) in [(TOGETHER, Target::AtLeast(0.5)), (1, Target::AtLeast(1.0))] {
            let (ours, theirs) = in_turns(
                "small",
                reps,
                report,
                || {
                    let args = ["-s", &length, "-n", &count, "-q", qps];
                    let mib = perftest::run(&Place::here(), program, &args)?;
                    Ok(rate(mib, size))
                },
                || {
                    let start = Instant::now();
                    for _ in 0..OPERATIONS / together {
                        process_vm_writev_each(pid, &from, size as usize, addr, together)?;
                    }
                    Ok(OPERATIONS as f64 / 1e6 / start.elapsed().as_secs_f64())
                },
            )?;
            report.row(Row {
                bench: "small",
                what: what.clone(),
                beside: format!("process_vm_writev, {together} in a call"),
                ours: ours.into(),
                theirs: theirs.into(),
                unit: "M/s",
                target,
            });
        }
    }
    on_shared_heap(reps, report)
}

/// The same where the programs' memory is a file: each operation is a copy without a system call.
fn on_shared_heap(reps: u32, report: &mut Report) -> Outcome<()> {
    let (to, from) = (HostBuf::memfd("bench-to", LENGTH)?, HostBuf::memfd("bench-from", LENGTH)?);
    from.fill(0, 2, LENGTH)?;
    let count = OPERATIONS.to_string();
    for (program, size, qps) in RUNS {
        let length = size.to_string();
        let (ours, theirs) = in_turns(
            "small",
            reps,
            report,
            || {
                let args = ["-s", &length, "-n", &count, "-q", qps];
                let mib = perftest::run_shared(&Place::here(), program, &args)?;
                Ok(rate(mib, size))
            },
            || {
                let start = Instant::now();
                for _ in 0..OPERATIONS {
                    memcpy(&to, &from, size as usize);
                }
                Ok(OPERATIONS as f64 / 1e6 / start.elapsed().as_secs_f64())
            },
        )?;
        report.row(Row {
            bench: "small",
            what: format!("{program}, {size} bytes, {qps} QP, --shared-heap"),
            beside: "memcpy".to_owned(),
            ours: ours.into(),
            theirs: theirs.into(),
            unit: "M/s",
            target: Target::None,
        });
    }
    Ok(())
}

/// Millions of operations in a second.
fn rate(mib: f64, size: u32) -> f64 {
    mib * f64::from(1 << 20) / f64::from(size) / 1e6
}
