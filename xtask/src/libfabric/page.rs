//! docs/FABTESTS.md: the result of each test.

use std::fmt::Write as _;
use std::fs;

use super::way::{WAYS, Way};
use crate::sh::{Outcome, read, root, tool};
use crate::suites::page::{others, programs, sums};
use crate::suites::{Expected, Source, Verdicts};

const PAGE: &str = "docs/FABTESTS.md";

/// Writes the page; a column is a variant of running the tests, in words, and their results.
pub(crate) fn write(columns: &[(String, Verdicts)], expected: &Expected) -> Outcome {
    let day = read(tool("date").args(["-u", "+%Y-%m-%d"]))?;
    let source = Source::named("libfabric")?;
    let (repository, commit, date) = (&source.repository, source.commit(), &source.date);
    let mut page = format!(
        "# fabtests\n\n\
         Written by `cargo xtask libfabric` on {}: the tests of {repository} {commit} of {date}, its sources unchanged, built with CUDA, \
         Level Zero and HSA, by its own runner (`runfabtests.py -t quick`) and `peerdma run`. A way is a provider, the memory that messages are in, \
         and one host or two; `dmabuf` registers by a dma-buf of the test's (`-R`). Tests that libfabric's own lists exclude for a provider do not count. `interop/fabtests/expected.toml` has the reasons, \
         with libfabric's own lines. One test: `cargo xtask libfabric --check --way cuda test_rdm_pingpong`.\n",
        day.trim()
    );
    sums(&mut page, "provider, memory, hosts", columns);
    let has_run = |way: &String| columns.iter().any(|(on, _)| on == way);
    for way in WAYS.iter().map(Way::words).filter(|way| !has_run(way)) {
        writeln!(page, "| {way} | not run to the end this time | | |").expect("a String takes all");
    }
    others(&mut page, columns, expected);
    programs(&mut page, columns);
    fs::write(root().join(PAGE), page).map_err(|err| format!("{PAGE}: {err}"))?;
    println!("wrote {PAGE}");
    Ok(())
}
