//! docs/RDMA_UNIT_TEST.md: what became of each test.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;

use super::LEFT_OUT;
use super::build::Built;
use crate::sh::{Outcome, read, root, tool};
use crate::suites::{Expected, Verdict, Verdicts};

const PAGE: &str = "docs/RDMA_UNIT_TEST.md";

/// Writes the page; a column is a way of running the suite, in words, and what became of the tests.
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
    page.push_str(
        "\n| preset, addresses, path MTU, carrier | pass | skip | fail |\n|---|---|---|---|\n",
    );
    for (on, verdicts) in columns {
        let [passed, skipped, failed] = verdicts.sums();
        writeln!(page, "| {on} | {passed} | {skipped} | {failed} |").expect("a String takes all");
    }
    page.push_str(
        "\n`host` is what the processes of one host use, and `wire` is UDP port 4791, as between hosts.\n",
    );
    others(&mut page, columns, expected);
    programs(&mut page, columns);
    page
}

/// The programs of which no test has run.
fn missing(page: &mut String, names: &[String], columns: &[(String, Verdicts)]) {
    let tests = columns.iter().flat_map(|(_, verdicts)| verdicts.tests.keys());
    let has_run =
        |name: &&String| tests.clone().any(|test| test.split(':').next() == Some(name.as_str()));
    let (_, missing): (Vec<&String>, Vec<&String>) = names.iter().partition(has_run);
    for name in missing {
        writeln!(page, "| {name} | | not run this time |").expect("a String takes all");
    }
}

/// Each test that skips or fails anywhere, by reason.
fn others(page: &mut String, columns: &[(String, Verdicts)], expected: &Expected) {
    let mut rows: BTreeMap<(&str, &str, Vec<&str>), BTreeSet<&str>> = BTreeMap::new();
    let tests: BTreeSet<&str> = columns
        .iter()
        .flat_map(|(_, verdicts)| verdicts.tests.keys())
        .map(|test| &**test)
        .collect();
    for test in tests {
        let mut ways: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
        for (on, verdicts) in columns {
            let (result, said) = match verdicts.tests.get(test) {
                Some(Verdict::Failed(why)) => ("fail", &**why),
                Some(Verdict::Skipped(why)) => ("skip", &**why),
                Some(Verdict::Passed) | None => continue,
            };
            let reason = expected.reason(on, test).unwrap_or(said);
            ways.entry((result, reason)).or_default().push(on);
        }
        for ((result, reason), on) in ways {
            rows.entry((result, reason, on)).or_default().insert(test);
        }
    }
    page.push_str(
        "\n## What does not pass\n\n| test | result | where | reason |\n|---|---|---|---|\n",
    );
    for ((result, reason, on), tests) in rows {
        let tests = tests.into_iter().collect::<Vec<_>>().join("<br>");
        let on = if on.len() == columns.len() { "everywhere".to_owned() } else { on.join("<br>") };
        let reason = reason.replace('|', "\\|");
        writeln!(page, "| {tests} | {result} | {on} | {reason} |").expect("a String takes all");
    }
}

/// The tests of each program that pass in every way that they run in.
fn programs(page: &mut String, columns: &[(String, Verdicts)]) {
    let mut passed: BTreeMap<&str, BTreeMap<&str, bool>> = BTreeMap::new();
    for (test, verdict) in columns.iter().flat_map(|(_, verdicts)| &verdicts.tests) {
        let (program, test) = test.split_once(':').unwrap_or((test, test));
        let is_passed = passed.entry(program).or_default().entry(test).or_insert(true);
        *is_passed &= *verdict == Verdict::Passed;
    }
    page.push_str("\n## What passes everywhere\n\n| program | tests | which |\n|---|---|---|\n");
    for (program, tests) in passed {
        let tests: Vec<&str> =
            tests.into_iter().filter(|(_, is_passed)| *is_passed).map(|(test, _)| test).collect();
        writeln!(page, "| {program} | {} | {} |", tests.len(), tests.join(", "))
            .expect("a String takes all");
    }
}
