//! How many tests passed: read from what `cargo test` prints.

use std::ops::AddAssign;

use crate::sh::Outcome;

/// Sums over test programs.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(crate) struct Counts {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) ignored: u64,
}

impl Counts {
    /// Reads one line; only `test result: ok. 3 passed; 0 failed; 0 ignored; ...` counts.
    pub(crate) fn read(&mut self, line: &str) {
        let Some(result) = line.trim_start().strip_prefix("test result: ") else { return };
        for part in result.split(['.', ';']) {
            let Some((number, what)) = part.trim().split_once(' ') else { continue };
            let Ok(number) = number.parse::<u64>() else { continue };
            match what {
                "passed" => self.passed += number,
                "failed" => self.failed += number,
                "ignored" => self.ignored += number,
                _ => {}
            }
        }
    }

    /// An error if results of this suite are not what `Expected` lists.
    pub(crate) fn as_expected(&self, suite: &str) -> Outcome {
        match self.failed {
            0 => Ok(()),
            failed => Err(format!("{suite}: {failed} tests are not as expected")),
        }
    }
}

impl AddAssign<&Self> for Counts {
    fn add_assign(&mut self, other: &Self) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.ignored += other.ignored;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_of_several_programs_add_up() {
        let mut counts = Counts::default();
        counts.read("running 3 tests");
        counts.read("test result: ok. 3 passed; 0 failed; 1 ignored; 0 measured; 7 filtered out; finished in 0.1s");
        counts
            .read("test result: FAILED. 2 passed; 5 failed; 0 ignored; 0 measured; 0 filtered out");
        assert_eq!(counts, Counts { passed: 5, failed: 5, ignored: 1 });
    }
}
