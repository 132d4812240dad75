//! `cargo xtask abi-check` and `cargo xtask matrix`: the tests that check the C interface.

use std::process::Command;

use crate::counts::Counts;
use crate::sh::{Outcome, cargo, watch};

/// The exported symbols with their versions, how the loader resolves them, and the layout of
/// structures.
pub(crate) fn run() -> Outcome {
    for target in ["symbols", "loading"] {
        tests("peerdma", &["--test", target], |_| {})?;
    }
    tests("peerdma-verbs-abi", &["--lib", "layout"], |_| {})
}

/// Writes docs/VERBS_MATRIX.md from the tables of the library, or compares it.
pub(crate) fn matrix(only_check: bool) -> Outcome {
    tests("peerdma", &["--test", "matrix"], |command| {
        if !only_check {
            command.env("PEERDMA_BLESS", "1");
        }
    })
}

/// Runs tests of a package. That there are none is an error: they have moved, or have another name.
fn tests(package: &str, which: &[&str], more: impl Fn(&mut Command)) -> Outcome {
    let mut command = cargo();
    command.args(["test", "-p", package, "--locked"]).args(which);
    more(&mut command);
    let mut counts = Counts::default();
    let ok = watch(&mut command, |line| counts.read(line))?;
    judge(ok, &counts).map_err(|why| format!("{package} {}: {why}", which.join(" ")))
}

fn judge(ok: bool, counts: &Counts) -> Outcome {
    match counts {
        _ if !ok => Err("it does not build, or a test failed".to_owned()),
        Counts { passed: 0, .. } => Err("no test has that name".to_owned()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_without_a_test_fails() {
        let none = Counts::default();
        let some = Counts { passed: 3, ..Counts::default() };
        assert!(judge(true, &some).is_ok());
        assert!(judge(true, &none).is_err() && judge(false, &some).is_err());
    }
}
