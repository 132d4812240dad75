//! `cargo xtask abi-check` and `cargo xtask matrix`: the tests of `peerdma` that check its C
//! interface.

use crate::sh::{Outcome, cargo, check};

/// The exported symbols with their versions, how the loader resolves them, and the layout of
/// structures.
pub(crate) fn run() -> Outcome {
    check(
        cargo()
            .args(["test", "-p", "peerdma", "--locked", "--test", "symbols", "--test", "loading"]),
    )?;
    check(cargo().args(["test", "-p", "peerdma", "--locked", "--lib", "layout"]))
}

/// Writes docs/VERBS_MATRIX.md from the tables of the library, or compares it.
pub(crate) fn matrix(only_check: bool) -> Outcome {
    let mut command = cargo();
    command.args(["test", "-p", "peerdma", "--locked", "--test", "matrix"]);
    if !only_check {
        command.env("PEERDMA_BLESS", "1");
    }
    check(&mut command)
}
