//! What a program or library needs of the machine it runs on, as readelf shows it.

use std::collections::BTreeSet;
use std::path::Path;

use crate::sh::{Outcome, read, tool};

/// A version of the C library.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct Glibc(pub(super) u32, pub(super) u32);

impl std::fmt::Display for Glibc {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{}.{}", self.0, self.1)
    }
}

/// The newest version of the C library whose symbols a file uses.
pub(super) fn glibc(file: &Path) -> Outcome<Glibc> {
    let shown = read(tool("readelf").args(["--version-info", "--wide"]).arg(file))?;
    newest(&shown).ok_or_else(|| format!("{}: no version of the C library", file.display()))
}

/// The libraries that the loader looks for before a file's code can run.
pub(super) fn needed(file: &Path) -> Outcome<BTreeSet<String>> {
    let shown = read(tool("readelf").args(["--dynamic", "--wide"]).arg(file))?;
    let lines = shown.lines().filter(|line| line.contains("(NEEDED)"));
    let name = |line: &str| Some(line.split_once('[')?.1.split_once(']')?.0.to_owned());
    Ok(lines.filter_map(name).collect())
}

fn newest(shown: &str) -> Option<Glibc> {
    let version = |text: &str| {
        let mut numbers = text.split(|char: char| !char.is_ascii_digit());
        let mut next = || numbers.next().and_then(|digits| digits.parse::<u32>().ok());
        Some(Glibc(next()?, next()?))
    };
    shown.split("GLIBC_").skip(1).filter_map(version).max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_version_counts_as_a_number() {
        let shown = "  0x0010: Name: GLIBC_2.9  Flags: none\n  0x0020: Name: GLIBC_2.17  Flags: \
                     none\n  0x0030: Name: GLIBC_2.2.5  Flags: none\n Name: GLIBC_PRIVATE\n";
        assert_eq!(newest(shown), Some(Glibc(2, 17)));
        assert_eq!(newest("no version information"), None);
    }
}
