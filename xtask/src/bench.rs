//! `cargo xtask bench`: ratios against a peer or a physical limit, all in one run.

use crate::sh::{Outcome, cargo, check};

/// Builds the library and `examples/nvmet` in release mode, then runs the bench program with
/// `args`.
pub(crate) fn run(args: &[String]) -> Outcome {
    check(cargo().args(["build", "--release", "--locked"]))?;
    check(cargo().args(["build", "--release", "--locked", "-p", "nvmet"]))?;
    check(cargo().args(["run", "--release", "--locked", "-p", "bench", "--"]).args(args))
}
