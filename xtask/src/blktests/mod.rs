//! `cargo xtask blktests`: the group nvme of blktests, unchanged, with `examples/nvmet` as the
//! target and the kernel's `nvme-rdma` as the host.
//!
//! Both are in a virtual machine ([machine]). blktests has a hook for targets that it did not make
//! itself, by which it calls `interop/blktests/control`. `interop/blktests/expected.toml` explains
//! each test that skips or fails; what is not explained there is an error, and so is an explanation
//! of a failure that no longer happens.

mod machine;
mod page;
mod report;

use std::path::{Path, PathBuf};

use clap::Args;

use self::report::Report;
use crate::counts::Counts;
use crate::groups::{Context, Tested};
use crate::setup;
use crate::sh::{Outcome, cargo, check};
use crate::suites::Expected;
use crate::suites::built::{built, make};

/// What is known about the tests.
const EXPECTED: &str = "interop/blktests/expected.toml";
/// The one way of running them.
const WAY: &str = "rdma";

/// Packages besides those that the tests need: the machine has the programs of this one.
const PACKAGES: [(&str, &str); 4] = [
    ("gawk", "blktests' scripts"),
    ("liburing-dev", "blktests' program that passes commands by io_uring"),
    ("make", "builds blktests' programs"),
    ("xfsprogs", "file systems on a namespace"),
];

/// The options of `cargo xtask blktests`.
#[derive(Args)]
pub(crate) struct Options {
    /// Do not write docs/BLKTESTS.md.
    #[arg(long)]
    check: bool,
    /// Only these tests, such as nvme/010.
    tests: Vec<String>,
}

/// Runs the tests, writes the page, and compares with the expected results.
pub(crate) fn run(options: &Options) -> Outcome {
    let blktests = ready(true)?;
    let counts = judge(&blktests, options, options.tests.is_empty() && !options.check)?;
    counts.as_expected("blktests")
}

/// The group of `cargo xtask test --full`: all of it, without the page.
pub(crate) fn group(context: &Context) -> Outcome<Tested> {
    let blktests = match ready(context.setup) {
        Ok(blktests) => blktests,
        Err(why) => return Ok(Tested::Impossible(why)),
    };
    let options = Options { check: true, tests: Vec::new() };
    judge(&blktests, &options, false).map(Tested::Ran)
}

/// The suite, built, and the machine's kernel. An error says why this machine cannot have them.
fn ready(install: bool) -> Outcome<PathBuf> {
    setup::install("blktests", &PACKAGES, !install)?;
    machine::fetch()?;
    built("blktests", |_| Ok(vec![make()]))
}

/// Runs the tests. One with an unexpected result counts as failed, even if it passed.
fn judge(blktests: &Path, options: &Options, write: bool) -> Outcome<Counts> {
    let expected = Expected::read(EXPECTED)?;
    check(cargo().args(["build", "--release", "--locked", "-p", "nvmet", "--bin", "nvmet"]))?;
    let left_out = expected.left_out(WAY).map(|(test, _)| test).collect::<Vec<_>>();
    let said = machine::run(blktests, &options.tests, &left_out)?;
    let report = Report::of(said.lines());
    if report.verdicts.tests.is_empty() {
        return Err("no test ran".to_owned());
    }
    let counts = expected.judge(WAY, &report.verdicts);
    if write {
        page::write(&report, &expected)?;
    }
    Ok(counts)
}
