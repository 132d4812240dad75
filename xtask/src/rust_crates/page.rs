//! docs/RUST_CRATES.md: the result of each test.

use std::fmt::Write as _;
use std::fs;

use crate::sh::{Outcome, read, root, tool};
use crate::suites::{Expected, Source, Verdicts, page};

const PAGE: &str = "docs/RUST_CRATES.md";

/// Writes the page.
pub(crate) fn write(rows: &[(&Source, Verdicts)], expected: &Expected) -> Outcome {
    let day = read(tool("date").args(["-u", "+%Y-%m-%d"]))?;
    let text = text(day.trim(), rows, expected);
    fs::write(root().join(PAGE), text).map_err(|err| format!("{PAGE}: {err}"))?;
    println!("wrote {PAGE}");
    Ok(())
}

fn text(day: &str, rows: &[(&Source, Verdicts)], expected: &Expected) -> String {
    let mut page = format!(
        "# Rust crates that wrap libibverbs\n\n\
         Written by `cargo xtask rust-crates` on {day}: their own tests, their sources unchanged, by `peerdma run -- cargo test`, \
         and their examples, as `interop/rust-crates/examples.toml` has them. \
         async-rdma, which was written for the kernel's rxe, has a NIC of that preset. \
         `interop/rust-crates/expected.toml` has the reasons.\n\n\
         | crate | commit | date | pass | skip | fail |\n|---|---|---|---|---|---|\n"
    );
    for (source, verdicts) in rows {
        let (repository, commit, date) = (&source.repository, source.commit(), &source.date);
        let [passed, skipped, failed] = verdicts.sums();
        writeln!(page, "| {repository} | {commit} | {date} | {passed} | {skipped} | {failed} |")
            .expect("a String takes all");
    }
    page.push_str("\n| crate | test | result | reason |\n|---|---|---|---|\n");
    for (source, verdicts) in rows {
        for (test, verdict) in &verdicts.tests {
            let (result, reason) = page::cells(&source.name, test, verdict, expected);
            writeln!(page, "| {} | {test} | {result} | {reason} |", source.name)
                .expect("a String takes all");
        }
    }
    page
}
