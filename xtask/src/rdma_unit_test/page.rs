//! docs/RDMA_UNIT_TEST.md: the result of each test.

use std::fmt::Write as _;
use std::fs;

use super::LEFT_OUT;
use super::build::Built;
use crate::sh::{Outcome, read, root, tool};
use crate::suites::page::{others, programs, sums};
use crate::suites::{Expected, Verdicts};

const PAGE: &str = "docs/RDMA_UNIT_TEST.md";

/// Writes the page; a column is a variant of running the suite, in words, and the results of the
/// tests.
pub(crate) fn write(built: &Built, columns: &[(String, Verdicts)], expected: &Expected) -> Outcome {
    let day = read(tool("date").args(["-u", "+%Y-%m-%d"]))?;
    let mut text = text(built, day.trim(), columns, expected);
    missing(&mut text, &built.names()?, columns);
    fs::write(root().join(PAGE), text).map_err(|err| format!("{PAGE}: {err}"))?;
    println!("wrote {PAGE}");
    Ok(())
}

fn text(built: &Built, day: &str, columns: &[(String, Verdicts)], expected: &Expected) -> String {
    let mut page = format!(
        "# google/rdma-unit-test\n\n\
         Written by `cargo xtask rdma-unit-test` on {day}. The suite's sources are unchanged; they are compiled without Bazel, with an \
         introspection for our device (`interop/rdma-unit-test`), which leaves no test out. \
         Tests that take hours are not run (`{LEFT_OUT}`): each has a twin with fewer operations. \
         Programs of traffic and the random walk run in the first way alone. `interop/rdma-unit-test/expected.toml` has the \
         reasons. One test: `cargo xtask rdma-unit-test --check --way mlx5 --program qp_test 'QpTest.Create'`.\n\n\
         | source | commit | date |\n|---|---|---|\n"
    );
    for source in &built.sources {
        let (repository, commit, date) = (&source.repository, source.commit(), &source.date);
        writeln!(page, "| {repository} | {commit} | {date} |").expect("a String takes all");
    }
    sums(&mut page, "preset, addresses, path MTU, carrier", columns);
    page.push_str(
        "\n`host` is what the processes of one host use, and `wire` is UDP port 4791, as between hosts.\n",
    );
    others(&mut page, columns, expected);
    programs(&mut page, columns);
    page
}

/// The programs without a test that ran.
fn missing(page: &mut String, names: &[String], columns: &[(String, Verdicts)]) {
    let tests = columns.iter().flat_map(|(_, verdicts)| verdicts.tests.keys());
    let has_run =
        |name: &&String| tests.clone().any(|test| test.split(':').next() == Some(name.as_str()));
    let (_, missing): (Vec<&String>, Vec<&String>) = names.iter().partition(has_run);
    for name in missing {
        writeln!(page, "| {name} | | not run this time |").expect("a String takes all");
    }
}
