//! What blktests' `check` prints: a line for each test when it begins, if it ran before, and one
//! with its result when it ends. Lines about it follow, with blanks before them.

use std::collections::BTreeMap;

use crate::suites::{Verdict, Verdicts};

/// The results.
#[derive(Debug, Default)]
pub(crate) struct Report {
    pub(crate) verdicts: Verdicts,
    /// What each test is about, in its own words.
    pub(crate) titles: BTreeMap<String, String>,
    /// The last test that began, if it has no result yet.
    running: Option<String>,
    /// The last result, to which lines that follow belong.
    last: Option<String>,
}

/// It is in front of the results; what comes after is about tests that failed.
const BEGIN: &str = "=== check";
const END: &str = "=== details";

impl Report {
    /// The results in the output of the machine.
    pub(crate) fn of<'a>(lines: impl Iterator<Item = &'a str>) -> Self {
        let mut report = Self::default();
        let lines = lines.skip_while(|line| *line != BEGIN);
        for line in lines.take_while(|line| *line != END) {
            report.read(line);
        }
        if let Some(test) = report.running.take() {
            report.put(&test, Verdict::Failed("it did not end".to_owned()));
        }
        report
    }

    fn read(&mut self, line: &str) {
        if line.starts_with(' ') {
            return self.about_last(line.trim());
        }
        let Some((test, rest)) = line.split_once(' ').filter(|(test, _)| is_test(test)) else {
            return;
        };
        let (title, result) = match rest.trim_end().rsplit_once('[') {
            Some((title, result)) => (title, Some(result.trim_end_matches(']'))),
            None => (rest, None),
        };
        // After the device, if there is any, and the transport.
        if let Some(words) = title.trim().rsplit_once(") (").or(title.trim().split_once('(')) {
            let title = words.1.trim_end_matches(')').to_owned();
            self.titles.insert(test.to_owned(), title);
        }
        self.last = None;
        let verdict = match result {
            Some("passed") => Verdict::Passed,
            Some("failed") => Verdict::Failed(String::new()),
            Some("not run") => Verdict::Skipped(String::new()),
            _ => {
                self.running = Some(test.to_owned());
                return;
            }
        };
        self.running = None;
        self.put(test, verdict);
        self.last = Some(test.to_owned());
    }

    /// A test that does not run on a smaller disk may have run on a larger one.
    fn put(&mut self, test: &str, verdict: Verdict) {
        self.verdicts.tests.insert(test.to_owned(), verdict);
    }

    /// A reason, the time that it took, or the difference from the output that was expected, of
    /// which only the lines that differ count.
    fn about_last(&mut self, line: &str) {
        let last = self.last.as_ref().and_then(|test| self.verdicts.tests.get_mut(test));
        let is_different = |line: &str| {
            line.starts_with(['+', '-']) && !line.starts_with("+++") && !line.starts_with("---")
        };
        let words = match last {
            Some(Verdict::Skipped(why)) if !line.starts_with("runtime") => why,
            Some(Verdict::Failed(why)) if is_different(line) => why,
            Some(Verdict::Failed(why)) if line.contains("dmesg") || line.contains("exited") => why,
            _ => return,
        };
        if !words.is_empty() {
            words.push_str("; ");
        }
        words.push_str(line);
    }
}

fn is_test(word: &str) -> bool {
    word.strip_prefix("nvme/").is_some_and(|number| number.parse::<u16>().is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAID: &str = "\
nvme/001 (before)                          [passed]
=== check
nvme/003 (tr=rdma) (test if we send keep-alives)
    runtime    ...
nvme/003 (tr=rdma) (test if we send keep-alives)  [passed]
    runtime    ...  12.1s
nvme/002 (tr=rdma) (create many subsystems) [not run]
    nvme_trtype=rdma is not supported in this test
    and another reason
nvme/010 (tr=rdma bd=file) (run fio)        [failed]
    runtime    ...  1.0s
    --- tests/nvme/010.out
    +++ /tmp/results/nvme/010.out.bad
    @@ -1,2 +1,3 @@
     Running nvme/010
    +FAIL: no device
=== check devices
nvme/053 => nvme0n1 (test rescan)           [passed]
nvme/061 (tr=rdma) (teardown)
    runtime    ...
=== details
nvme/099 (tr=rdma) (after)                  [passed]";

    #[test]
    fn each_test_has_a_result_a_title_and_its_own_words() {
        let report = Report::of(SAID.lines());
        let failed = |why: &str| Verdict::Failed(why.to_owned());
        let expected = [
            (
                "nvme/002",
                Verdict::Skipped(
                    "nvme_trtype=rdma is not supported in this test; and another reason".to_owned(),
                ),
            ),
            ("nvme/003", Verdict::Passed),
            ("nvme/010", failed("+FAIL: no device")),
            ("nvme/053", Verdict::Passed),
            ("nvme/061", failed("it did not end")),
        ];
        let expected = expected.map(|(test, verdict)| (test.to_owned(), verdict));
        assert_eq!(report.verdicts.tests, expected.into());
        assert_eq!(report.titles["nvme/003"], "test if we send keep-alives");
        assert_eq!(report.titles["nvme/053"], "test rescan");
    }
}
