//! `cargo xtask rdma-unit-test`: google's suite for devices with verbs, unchanged, on peerdma.
//!
//! Its tests are programs of googletest: unit tests of the verbs, traffic, and a random walk
//! through them. Each program runs in each of several [variants](way), on a host of its own.
//! `interop/rdma-unit-test/expected.toml` explains each test that skips or fails; what is not
//! explained there is an error, and so is an explanation of a failure that no longer happens.

mod build;
mod page;
mod run;
mod way;

use clap::Args;

use self::build::Built;
use self::run::Task;
use self::way::{WAYS, Way};
use crate::counts::Counts;
use crate::groups::{Context, Tested};
use crate::sh::{Outcome, cargo, check};
use crate::suites::{Expected, Verdicts};

/// What is known about the tests.
const EXPECTED: &str = "interop/rdma-unit-test/expected.toml";
/// Tests that are left out because they take hours: each has a counterpart with fewer operations.
/// (Tests named `100000Ops` also do a million.) The largest tests of oversubscription take many
/// minutes each.
const LEFT_OUT: &str = "*1000000Ops*:*16384ByteOp100000Ops*:*QpOversubscriptionTest*/1000Qps1*";
/// Programs of traffic, which take most of the time: they run only in the first variant.
/// (`QpOversubscriptionTest` by itself takes five minutes of two cores.)
const TRAFFIC: [&str; 12] = [
    "basic_rc_test",
    "basic_ud_test",
    "cq_overrun_test",
    "event_driven_completion_test",
    "mixed_qp_mode_test",
    "qp_oversubscription_test",
    "random_walk_test",
    "rdma_stability_test",
    "rnr_nack_test",
    "simple_rdma_test",
    "ud_burst_test",
    "vary_mtu_test",
];
/// The random walk is a program without tests, which passes if it completes.
const WALK: &str = "run_random_walk";

/// The options of `cargo xtask rdma-unit-test`.
#[derive(Args)]
pub(crate) struct Options {
    /// Do not write docs/RDMA_UNIT_TEST.md.
    #[arg(long)]
    check: bool,
    /// Only variants that have this word, such as mlx5, ipv6, 4096 or wire (may be repeated).
    #[arg(long = "way", value_name = "WORD")]
    ways: Vec<String>,
    /// Only these programs of the suite, such as qp_test.
    #[arg(long = "program", value_name = "NAME")]
    programs: Vec<String>,
    /// Only these tests, in the syntax of googletest's filter.
    #[arg(default_value = "*")]
    filter: String,
}

/// Runs the suite, writes the page, and compares with the expected results.
pub(crate) fn run(options: &Options) -> Outcome {
    let built = build::build(build::sources(true)?)?;
    let is_all = options.ways.is_empty() && options.programs.is_empty() && options.filter == "*";
    let counts = judge(&built, options, is_all && !options.check)?;
    counts.as_expected("rdma-unit-test")
}

/// The group of `cargo xtask test --full`: all of it, without the page.
pub(crate) fn group(context: &Context) -> Outcome<Tested> {
    let sources = match build::sources(context.setup) {
        Ok(sources) => sources,
        Err(why) => return Ok(Tested::Impossible(why)),
    };
    let options =
        Options { check: true, ways: Vec::new(), programs: Vec::new(), filter: "*".to_owned() };
    judge(&build::build(sources)?, &options, false).map(Tested::Ran)
}

/// Runs the tests. One with an unexpected result counts as failed, even if it passed.
fn judge(built: &Built, options: &Options, write: bool) -> Outcome<Counts> {
    let expected = Expected::read(EXPECTED)?;
    check(cargo().args(["build", "--release", "--locked"]))?;
    let mut programs = built.names()?;
    programs.retain(|name| options.programs.is_empty() || options.programs.contains(name));
    let is_meant = |way: &&Way| {
        let words = way.words();
        options.ways.iter().all(|word| words.split(' ').any(|have| have == word))
    };
    let ways: Vec<&Way> = WAYS.iter().filter(is_meant).collect();
    let mut tasks = Vec::new();
    for way in &ways {
        let config = way.config()?;
        let is_first = *way == &WAYS[0];
        let asked = |program: &&String| {
            let is_heavy = program.as_str() == WALK || TRAFFIC.contains(&program.as_str());
            is_first || !is_heavy || !options.programs.is_empty()
        };
        tasks.extend(programs.iter().filter(asked).map(|program| Task {
            way,
            config: config.clone(),
            program: program.clone(),
            filter: options.filter.clone(),
        }));
    }
    let results = run::all(&built.programs, &tasks)?;
    let mut counts = Counts::default();
    let mut columns: Vec<(String, Verdicts)> = Vec::new();
    for way in ways {
        let mut verdicts = Verdicts::default();
        let of_way = tasks.iter().zip(&results).filter(|(task, _)| task.way == way);
        for (_, result) in of_way {
            verdicts.tests.extend(result.clone());
        }
        columns.push((way.words(), verdicts));
    }
    for (on, verdicts) in &columns {
        counts += &expected.judge(on, verdicts);
    }
    if write {
        page::write(built, &columns, &expected)?;
    }
    Ok(counts)
}
