//! Level Zero's driver over the software GPU, by the system's loader.

use std::cell::RefCell;

use super::in_turns;
use crate::Outcome;
use crate::child::{Role, peerdma};
use crate::report::{Report, Row, Target};

const NAME: &str = "level-zero";

pub(super) fn run(reps: u32, report: &mut Report) -> Outcome<()> {
    let peerdma = peerdma()?.to_string_lossy().into_owned();
    let prefix = [peerdma.as_str(), "run", "--gpu=xe", "--"].map(str::to_owned);
    let (mut role, _) = Role::start(&prefix, NAME, &[])?;
    for (what, name) in [
        ("htod", "zeCommandListAppendMemoryCopy to the device, 64 MiB"),
        ("dtoh", "zeCommandListAppendMemoryCopy from the device, 64 MiB"),
        ("dtod", "zeCommandListAppendMemoryCopy on the device, 64 MiB"),
    ] {
        let role = RefCell::new(&mut role);
        let figure = |what: &str| -> Outcome<f64> { role.borrow_mut().ask(what)?.get(0) };
        let (ours, theirs) = in_turns(NAME, reps, report, || figure(what), || figure("memcpy"))?;
        report.row(Row {
            bench: NAME,
            what: name.to_owned(),
            ours: ours.into(),
            beside: "memcpy".to_owned(),
            theirs: theirs.into(),
            unit: "MiB/s",
            target: Target::AtLeast(0.9),
        });
    }
    Ok(())
}
