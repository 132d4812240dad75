//! docs/LEVEL_ZERO_TESTS.md: the results, by program and by reason.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs;

use super::build::{Built, PARTS};
use crate::sh::{Outcome, read, root, tool};
use crate::suites::{Expected, Verdict, Verdicts};

const PAGE: &str = "docs/LEVEL_ZERO_TESTS.md";

/// Writes the page; a column is a variant of running the suite, in words, and the results of the
/// tests.
pub(crate) fn write(built: &Built, columns: &[(String, Verdicts)], expected: &Expected) -> Outcome {
    let day = read(tool("date").args(["-u", "+%Y-%m-%d"]))?;
    let mut page = format!(
        "# level-zero-tests\n\n\
         Written by `cargo xtask level-zero-tests` on {}: the conformance tests of Level Zero, their sources unchanged, by the real loader and \
         `peerdma run --gpu=xe` (docs/LEVEL_ZERO.md), `plain` and with the loader's validation layer (`validated`: {}). \
         The software GPU runs no kernel: a test that needs one fails, and `interop/level-zero-tests/expected.toml` \
         has the reason of each. One test: `cargo xtask level-zero-tests --check --way plain --program test_fence '*Reset*'`.\n\n\
         | source | commit | date |\n|---|---|---|\n",
        day.trim(),
        super::way::WAYS[1].variables().join(", "),
    );
    for source in &built.sources {
        let (repository, commit, date) = (&source.repository, source.commit(), &source.date);
        writeln!(page, "| {repository} | {commit} | {date} |").expect("a String takes all");
    }
    programs(&mut page, columns);
    others(&mut page, columns, expected);
    left_out(&mut page, columns, expected);
    fs::write(root().join(PAGE), page).map_err(|err| format!("{PAGE}: {err}"))?;
    println!("wrote {PAGE}");
    Ok(())
}

/// The tests that do not run, by reason.
fn left_out(page: &mut String, columns: &[(String, Verdicts)], expected: &Expected) {
    let mut rows: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for (tests, reason) in columns.iter().flat_map(|(on, _)| expected.left_out(on)) {
        rows.entry(reason).or_default().insert(tests);
    }
    page.push_str("\n## What is not run\n\n| reason | tests |\n|---|---|\n");
    for (reason, tests) in rows {
        let tests = tests.into_iter().collect::<Vec<_>>().join("<br>");
        writeln!(page, "| {reason} | {tests} |").expect("a String takes all");
    }
}

/// How many tests of each program pass, skip and fail in each variant.
fn programs(page: &mut String, columns: &[(String, Verdicts)]) {
    let mut sums: BTreeMap<&str, BTreeMap<&str, [usize; 3]>> = BTreeMap::new();
    for (on, verdicts) in columns {
        for (test, verdict) in &verdicts.tests {
            let (program, _) = test.split_once(':').unwrap_or((test, test));
            let sum = sums.entry(program).or_default().entry(on).or_default();
            sum[match verdict {
                Verdict::Passed => 0,
                Verdict::Skipped(_) => 1,
                Verdict::Failed(_) => 2,
            }] += 1;
        }
    }
    page.push_str("\n| program | variant | pass | skip | fail |\n|---|---|---|---|---|\n");
    let has_run = |program: &&&str| sums.contains_key(**program);
    for program in PARTS.iter().flat_map(|part| part.programs).filter(|name| !has_run(name)) {
        writeln!(page, "| {program} | not run to its end this time | | | |")
            .expect("a String takes all");
    }
    for (program, of) in sums {
        for (on, [passed, skipped, failed]) in of {
            writeln!(page, "| {program} | {on} | {passed} | {skipped} | {failed} |")
                .expect("a String takes all");
        }
    }
    for (on, verdicts) in columns {
        let [passed, skipped, failed] = verdicts.sums();
        writeln!(page, "| all | {on} | {passed} | {skipped} | {failed} |")
            .expect("a String takes all");
    }
}

/// The tests that skip or fail anywhere, by reason: the suites that they are of, with their
/// numbers.
fn others(page: &mut String, columns: &[(String, Verdicts)], expected: &Expected) {
    let mut rows: BTreeMap<(&str, &str), BTreeMap<&str, BTreeSet<&str>>> = BTreeMap::new();
    let mut places: BTreeMap<(&str, &str), BTreeSet<&str>> = BTreeMap::new();
    for (on, verdicts) in columns {
        for (test, verdict) in &verdicts.tests {
            let (result, said) = match verdict {
                Verdict::Failed(why) => ("fail", &**why),
                Verdict::Skipped(why) => ("skip", &**why),
                Verdict::Passed => continue,
            };
            let row = (result, expected.reason(on, test).unwrap_or(said));
            rows.entry(row).or_default().entry(suite(test)).or_default().insert(test);
            places.entry(row).or_default().insert(on);
        }
    }
    page.push_str(
        "\n## What does not pass\n\n| result | reason | variant | tests |\n|---|---|---|---|\n",
    );
    for (row, suites) in rows {
        let on = &places[&row];
        let on = match on.len() == columns.len() {
            true => "both".to_owned(),
            false => on.iter().copied().collect::<Vec<_>>().join("<br>"),
        };
        let tests: Vec<String> = suites
            .iter()
            .map(|(suite, tests)| match tests.len() {
                1 => (*tests.first().expect("there is one")).to_owned(),
                number => format!("{suite} ({number})"),
            })
            .collect();
        let (result, reason) = (row.0, row.1.replace('|', "\\|"));
        writeln!(page, "| {result} | {reason} | {on} | {} |", tests.join("<br>"))
            .expect("a String takes all");
    }
}

/// The suite of a test, with its program.
fn suite(test: &str) -> &str {
    test.split_once('.').map_or(test, |(suite, _)| suite)
}
