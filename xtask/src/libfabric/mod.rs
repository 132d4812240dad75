//! `cargo xtask libfabric`: libfabric with device memory, and its own tests by their own runner.
//!
//! They run in several [ways](way): providers, memory of the host and of software GPUs, one host
//! and two. `interop/fabtests/expected.toml` explains each test that skips or fails; what is not
//! explained there is an error, and so is an explanation of a failure that no longer happens.

mod build;
mod hosts;
mod page;
mod pytest;
mod run;
mod way;

use std::time::Instant;

use clap::Args;

use self::build::Built;
use self::way::{WAYS, Way};
use crate::counts::Counts;
use crate::groups::{self, Context, Tested};
use crate::sh::{Outcome, cargo, check};
use crate::suites::{Expected, Verdicts, side_by_side};

/// What is known about the tests.
const EXPECTED: &str = "interop/fabtests/expected.toml";
/// How many variants run at a time: each test has two processes that mostly wait.
const AT_A_TIME: usize = 3;

/// The options of `cargo xtask libfabric`.
#[derive(Args)]
pub(crate) struct Options {
    /// Only build.
    #[arg(long)]
    build: bool,
    /// Do not write docs/FABTESTS.md.
    #[arg(long)]
    check: bool,
    /// Run nothing: write the page from the results of the last run of each variant.
    #[arg(long)]
    page: bool,
    /// Only variants that have this word, such as cuda, dmabuf, verbs or wire (may be repeated).
    #[arg(long = "way", value_name = "WORD")]
    ways: Vec<String>,
    /// Only these tests, in the syntax of pytest's `-k`.
    expression: Option<String>,
}

/// Runs the tests, writes the page, and compares with the expected results.
pub(crate) fn run(options: &Options) -> Outcome {
    if options.page {
        let last = |way: &Way| Some((way.words(), way.last()?));
        let columns: Vec<_> = WAYS.iter().filter_map(last).collect();
        let expected = Expected::read(EXPECTED)?;
        let counts = compare(&columns, &expected);
        page::write(&columns, &expected)?;
        return counts.as_expected("libfabric");
    }
    check(cargo().args(["build", "--release", "--locked"]))?;
    let built = build::all(true)?;
    if options.build {
        return Ok(());
    }
    let is_all = options.ways.is_empty() && options.expression.is_none();
    judge(&built, options, is_all && !options.check)?.as_expected("libfabric")
}

/// The group of `cargo xtask test --full`: all of it, `interop/tests/libfabric`, and no page.
pub(crate) fn group(context: &Context) -> Outcome<Tested> {
    check(cargo().args(["build", "--release", "--locked"]))?;
    let built = match build::all(context.setup) {
        Ok(built) => built,
        Err(why) => return Ok(Tested::Impossible(why)),
    };
    let mut counts = match groups::interop(context, "libfabric", 1)? {
        Tested::Ran(counts) => counts,
        Tested::Impossible(why) => return Ok(Tested::Impossible(why)),
    };
    let options =
        Options { build: false, check: true, page: false, ways: Vec::new(), expression: None };
    counts += &judge(&built, &options, false)?;
    Ok(Tested::Ran(counts))
}

/// Runs the tests. One with an unexpected result counts as failed, even if it passed.
fn judge(built: &Built, options: &Options, write: bool) -> Outcome<Counts> {
    let expected = Expected::read(EXPECTED)?;
    let is_meant = |way: &&Way| {
        let words = way.words();
        options.ways.iter().all(|word| words.split(' ').any(|have| have == word))
    };
    let ways: Vec<&Way> = WAYS.iter().filter(is_meant).collect();
    let columns = all(built, &ways, options.expression.as_deref())?;
    let counts = compare(&columns, &expected);
    if write {
        page::write(&columns, &expected)?;
    }
    Ok(counts)
}

/// An unexpected result counts as failed.
fn compare(columns: &[(String, Verdicts)], expected: &Expected) -> Counts {
    let mut counts = Counts::default();
    for (on, verdicts) in columns {
        counts += &expected.judge(on, verdicts);
    }
    counts
}

/// Runs some variants side by side, each on its own hosts.
fn all(built: &Built, ways: &[&Way], expression: Option<&str>) -> Outcome<Vec<(String, Verdicts)>> {
    side_by_side(AT_A_TIME, ways, |way| {
        let start = Instant::now();
        let result = way.run(built, expression);
        println!("{}: {:.0} s", way.words(), start.elapsed().as_secs_f64());
        result.map(|verdicts| (way.words(), verdicts))
    })
}
