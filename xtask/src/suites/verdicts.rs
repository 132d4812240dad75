//! Results of tests.

use std::collections::BTreeMap;

/// The result of one test.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) enum Verdict {
    Passed,
    /// Skipped, with the test's own reason.
    Skipped(String),
    /// Failed, with the test's message.
    Failed(String),
}

/// The results of all tests, by name.
#[derive(Debug, Default)]
pub(crate) struct Verdicts {
    pub(crate) tests: BTreeMap<String, Verdict>,
}

impl Verdicts {
    /// The numbers of tests that passed, skipped, and failed.
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
