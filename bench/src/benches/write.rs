//! WRITE of 1 MiB between ordinary memory of two processes of one host.

use std::time::Instant;

use umem::HostBuf;

use super::in_turns;
use crate::Outcome;
use crate::bare::process_vm_writev;
use crate::child::Role;
use crate::pairs::Place;
use crate::perftest;
use crate::report::{Report, Row, Target};

const LENGTH: usize = 1 << 20;
const ROUNDS: u32 = 2000;

pub(super) fn run(reps: u32, report: &mut Report) -> Outcome<()> {
    let (there, words) = Role::start(&[], "memory", &[LENGTH.to_string()])?;
    let (pid, addr) = (there.pid(), words.get(0)?);
    let from = HostBuf::anonymous(LENGTH)?;
    from.fill(0, 2, LENGTH)?;
    let (length, rounds) = (LENGTH.to_string(), ROUNDS.to_string());
    let (ours, theirs) = in_turns(
        "write",
        reps,
        report,
        || perftest::run(&Place::here(), "ib_write_bw", &["-s", &length, "-n", &rounds]),
        || {
            let start = Instant::now();
            for _ in 0..ROUNDS {
                process_vm_writev(pid, &from, LENGTH, addr)?;
            }
            // 1 MiB each.
            Ok(f64::from(ROUNDS) / start.elapsed().as_secs_f64())
        },
    )?;
    report.row(Row {
        bench: "write",
        what: "ib_write_bw, 1 MiB".to_owned(),
        beside: "process_vm_writev".to_owned(),
        ours: ours.into(),
        theirs: theirs.into(),
        unit: "MiB/s",
        target: Target::AtLeast(0.8),
    });
    Ok(())
}
