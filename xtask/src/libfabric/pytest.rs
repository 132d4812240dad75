//! Reading what `pytest -v` prints.

use crate::suites::{Verdict, Verdicts};

/// Takes the lines of a run one by one: `FILE::TEST VERDICT (WHY) [ 7%]` as each test ends, and at
/// the end `FAILED FILE::TEST - WHY` for each that failed.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    verdicts: Verdicts,
    /// The test whose verdict is still to come.
    pub(crate) running: Option<String>,
    /// Whether the run came to its end.
    pub(crate) is_whole: bool,
}

impl Reader {
    pub(crate) fn read(&mut self, line: &str) {
        if line.starts_with("===") && line.contains(" in ") {
            self.is_whole = true;
        } else if let Some(rest) = line.strip_prefix("FAILED ").or(line.strip_prefix("ERROR ")) {
            let (test, why) = rest.split_once(" - ").unwrap_or((rest, ""));
            if let Some(test) = name(test) {
                let why = Verdict::Failed(why.to_owned());
                self.verdicts.tests.insert(test, why);
            }
        } else if let Some((test, rest)) = line.split_once(' ')
            && let Some(test) = name(test)
        {
            self.running = Some(test);
            self.end(rest);
        } else {
            // Output of programs comes between a test's name and its verdict.
            self.end(line);
        }
    }

    /// Takes a verdict, if there is one.
    fn end(&mut self, words: &str) {
        let Some(verdict) = verdict(words) else { return };
        let Some(test) = self.running.take() else { return };
        // Tests that libfabric's own lists exclude for a provider do not count as its tests.
        if verdict != Verdict::Skipped("excluded".to_owned()) {
            self.verdicts.tests.insert(test, verdict);
        }
    }

    /// The verdicts. A run that broke off has failed at that test.
    pub(crate) fn finish(mut self) -> Verdicts {
        if !self.is_whole || self.verdicts.tests.is_empty() {
            let test = self.running.take().unwrap_or_else(|| "runfabtests.py".to_owned());
            let why = "the run ended here".to_owned();
            self.verdicts.tests.insert(test, Verdict::Failed(why));
        }
        self.verdicts
    }
}

/// The test that a word like `default/test_rdm.py::test_rdm[x]` names.
fn name(word: &str) -> Option<String> {
    let (file, test) = word.trim_end().split_once("::")?;
    let (_, file) = file.rsplit_once('/')?;
    Some(format!("{}:{test}", file.strip_suffix(".py")?))
}

fn verdict(words: &str) -> Option<Verdict> {
    let words = words.trim();
    // Progress follows it, where there is room.
    let words = words
        .strip_suffix(']')
        .map_or(words, |rest| rest.rsplit_once('[').map_or(rest, |(words, _)| words.trim_end()));
    match words {
        "PASSED" => Some(Verdict::Passed),
        "FAILED" | "ERROR" => Some(Verdict::Failed(String::new())),
        _ => {
            let why = words.strip_prefix("SKIPPED")?.trim();
            Some(Verdict::Skipped(why.trim_matches(['(', ')']).to_owned()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_is_known_by_its_file_and_name() {
        let mut reader = Reader::default();
        let text = "default/test_av.py::test_av_xfer[msg] PASSED                         [  1%]\n\
                    default/test_dgram.py::test_dgram SKIPPED (ENODATA)                  [  2%]\n\
                    default/test_cm.py::test_cm_data SKIPPED (excluded)                  [  2%]\n\
                    default/test_rdm.py::test_rdm[a-b] FAILED                            [  3%]\n\
                    default/test_mr.py::test_mr \n\
                    command: ssh -n localhost fi_mr_test\n\
                    PASSED                                                               [  4%]\n\
                    =========================== short test summary info ===========\n\
                    FAILED default/test_rdm.py::test_rdm[a-b] - Failed: returncode 22\n\
                    ============ 1 failed, 2 passed, 1 skipped in 4.05s ============\n";
        text.lines().for_each(|line| reader.read(line));
        let expected = [
            ("test_av:test_av_xfer[msg]", Verdict::Passed),
            ("test_dgram:test_dgram", Verdict::Skipped("ENODATA".to_owned())),
            ("test_mr:test_mr", Verdict::Passed),
            ("test_rdm:test_rdm[a-b]", Verdict::Failed("Failed: returncode 22".to_owned())),
        ];
        let expected = expected.map(|(test, verdict)| (test.to_owned(), verdict));
        assert_eq!(reader.finish().tests, expected.into());
    }

    #[test]
    fn a_run_that_breaks_off_has_failed() {
        let mut reader = Reader::default();
        reader.read("default/test_av.py::test_av_xfer[msg] ");
        let verdicts = reader.finish();
        assert_eq!(verdicts.sums(), [0, 0, 1]);
    }
}
