//! Reading what a program of googletest prints.

use std::collections::BTreeMap;

use crate::suites::Verdict;

/// Takes the lines of a run one by one.
///
/// Between `[ RUN ] SUITE.TEST` and `[ OK ] SUITE.TEST (3 ms)`, or FAILED or SKIPPED, comes the
/// test's output: blocks that begin with `FILE:LINE: Failure`. At the end come a sum and the
/// failures again.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    pub(crate) verdicts: BTreeMap<String, Verdict>,
    /// The test whose verdict is still to come.
    pub(crate) running: Option<String>,
    /// Its output, as far as it is a block of googletest.
    said: Vec<String>,
    is_block: bool,
    /// Whether the sum has been seen.
    pub(crate) is_whole: bool,
}

/// How much of a test's output is kept.
const LINES: usize = 6;

impl Reader {
    pub(crate) fn read(&mut self, line: &str) {
        if let Some((mark, rest)) = mark(line) {
            self.is_block = false;
            match (mark, self.running.take()) {
                ("RUN", _) => {
                    self.said.clear();
                    self.running = Some(name(rest));
                }
                ("OK", Some(test)) => self.is(test, Verdict::Passed),
                ("SKIPPED", Some(test)) => {
                    let why = self.said();
                    self.is(test, Verdict::Skipped(why));
                }
                ("FAILED", Some(test)) => {
                    let why = self.said();
                    self.is(test, Verdict::Failed(why));
                }
                ("==========", _) => self.is_whole |= rest.contains(" ran."),
                (_, running) => self.running = running,
            }
        } else if line.ends_with(": Failure") || line.ends_with(": Skipped") {
            self.is_block = true;
        } else if line.is_empty() {
            self.is_block = false;
        } else if self.is_block && self.said.len() < LINES {
            self.said.push(line.trim().to_owned());
        }
    }

    /// The run ended in the middle of a test.
    pub(crate) fn broke_off(&mut self, why: &str) {
        if let Some(test) = self.running.take() {
            self.is(test, Verdict::Failed(why.to_owned()));
        }
    }

    fn is(&mut self, test: String, verdict: Verdict) {
        self.verdicts.insert(test, verdict);
    }

    fn said(&self) -> String {
        self.said.join("; ")
    }
}

/// The word in `[  WORD  ] ...`, and what follows it.
fn mark(line: &str) -> Option<(&str, &str)> {
    let (word, rest) = line.strip_prefix('[')?.split_once("] ")?;
    Some((word.trim(), rest))
}

/// The name before `, where GetParam() = ...` and ` (3 ms)`.
fn name(rest: &str) -> String {
    rest.split([',', ' ']).next().unwrap_or(rest).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Reader {
        let mut reader = Reader::default();
        text.lines().for_each(|line| reader.read(line));
        reader
    }

    #[test]
    fn verdicts_come_with_the_output_of_the_test() {
        let reader = read(
            "[==========] Running 4 tests from 1 test suite.\n\
             [ RUN      ] A.Passes\n\
             I0000 00:00:00 a.cc:1] of no interest\n\
             [       OK ] A.Passes (3 ms)\n\
             [ RUN      ] A.Fails/0\n\
             a.cc:2: Failure\n\
             Expected equality of these values:\n  1\n  2\n\n\
             [  FAILED  ] A.Fails/0, where GetParam() = 1 (0 ms)\n\
             [ RUN      ] A.Skips\n\
             a.cc:3: Skipped\n\
             No b here.\n\n\
             [  SKIPPED ] A.Skips (0 ms)\n\
             [----------] 3 tests from A (3 ms total)\n\n\
             [==========] 3 tests from 1 test suite ran. (3 ms total)\n\
             [  PASSED  ] 1 test.\n\
             [  FAILED  ] 1 test, listed below:\n\
             [  FAILED  ] A.Fails/0, where GetParam() = 1\n",
        );
        assert!(reader.is_whole);
        let expected = [
            ("A.Fails/0", Verdict::Failed("Expected equality of these values:; 1; 2".to_owned())),
            ("A.Passes", Verdict::Passed),
            ("A.Skips", Verdict::Skipped("No b here.".to_owned())),
        ];
        let expected = expected.map(|(test, verdict)| (test.to_owned(), verdict));
        assert_eq!(reader.verdicts, expected.into());
    }

    #[test]
    fn a_test_in_which_the_program_ends_has_failed() {
        let mut reader = read("[ RUN      ] A.Crashes\n");
        reader.broke_off("signal: 6");
        assert!(!reader.is_whole);
        assert_eq!(reader.verdicts["A.Crashes"], Verdict::Failed("signal: 6".to_owned()));
    }
}
