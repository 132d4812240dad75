//! CUDA's driver over the software GPU.

use super::in_turns;
use crate::Outcome;
use crate::child::{Role, peerdma};
use crate::report::{Report, Row, Target};

const NAME: &str = "cuda";

/// Nanoseconds to learn that an address is the program's own.
const ATTRIBUTES_LIMIT: f64 = 100.0;
/// Microseconds to allocate and free 1 MiB.
const ALLOC_LIMIT: f64 = 20.0;
/// Milliseconds from loading the driver to the first memory.
const FIRST_LIMIT: f64 = 50.0;

pub(super) fn run(reps: u32, report: &mut Report) -> Outcome<()> {
    let peerdma = peerdma()?.to_string_lossy().into_owned();
    let prefix = [peerdma.as_str(), "run", "--gpu=nvidia", "--"].map(str::to_owned);
    let mut first = Vec::new();
    for _ in 0..reps {
        let (_, words) = Role::start(&prefix, NAME, &[])?;
        first.push(words.get(0)?);
    }
    let (mut role, _) = Role::start(&prefix, NAME, &[])?;
    let mut figures =
        |what: &str| -> Outcome<Vec<f64>> { (0..reps).map(|_| role.ask(what)?.get(0)).collect() };
    let rows = [
        ("attributes of host memory", figures("attributes")?, "ns", ATTRIBUTES_LIMIT),
        ("cuMemAlloc and cuMemFree, 1 MiB", figures("alloc")?, "us", ALLOC_LIMIT),
        ("first use of the driver", first, "ms", FIRST_LIMIT),
    ];
    for (what, ours, unit, limit) in rows {
        let theirs = vec![limit; ours.len()];
        row(report, what, (ours, theirs), "limit", unit, Target::AtMost(1.0));
    }
    for (what, name) in [
        ("htod", "cuMemcpyHtoD, 64 MiB"),
        ("dtoh", "cuMemcpyDtoH, 64 MiB"),
        ("dtod", "cuMemcpyDtoD, 64 MiB"),
    ] {
        let role = std::cell::RefCell::new(&mut role);
        let figure = |what: &str| -> Outcome<f64> { role.borrow_mut().ask(what)?.get(0) };
        let rates = in_turns(NAME, reps, report, || figure(what), || figure("memcpy"))?;
        row(report, name, rates, "memcpy", "MiB/s", Target::AtLeast(0.9));
    }
    Ok(())
}

fn row(
    report: &mut Report,
    what: &str,
    (ours, theirs): (Vec<f64>, Vec<f64>),
    beside: &str,
    unit: &'static str,
    target: Target,
) {
    let (ours, theirs) = (ours.into(), theirs.into());
    let (what, beside) = (what.to_owned(), beside.to_owned());
    report.row(Row { bench: NAME, what, ours, beside, theirs, unit, target });
}
