//! A reader of the counters of a NIC, for `peerdma run`.

use std::fs;
use std::path::Path;

use super::{hear, say};
use crate::Outcome;

const DEVICES: &str = "/sys/class/infiniband";

/// Answers names of counters with their sums over the processes of the first port, those that
/// ended since this role began included.
pub(super) fn run() -> Outcome<()> {
    let device = fs::read_dir(DEVICES)?.next().ok_or("there is no device")??.path();
    say("")?;
    while let Some(names) = hear()? {
        let values =
            names.iter().map(|name| counter(&device, name)).collect::<Outcome<Vec<_>>>()?;
        say(&values.join(" "))?;
    }
    Ok(())
}

fn counter(device: &Path, name: &str) -> Outcome<String> {
    let path = device.join("ports/1/hw_counters").join(name);
    let text = fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(text.trim().to_owned())
}
