//! A page that the CPU gets back from a device, compared with a page by a bare userfaultfd.

use std::time::Instant;

use hmm::{DevicePages, Mirror, PAGE};
use umem::{HostBuf, Umem};

use super::in_turns;
use crate::Outcome;
use crate::bare::userfault;
use crate::report::{Report, Row, Target};

const HMM: &str = "hmm";
const PAGES: u64 = 4096;

pub(super) fn run(reps: u32, report: &mut Report) -> Outcome<()> {
    let (ours, theirs) = in_turns(HMM, reps, report, back, || userfault::page(PAGES))?;
    report.row(Row {
        bench: HMM,
        what: "a page comes back that the CPU touched".to_owned(),
        ours: ours.into(),
        beside: "a page by a bare userfaultfd".to_owned(),
        theirs: theirs.into(),
        unit: "us",
        target: Target::AtMost(3.0),
    });
    Ok(())
}

/// Microseconds per page.
fn back() -> Outcome<f64> {
    let len = PAGES * PAGE;
    // CAST: sixteen megabytes.
    let memory = HostBuf::anonymous(len as usize)?;
    let mirror = Mirror::new(len, DevicePages::new(Umem::host(&memory)))?;
    let _ = mirror.migrate_to_device(0, len)?;
    let cpu = mirror.umem();
    let mut byte = [0];
    let began = Instant::now();
    for page in 0..PAGES {
        cpu.read(page * PAGE, &mut byte)?;
    }
    let each = began.elapsed().as_secs_f64() * 1e6 / PAGES as f64;
    if mirror.stats().faulted_back != PAGES {
        return Err("some page was not in the device".into());
    }
    Ok(each)
}
