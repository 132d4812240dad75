//! `cargo xtask level-zero-tests`: the conformance tests of Level Zero, unchanged, by the real
//! loader on the software GPU.
//!
//! Their programs run with and without the loader's validation layer ([ways](way)).
//! `interop/level-zero-tests/expected.toml` explains each test that skips or fails; what is not
//! explained there is an error, and so is an explanation of a failure that no longer happens. Tests
//! that wait for ever for a kernel are listed there as well, and are not run.

mod build;
mod page;
mod run;
mod way;

use clap::Args;

use self::build::{Built, PARTS};
use self::way::{WAYS, Way};
use crate::counts::Counts;
use crate::groups::{Context, Tested};
use crate::sh::{Outcome, cargo, check};
use crate::suites::{Expected, Verdicts};

/// What is known about the tests.
const EXPECTED: &str = "interop/level-zero-tests/expected.toml";

/// The options of `cargo xtask level-zero-tests`.
#[derive(Args)]
pub(crate) struct Options {
    /// Only build.
    #[arg(long)]
    build: bool,
    /// Do not write docs/LEVEL_ZERO_TESTS.md.
    #[arg(long)]
    check: bool,
    /// Run nothing: write the page from the results of the last run of each program.
    #[arg(long)]
    page: bool,
    /// Only variants that have this word: plain or validated (may be repeated).
    #[arg(long = "way", value_name = "WORD")]
    ways: Vec<String>,
    /// Only these programs of the suite, such as test_copy.
    #[arg(long = "program", value_name = "NAME")]
    programs: Vec<String>,
    /// Only these tests, in the syntax of googletest's filter.
    #[arg(default_value = "*")]
    filter: String,
}

/// Runs the suite, writes the page, and compares with the expected results.
pub(crate) fn run(options: &Options) -> Outcome {
    let built = build::all(true)?;
    if options.build {
        return Ok(());
    }
    let is_all = options.ways.is_empty() && options.programs.is_empty() && options.filter == "*";
    let counts = judge(&built, options, is_all && !options.check)?;
    counts.as_expected("level-zero-tests")
}

/// The group of `cargo xtask test --full`: all of it, without the page.
pub(crate) fn group(context: &Context) -> Outcome<Tested> {
    let built = match build::all(context.setup) {
        Ok(built) => built,
        Err(why) => return Ok(Tested::Impossible(why)),
    };
    let options = Options {
        build: false,
        check: true,
        page: false,
        ways: Vec::new(),
        programs: Vec::new(),
        filter: "*".to_owned(),
    };
    judge(&built, &options, false).map(Tested::Ran)
}

/// Runs the tests. One with an unexpected result counts as failed, even if it passed.
fn judge(built: &Built, options: &Options, write: bool) -> Outcome<Counts> {
    let expected = Expected::read(EXPECTED)?;
    let mut programs: Vec<&str> = PARTS.iter().flat_map(|part| part.programs).copied().collect();
    programs.retain(|name| {
        options.programs.is_empty() || options.programs.iter().any(|asked| asked == name)
    });
    let is_meant = |way: &&Way| {
        let words = way.words();
        options.ways.iter().all(|word| words.split(' ').any(|have| have == word))
    };
    let ways: Vec<&Way> = WAYS.iter().filter(is_meant).collect();
    if !options.page {
        check(cargo().args(["build", "--release", "--locked"]))?;
    }
    let mut columns: Vec<(String, Verdicts)> = Vec::new();
    // One after another: some tests need much of the machine's memory.
    for way in ways {
        let verdicts = match options.page {
            true => way.last(&programs),
            false => way.run(built, &expected, &programs, &options.filter)?,
        };
        columns.push((way.words(), verdicts));
    }
    let mut counts = Counts::default();
    for (on, verdicts) in &columns {
        counts += &expected.judge(on, verdicts);
    }
    if write {
        page::write(built, &columns, &expected)?;
    }
    Ok(counts)
}
