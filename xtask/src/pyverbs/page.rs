//! docs/PYVERBS.md: what became of each test.

use std::fmt::Write as _;
use std::fs;

use super::expected::Expected;
use super::suite::Suite;
use super::{Verdict, Verdicts, summary};
use crate::sh::{Outcome, root};

/// Writes the page of a suite.
pub(crate) fn write(suite: &Suite, verdicts: &Verdicts, expected: &Expected) -> Outcome {
    let path = root().join("docs").join(suite.page);
    let text = text(suite, verdicts, expected);
    fs::write(&path, text).map_err(|err| format!("{}: {err}", path.display()))?;
    println!("wrote {}", path.display());
    Ok(())
}

fn text(suite: &Suite, verdicts: &Verdicts, expected: &Expected) -> String {
    let mut page = format!(
        "# rdma-core's own tests\n\n\
         Written by `{}`: {}, unmodified, on peerdma. The last column is \
         `interop/pyverbs/expected.toml`, or what the test itself says.\n\n{}\n\n",
        suite.command,
        suite.what,
        summary(verdicts)
    );
    page.push_str("| module | pass | skip | fail |\n|---|---|---|---|\n");
    let mut modules: Vec<_> = verdicts.tests.keys().map(|test| module(test)).collect();
    modules.dedup();
    for name in modules {
        let of_module = verdicts.tests.iter().filter(|(test, _)| module(test) == name);
        let of_module = of_module.map(|(test, verdict)| (test.clone(), verdict.clone()));
        let [passed, skipped, failed] = Verdicts { tests: of_module.collect() }.sums();
        writeln!(page, "| {name} | {passed} | {skipped} | {failed} |").expect("a String takes all");
    }
    page.push_str("\n| test | result | reason |\n|---|---|---|\n");
    for (test, verdict) in &verdicts.tests {
        let (result, said) = match verdict {
            Verdict::Passed => ("pass", ""),
            Verdict::Skipped(why) => ("skip", &**why),
            Verdict::Failed(why) => ("fail", &**why),
        };
        let why =
            if *verdict == Verdict::Passed { "" } else { expected.reason(test).unwrap_or(said) };
        let why = why.replace('|', "\\|");
        writeln!(page, "| {test} | {result} | {why} |").expect("a String takes all");
    }
    page
}

fn module(test: &str) -> &str {
    test.split('.').next().unwrap_or(test)
}
