//! The parts of a page on a suite that runs in several ways. A column is a way, in words, and the
//! results of the tests.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::{Expected, Verdict, Verdicts};

/// The result of a test in one way, and the reason unless it passed, as the cells of a row.
pub(crate) fn cells(
    on: &str,
    test: &str,
    verdict: &Verdict,
    expected: &Expected,
) -> (&'static str, String) {
    let (result, said) = match verdict {
        Verdict::Passed => return ("pass", String::new()),
        Verdict::Skipped(why) => ("skip", why),
        Verdict::Failed(why) => ("fail", why),
    };
    (result, expected.reason(on, test).unwrap_or(said).replace('|', "\\|"))
}

/// How many tests pass, skip and fail in each way; `what` is the term for one test.
pub(crate) fn sums(page: &mut String, what: &str, columns: &[(String, Verdicts)]) {
    writeln!(page, "\n| {what} | pass | skip | fail |\n|---|---|---|---|")
        .expect("a String takes all");
    for (on, verdicts) in columns {
        let [passed, skipped, failed] = verdicts.sums();
        writeln!(page, "| {on} | {passed} | {skipped} | {failed} |").expect("a String takes all");
    }
}

/// Each test that skips or fails anywhere, by reason.
pub(crate) fn others(page: &mut String, columns: &[(String, Verdicts)], expected: &Expected) {
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

/// The tests of each program that pass in every way in which they run.
pub(crate) fn programs(page: &mut String, columns: &[(String, Verdicts)]) {
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
