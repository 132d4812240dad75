//! Running a program of googletest, and reading what it prints.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, Write as _};
use std::process::Command;
use std::time::Duration;

use super::{Verdict, follow};
use crate::sh::Outcome;

/// Tests by name, which is `SUITE.TEST`.
pub(crate) type Tests = BTreeMap<String, Verdict>;

/// How often a program is started again after a test in which it ended.
const STARTS: usize = 20;

/// Runs a program, and again after each test in which it ends or prints nothing for as long as
/// `patience`. The command is told which tests have run already, and its output goes to the log.
pub(crate) fn run(
    patience: Duration,
    log: &mut File,
    command: impl Fn(&Tests) -> Outcome<Command>,
) -> Outcome<Tests> {
    let mut seen = Tests::new();
    for _ in 0..STARTS {
        let mut reader = Reader::default();
        let end = follow(command(&seen)?, patience, |line| {
            reader.read(line);
            // A full disk is no reason to stop testing.
            let _ = writeln!(log, "{line}");
        })?;
        let why = end.words(patience);
        reader.broke_off(&why);
        let is_over = reader.is_whole || reader.verdicts.is_empty();
        if !reader.is_whole && reader.verdicts.is_empty() {
            let why = format!("no test: {why}");
            reader.verdicts.insert("all".to_owned(), Verdict::Failed(why));
        }
        seen.append(&mut reader.verdicts);
        if is_over {
            return Ok(seen);
        }
    }
    let why = format!("it ended {STARTS} times before its last test");
    seen.insert("all".to_owned(), Verdict::Failed(why));
    Ok(seen)
}

/// The results of the run that a log has, if it came to its end.
pub(crate) fn logged(log: impl BufRead) -> Option<Tests> {
    let mut reader = Reader::default();
    for line in log.split(b'\n').map_while(Result::ok) {
        reader.read(&String::from_utf8_lossy(&line));
    }
    reader.is_whole.then_some(reader.verdicts)
}

/// Takes the lines of a run one by one.
///
/// Between `[ RUN ] SUITE.TEST` and `[ OK ] SUITE.TEST (3 ms)`, or FAILED or SKIPPED, comes the
/// test's output: blocks that begin with `FILE:LINE: Failure`. At the end come a sum and the
/// failures again.
#[derive(Debug, Default)]
struct Reader {
    verdicts: Tests,
    /// The test whose verdict is still to come.
    running: Option<String>,
    /// Its output, as far as it is a block of googletest.
    said: Vec<String>,
    is_block: bool,
    /// Whether the sum has been seen.
    is_whole: bool,
}

/// How much of a test's output is kept.
const LINES: usize = 6;

impl Reader {
    fn read(&mut self, line: &str) {
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
                ("==========", running) => {
                    self.is_whole |= rest.contains(" ran.");
                    // Started again, in a log.
                    self.running = running;
                    self.broke_off("the program ended or hung");
                }
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
    fn broke_off(&mut self, why: &str) {
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
    fn a_log_has_the_results_of_all_starts() {
        let starts = "[==========] Running 2 tests from 1 test suite.\n\
                      [ RUN      ] A.Crashes\n\
                      [==========] Running 1 test from 1 test suite.\n\
                      [ RUN      ] A.Passes\n\
                      [       OK ] A.Passes (3 ms)\n";
        assert!(logged(starts.as_bytes()).is_none());
        let whole = format!("{starts}[==========] 1 test from 1 test suite ran. (3 ms total)\n");
        let tests = logged(whole.as_bytes()).expect("it is whole");
        assert_eq!(tests["A.Passes"], Verdict::Passed);
        assert!(matches!(tests["A.Crashes"], Verdict::Failed(_)));
    }

    #[test]
    fn a_test_in_which_the_program_ends_has_failed() {
        let mut reader = read("[ RUN      ] A.Crashes\n");
        reader.broke_off("signal: 6");
        assert!(!reader.is_whole);
        assert_eq!(reader.verdicts["A.Crashes"], Verdict::Failed("signal: 6".to_owned()));
    }
}
