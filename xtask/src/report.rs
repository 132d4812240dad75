//! What `cargo xtask test` prints at the end.

use std::time::Duration;

use crate::counts::Counts;

/// The result of one group.
pub(crate) struct Line {
    pub(crate) name: &'static str,
    pub(crate) budget: Duration,
    pub(crate) took: Duration,
    /// The percentage of the machine's processors that was used meanwhile.
    pub(crate) load: Option<u64>,
    pub(crate) counts: Counts,
    pub(crate) skipped: Vec<String>,
    /// Why the group as a whole could not run.
    pub(crate) impossible: Option<String>,
    pub(crate) error: Option<String>,
}

impl Line {
    /// Tests that passed: a test that was skipped returned early, and libtest counted it.
    pub(crate) fn passed(&self) -> u64 {
        self.counts.passed.saturating_sub(self.skipped.len() as u64)
    }

    /// Tests that failed; a group that failed as a whole counts as one.
    pub(crate) fn failed(&self) -> u64 {
        self.counts.failed.max(u64::from(self.error.is_some()))
    }

    /// Tests that did not run.
    pub(crate) fn not_run(&self) -> u64 {
        self.skipped.len() as u64 + self.counts.ignored
    }

    fn verdict(&self) -> &'static str {
        if self.failed() > 0 {
            "FAILED"
        } else if self.impossible.is_some() {
            "could not run"
        } else if self.took > self.budget * 2 {
            "ok, far over its budget"
        } else if self.took > self.budget {
            "ok, over its budget"
        } else {
            "ok"
        }
    }
}

/// Prints a line per group, the reasons, and the sums.
pub(crate) fn print(lines: &[Line]) {
    println!();
    println!(
        "{:<12} {:>7} {:>7} {:>7}  {:>7} {:>7} {:>5}",
        "group", "passed", "failed", "not run", "seconds", "budget", "load"
    );
    for line in lines {
        println!(
            "{:<12} {:>7} {:>7} {:>7}  {:>7.1} {:>7} {:>5}  {}",
            line.name,
            line.passed(),
            line.failed(),
            line.not_run(),
            line.took.as_secs_f64(),
            line.budget.as_secs(),
            line.load.map_or_else(|| "-".to_owned(), |load| format!("{load} %")),
            line.verdict()
        );
    }
    for line in lines {
        for skipped in &line.skipped {
            println!("not run: {}: {skipped}", line.name);
        }
        if line.counts.ignored > 0 {
            println!("not run: {}: {} tests marked #[ignore]", line.name, line.counts.ignored);
        }
        if let Some(why) = &line.impossible {
            println!("could not run: {}: {why}", line.name);
        }
        if let Some(error) = &line.error {
            println!("failed: {}: {error}", line.name);
        }
    }
}
