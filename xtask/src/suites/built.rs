//! Building a source of others.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::Source;
use crate::sh::{Outcome, check, tool};

/// Builds a source, once.
pub(crate) fn built(
    name: &str,
    steps: impl FnOnce(&Path) -> Outcome<Vec<Command>>,
) -> Outcome<PathBuf> {
    let source = Source::named(name)?.unpacked()?;
    built_in(&source, || steps(&source))?;
    Ok(source)
}

/// Builds in a directory of a source, once for these steps.
pub(crate) fn built_in(dir: &Path, steps: impl FnOnce() -> Outcome<Vec<Command>>) -> Outcome {
    // The last thing that is made: a build that broke off goes on. It has the steps, as they may
    // become others.
    let done = dir.join("built-by-peerdma");
    let steps = steps()?;
    let words = format!("{steps:?}");
    if fs::read_to_string(&done).is_ok_and(|built| built == words) {
        return Ok(());
    }
    for mut step in steps {
        check(step.current_dir(dir))?;
    }
    fs::write(&done, words).map_err(|err| format!("{}: {err}", done.display()))
}

/// `make` that leaves the machine to others.
pub(crate) fn make() -> Command {
    let mut make = tool("nice");
    make.args(["make", "-j2", "--silent"]);
    make
}
