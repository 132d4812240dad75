//! docs/BLKTESTS.md: the result of each test.

use std::fmt::Write as _;
use std::fs;

use super::WAY;
use super::machine::{LARGE, SIZE, TIMEOUT};
use super::report::Report;
use crate::sh::{Outcome, read, root, tool};
use crate::suites::{Expected, Source, page};

const PAGE: &str = "docs/BLKTESTS.md";

/// Writes the page.
pub(crate) fn write(report: &Report, expected: &Expected) -> Outcome {
    let day = read(tool("date").args(["-u", "+%Y-%m-%d"]))?;
    let source = Source::named("blktests")?;
    let text = text(day.trim(), &source, report, expected);
    fs::write(root().join(PAGE), text).map_err(|err| format!("{PAGE}: {err}"))?;
    println!("wrote {PAGE}");
    Ok(())
}

fn text(day: &str, source: &Source, report: &Report, expected: &Expected) -> String {
    let (repository, commit, date) = (&source.repository, source.commit(), &source.date);
    let [passed, skipped, failed] = report.verdicts.sums();
    let mut page = format!(
        "# blktests\n\n\
         Written by `cargo xtask blktests` on {day}: the group nvme of {repository} {commit} of {date}, unchanged, with `examples/nvmet` \
         (docs/NVMEOF.md) as the target over RDMA and the kernel's `nvme-rdma` on `rdma_rxe` as the host, in an emulated machine with Debian's kernel. \
         blktests starts and ends the target by `interop/blktests/control` (NVME_TARGET_CONTROL); tests of a device that is there have one of its namespaces. \
         For tests that look for settings of the target in the kernel's configfs it keeps a subsystem without a port there, and passes on what they write. \
         The version of the kernel is without Debian's suffix, which blktests cannot read. \
         Settings for a slow machine: NVME_IMG_SIZE={SIZE} ({LARGE} where a test asks for it), TIMEOUT={TIMEOUT}, two processors. \
         `interop/blktests/expected.toml` has the reasons. One test: `cargo xtask blktests --check nvme/010`.\n\n\
         | pass | skip | fail |\n|---|---|---|\n| {passed} | {skipped} | {failed} |\n\n\
         | test | about | result | reason |\n|---|---|---|---|\n"
    );
    for (test, verdict) in &report.verdicts.tests {
        let (result, reason) = page::cells(WAY, test, verdict, expected);
        let title = report.titles.get(test).map_or("", |title| title).replace('|', "\\|");
        writeln!(page, "| {test} | {title} | {result} | {reason} |").expect("a String takes all");
    }
    page.push_str("\n## What is not run\n\n| test | reason |\n|---|---|\n");
    for (test, reason) in expected.left_out(WAY) {
        writeln!(page, "| {test} | {reason} |").expect("a String takes all");
    }
    page
}
