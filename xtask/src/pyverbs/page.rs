//! docs/PYVERBS.md: the result of each test.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;

use super::rxe::Rxe;
use super::suite::Suite;
use super::summary;
use crate::sh::{Outcome, root};
use crate::suites::{Expected, Verdict, Verdicts};

/// Writes the page of a suite, with the results of the same suite on the kernel's device next to
/// it.
pub(crate) fn write(
    suite: &Suite,
    (on, verdicts): (&str, &Verdicts),
    expected: &Expected,
    rxe: Option<&Rxe>,
) -> Outcome {
    let path = root().join("docs").join(suite.page);
    let text = text(suite, (on, verdicts), expected, rxe);
    fs::write(&path, text).map_err(|err| format!("{}: {err}", path.display()))?;
    println!("wrote {}", path.display());
    Ok(())
}

fn text(
    suite: &Suite,
    (on, verdicts): (&str, &Verdicts),
    expected: &Expected,
    rxe: Option<&Rxe>,
) -> String {
    let mut page = format!(
        "# rdma-core's own tests\n\n\
         Written by `{}`: {}, {}, on peerdma. The last column is \
         `interop/pyverbs/expected.toml`, or what the test itself says. The tests of CUDA run with cuda-python (a wheel) on the \
         software GPU, by `peerdma run --gpu=nvidia`.\n\n{}\n\n",
        suite.command,
        suite.what,
        suite.changed,
        summary(verdicts)
    );
    if let Some(rxe) = rxe {
        let [passed, skipped, failed] = rxe.verdicts.sums();
        write!(
            page,
            "Beside it, by `cargo xtask pyverbs --rxe`: the same tests on the Linux kernel's own software device, `rdma_rxe` of {}, \
             in a virtual machine. Its skips and failures have a table at the end.\n\nrdma_rxe: {passed} pass, {skipped} skip, {failed} fail\n\n",
            rxe.kernel,
        )
        .expect("a String takes all");
    }
    modules(&mut page, verdicts, rxe);
    tests(&mut page, (on, verdicts), expected, rxe);
    if let Some(rxe) = rxe {
        reasons(&mut page, rxe);
    }
    page
}

/// The sums of each module.
fn modules(page: &mut String, verdicts: &Verdicts, rxe: Option<&Rxe>) {
    page.push_str(match rxe {
        None => "| module | pass | skip | fail |\n|---|---|---|---|\n",
        Some(_) => {
            "| module | pass | skip | fail | rxe: pass | skip | fail |\n|---|---|---|---|---|---|---|\n"
        }
    });
    let names = verdicts.tests.keys().map(|test| module(test)).collect::<BTreeSet<_>>();
    for name in names {
        write!(page, "| {name} ").expect("a String takes all");
        for verdicts in std::iter::once(verdicts).chain(rxe.map(|rxe| &rxe.verdicts)) {
            let of_module = verdicts.tests.iter().filter(|(test, _)| module(test) == name);
            let of_module = of_module.map(|(test, verdict)| (test.clone(), verdict.clone()));
            let [passed, skipped, failed] = Verdicts { tests: of_module.collect() }.sums();
            write!(page, "| {passed} | {skipped} | {failed} ").expect("a String takes all");
        }
        page.push_str("|\n");
    }
}

/// Each test, and why it did not pass here.
fn tests(
    page: &mut String,
    (on, verdicts): (&str, &Verdicts),
    expected: &Expected,
    rxe: Option<&Rxe>,
) {
    page.push_str(match rxe {
        None => "\n| test | result | reason |\n|---|---|---|\n",
        Some(_) => "\n| test | result | rxe | reason |\n|---|---|---|---|\n",
    });
    for (test, verdict) in &verdicts.tests {
        let (result, said) = words(verdict);
        let beside = rxe.map(|rxe| rxe.verdicts.tests.get(test).map_or("not run", |v| words(v).0));
        let beside = beside.map(|result| format!(" {result} |")).unwrap_or_default();
        let why = if *verdict == Verdict::Passed {
            ""
        } else {
            expected.reason(on, test).unwrap_or(said)
        };
        let why = why.replace('|', "\\|");
        writeln!(page, "| {test} | {result} |{beside} {why} |").expect("a String takes all");
    }
}

/// The messages of tests that do not pass on the kernel's device, and how many tests have each.
fn reasons(page: &mut String, rxe: &Rxe) {
    let mut said: Vec<(&str, &str, Vec<&str>)> = Vec::new();
    for (test, verdict) in &rxe.verdicts.tests {
        let (result, why) = words(verdict);
        if *verdict == Verdict::Passed || VENDORS.iter().any(|vendor| test.contains(vendor)) {
            continue;
        }
        match said.iter_mut().find(|(known, words, _)| (*known, *words) == (result, why)) {
            Some((_, _, tests)) => tests.push(test),
            None => said.push((result, why, vec![test])),
        }
    }
    said.sort_by_key(|(_, _, tests)| std::cmp::Reverse(tests.len()));
    page.push_str(
        "\nWhat the tests say that do not pass on rdma_rxe, those of vendors' hardware left out. (The net interface is what these \
         tests look for in the `device` directory of sysfs, and a device without a bus has none; that is not to say that \
         rdma_rxe has no connection manager.)\n\n\
         | tests | result | reason |\n|---|---|---|\n",
    );
    for (result, why, tests) in said {
        let which = match &*tests {
            [test] => (*test).to_owned(),
            tests => tests.len().to_string(),
        };
        let why = why.replace('|', "\\|");
        writeln!(page, "| {which} | {result} | {why} |").expect("a String takes all");
    }
}

/// Tests for one vendor's hardware have the vendor's name in theirs.
const VENDORS: [&str; 4] = ["mlx5", "efa", "cuda", "Mlx5"];

fn words(verdict: &Verdict) -> (&str, &str) {
    match verdict {
        Verdict::Passed => ("pass", ""),
        Verdict::Skipped(why) => ("skip", why),
        Verdict::Failed(why) => ("fail", why),
    }
}

fn module(test: &str) -> &str {
    test.split('.').next().unwrap_or(test)
}
