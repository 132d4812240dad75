//! Building third-party sources.

use std::fs;
use std::os::unix::fs::symlink;
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
    // Written last, so that an interrupted build continues. It contains the steps, since these may
    // change.
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

/// Links the build under the name that tests look for, replacing the previous one.
pub(crate) fn name(link: &Path, to: &Path) -> Outcome {
    let failed = |err| format!("{}: {err}", link.display());
    if let Some(dir) = link.parent() {
        fs::create_dir_all(dir).map_err(failed)?;
    }
    let _ = fs::remove_file(link);
    symlink(to, link).map_err(failed)
}

/// `make` at a low priority.
pub(crate) fn make() -> Command {
    let mut make = tool("nice");
    make.args(["make", "-j2", "--silent"]);
    make
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_links_to_the_last_build() {
        let home = std::env::temp_dir().join(format!("peerdma-name-{}", std::process::id()));
        let link = home.join("programs/suite");
        for built in ["first", "second"] {
            name(&link, Path::new(built)).expect("the folder is made");
            assert_eq!(fs::read_link(&link).expect("it is a link"), Path::new(built));
        }
        fs::remove_dir_all(&home).expect("it was made here");
    }
}
