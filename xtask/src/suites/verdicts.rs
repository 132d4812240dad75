//! What became of tests.

use std::collections::BTreeMap;

/// What became of one test.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Verdict {
    Passed,
    /// With the test's own reason.
    Skipped(String),
    /// With what the test said.
    Failed(String),
}

/// What became of all tests, by name.
#[derive(Debug, Default)]
pub(crate) struct Verdicts {
    pub(crate) tests: BTreeMap<String, Verdict>,
}

impl Verdicts {
    /// Tests that passed, skipped, failed.
    pub(crate) fn sums(&self) -> [usize; 3] {
        self.tests.values().fold([0; 3], |mut sums, verdict| {
            sums[match verdict {
                Verdict::Passed => 0,
                Verdict::Skipped(_) => 1,
                Verdict::Failed(_) => 2,
            }] += 1;
            sums
        })
    }
}
