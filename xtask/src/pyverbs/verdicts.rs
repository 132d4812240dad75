//! Reading what `unittest --verbose` prints.

use crate::suites::{Verdict, Verdicts};

/// Takes the lines of a run one by one.
///
/// A test that runs prints `NAME (MODULE.CLASS.NAME) ... VERDICT`, or with a description the name
/// on a line of its own and `DESCRIPTION ... VERDICT` on the next. Other output may come in
/// between. At the end come the failures again, with tracebacks, and a sum.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    verdicts: Verdicts,
    /// The test whose verdict is still to come.
    pub(crate) running: Option<String>,
    /// The failed test whose traceback is being read.
    failed: Option<String>,
    ran: Option<usize>,
}

impl Reader {
    pub(crate) fn read(&mut self, line: &str) {
        if let Some(head) = line.strip_prefix("FAIL: ").or_else(|| line.strip_prefix("ERROR: ")) {
            self.failed = name(head);
            if let Some(test) = &self.failed {
                // Other output may have hidden the verdict when it came.
                self.verdicts.tests.insert(test.clone(), Verdict::Failed(String::new()));
            }
        } else if let Some(ran) = line.strip_prefix("Ran ") {
            self.ran = ran.split(' ').next().and_then(|count| count.parse().ok());
            (self.failed, self.running) = (None, None);
        } else if let Some(failed) = &self.failed {
            // The line of a traceback with the reason is not indented; the last such line
            // counts.
            if line.starts_with(|c: char| c.is_ascii_alphabetic()) && !line.starts_with("Traceback")
            {
                self.verdicts.tests.insert(failed.clone(), Verdict::Failed(line.to_owned()));
            }
        } else if self.ran.is_none() {
            self.read_progress(line);
        }
    }

    fn read_progress(&mut self, line: &str) {
        if let Some(test) = name(line) {
            self.running = Some(test);
        }
        let Some(outcome) = outcome(line) else { return };
        if let Some(test) = self.running.take() {
            self.verdicts.tests.insert(test, outcome);
        }
    }

    /// The verdicts. A test without one, or a sum that does not agree, means that the run broke
    /// off.
    pub(crate) fn finish(mut self) -> Verdicts {
        if let Some(test) = self.running.take() {
            let why = "the run ended here".to_owned();
            self.verdicts.tests.insert(test, Verdict::Failed(why));
        }
        let seen = self.verdicts.tests.len();
        let complaint = match self.ran {
            None => "the run broke off".to_owned(),
            Some(ran) if ran != seen => format!("{ran} tests ran, of {seen} the verdict was seen"),
            Some(_) => return self.verdicts,
        };
        self.verdicts.tests.insert("run_tests".to_owned(), Verdict::Failed(complaint));
        self.verdicts
    }
}

/// The test that `test_x (tests.test_mr.MRTest.test_x) ...` names, without the name of the package.
fn name(line: &str) -> Option<String> {
    let (method, rest) = line.split_once(" (")?;
    let (path, _) = rest.split_once(')')?;
    let path = path.strip_prefix("tests.")?;
    let is_word = |word: &str| word.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    if !is_word(method) || !path.split('.').all(is_word) {
        return None;
    }
    // Before Python 3.11 the path ends with the class.
    let is_whole = path.ends_with(&format!(".{method}"));
    Some(if is_whole { path.to_owned() } else { format!("{path}.{method}") })
}

/// The verdict at the end of a line.
fn outcome(line: &str) -> Option<Verdict> {
    let verdict = line.rsplit_once("... ").map_or(line, |(_, verdict)| verdict).trim_end();
    Some(match verdict {
        "ok" | "expected failure" => Verdict::Passed,
        "FAIL" | "ERROR" | "unexpected success" => Verdict::Failed(verdict.to_owned()),
        _ => {
            let reason = verdict.strip_prefix("skipped ")?;
            let quotes = ['\'', '"'];
            Verdict::Skipped(reason.trim_matches(quotes).to_owned())
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Verdicts {
        let mut reader = Reader::default();
        text.lines().for_each(|line| reader.read(line));
        reader.finish()
    }

    #[test]
    fn verdicts_stand_at_the_end_of_the_line_or_below_a_description() {
        let verdicts = read(
            "test_a (tests.test_mr.MRTest.test_a) ... ok\n\
             test_b (tests.test_mr.MRTest.test_b)\n\
             Test of b ... skipped 'No b here'\n\
             test_c (tests.test_mr.MRTest) ... a warning\n\
             ok\n\
             test_d (tests.test_mr.MRTest.test_d) ... FAIL\n\
             \n\
             ======\n\
             FAIL: test_d (tests.test_mr.MRTest.test_d)\n\
             ------\n\
             Traceback (most recent call last):\n  \
               File \"x.py\", line 3, in test_d\n\
             AssertionError: 1 != 2\n\
             \n\
             ------\n\
             Ran 4 tests in 0.1s\n",
        );
        assert_eq!(verdicts.sums(), [2, 1, 1]);
        let skipped = &verdicts.tests["test_mr.MRTest.test_b"];
        assert_eq!(*skipped, Verdict::Skipped("No b here".to_owned()));
        let failed = &verdicts.tests["test_mr.MRTest.test_d"];
        assert_eq!(*failed, Verdict::Failed("AssertionError: 1 != 2".to_owned()));
    }

    #[test]
    fn a_run_that_breaks_off_has_not_passed() {
        let verdicts = read("test_a (tests.test_mr.MRTest.test_a) ... ");
        assert_eq!(verdicts.sums(), [0, 0, 2]);
    }
}
