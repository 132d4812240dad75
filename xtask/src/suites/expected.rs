//! What is known about a suite: a checked-in file that explains each test that skips or fails.
//!
//! What is not explained is an error, and so is an explanation of a failure that no longer happens.

use std::fs;

use toml::{Table, Value};

use super::{Verdict, Verdicts};
use crate::counts::Counts;
use crate::sh::{Outcome, root};

/// The checked-in explanations.
#[derive(Debug)]
pub(crate) struct Expected {
    file: &'static str,
    /// Tests that cannot run, and why.
    skip: Vec<Entry>,
    /// Tests that do not pass, and why.
    fail: Vec<Entry>,
    /// Tests that are not run at all, and why.
    leave_out: Vec<Entry>,
}

/// One explanation, for all tests that match one of the patterns. A `*` in a pattern matches
/// anything.
#[derive(Debug)]
struct Entry {
    tests: Vec<String>,
    /// The ways of running the suite to which it applies: those whose name has all words of one of
    /// these. Without any, it applies to all.
    on: Vec<String>,
    reason: String,
}

impl Expected {
    /// Reads a file of the tree.
    pub(crate) fn read(file: &'static str) -> Outcome<Self> {
        let text = fs::read_to_string(root().join(file)).map_err(|err| format!("{file}: {err}"))?;
        Self::parse(file, &text)
    }

    fn parse(file: &'static str, text: &str) -> Outcome<Self> {
        let table: Table = text.parse().map_err(|err| format!("{file}: {err}"))?;
        let mut expected = Self { file, skip: Vec::new(), fail: Vec::new(), leave_out: Vec::new() };
        for (key, value) in &table {
            let list = match &**key {
                "skip" => &mut expected.skip,
                "fail" => &mut expected.fail,
                "leave_out" => &mut expected.leave_out,
                _ => return Err(format!("{file}: there is no list {key:?}")),
            };
            for entry in value.as_array().map(Vec::as_slice).unwrap_or_default() {
                list.push(Entry::parse(entry).ok_or_else(|| format!("{file}: {key}: {entry}"))?);
            }
        }
        Ok(expected)
    }

    /// Why a test does not pass, if the list explains it. `on` is the way of running the suite, in
    /// words.
    pub(crate) fn reason(&self, on: &str, test: &str) -> Option<&str> {
        let entries = self.skip.iter().chain(&self.fail);
        entries.into_iter().find(|entry| entry.fits(on, test)).map(|entry| &*entry.reason)
    }

    /// The patterns of the tests that are not run, and why.
    pub(crate) fn left_out(&self, on: &str) -> impl Iterator<Item = (&str, &str)> {
        let meant = self.leave_out.iter().filter(move |entry| entry.is_for(on));
        meant.flat_map(|entry| entry.tests.iter().map(|tests| (&**tests, &*entry.reason)))
    }

    /// Whether a test is known to fail.
    pub(crate) fn awaits(&self, on: &str, test: &str) -> bool {
        self.fail.iter().any(|entry| entry.fits(on, test))
    }

    /// Prints the results of one way of running the tests, and the results that differ from the
    /// list; these count as failed even if the test passed.
    pub(crate) fn judge(&self, on: &str, verdicts: &Verdicts) -> Counts {
        let [passed, skipped, failed] = verdicts.sums();
        println!("\n{on}: {passed} pass, {skipped} skip, {failed} fail");
        let complaints = self.complaints(on, verdicts);
        for complaint in &complaints {
            println!("not as expected: {on}: {complaint}");
        }
        // A test that is explained and did not pass counts as neither: the page lists it.
        Counts {
            passed: passed.saturating_sub(self.stale(on, verdicts)) as u64,
            failed: complaints.len() as u64,
            ignored: 0,
        }
    }

    /// What differs from the list.
    pub(crate) fn complaints(&self, on: &str, verdicts: &Verdicts) -> Vec<String> {
        let complain = |(test, verdict): (&String, &Verdict)| {
            let may_skip = self.skip.iter().any(|entry| entry.fits(on, test));
            let may_fail = self.awaits(on, test);
            match verdict {
                Verdict::Passed if may_fail => {
                    Some(format!("{test} passes: take it out of the list `fail` of {}", self.file))
                }
                Verdict::Skipped(why) if !may_skip && !may_fail => {
                    Some(format!("{test} skips: {why}"))
                }
                Verdict::Failed(why) if !may_fail => Some(format!("{test} fails: {why}")),
                _ => None,
            }
        };
        verdicts.tests.iter().filter_map(complain).collect()
    }

    /// Tests that passed although the list says that they fail.
    pub(crate) fn stale(&self, on: &str, verdicts: &Verdicts) -> usize {
        let passed = verdicts.tests.iter().filter(|(_, verdict)| **verdict == Verdict::Passed);
        passed.filter(|(test, _)| self.awaits(on, test)).count()
    }
}

impl Entry {
    fn parse(entry: &Value) -> Option<Self> {
        let list = |value: &Value| {
            let words = value.as_array()?.iter().map(|word| word.as_str().map(str::to_owned));
            words.collect::<Option<Vec<_>>>()
        };
        Some(Self {
            tests: list(entry.get("tests")?)?,
            on: entry.get("on").map_or(Some(Vec::new()), list)?,
            reason: entry.get("reason")?.as_str()?.to_owned(),
        })
    }

    fn fits(&self, on: &str, test: &str) -> bool {
        self.is_for(on) && self.tests.iter().any(|pattern| fits(pattern, test))
    }

    fn is_for(&self, on: &str) -> bool {
        let has = |word: &str| on.split(' ').any(|have| have == word);
        let is_meant = |words: &String| words.split(' ').all(&has);
        self.on.is_empty() || self.on.iter().any(is_meant)
    }
}

fn fits(pattern: &str, name: &str) -> bool {
    let Some((before, after)) = pattern.split_once('*') else { return pattern == name };
    let Some(mut rest) = name.strip_prefix(before) else { return false };
    loop {
        if fits(after, rest) {
            return true;
        }
        let Some(next) = rest.get(1..) else { return false };
        rest = next;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stars_stand_for_anything() {
        assert!(fits("test_mlx5_*", "test_mlx5_cq.A.test_b"));
        assert!(fits("*.test_b", "test_mr.A.test_b"));
        assert!(fits("test_mr.*.test_*xrc*", "test_mr.A.test_an_xrc_b"));
        assert!(!fits("test_mr.*.test_*xrc*", "test_mr.A.test_rc"));
        assert!(!fits("test_mr", "test_mr.A"));
    }

    #[test]
    fn only_what_is_explained_may_skip_or_fail() {
        let expected = Expected::parse(
            "list",
            "[[skip]]\ntests = [\"a.*\"]\nreason = \"no a\"\n\
             [[fail]]\ntests = [\"b.one\", \"b.two\"]\non = [\"x\", \"y z\"]\nreason = \"no b yet\"\n\
             [[leave_out]]\ntests = [\"d.*\"]\non = [\"x\"]\nreason = \"no end\"\n",
        )
        .unwrap();
        let verdicts = Verdicts {
            tests: [
                ("a.one", Verdict::Skipped(String::new())),
                ("a.two", Verdict::Failed("x".to_owned())),
                ("b.one", Verdict::Failed(String::new())),
                ("b.two", Verdict::Passed),
                ("c.one", Verdict::Skipped("y".to_owned())),
            ]
            .map(|(name, verdict)| (name.to_owned(), verdict))
            .into(),
        };
        let about = |on| {
            let complaints = expected.complaints(on, &verdicts);
            complaints.iter().map(|c| c.split(' ').next().unwrap().to_owned()).collect::<Vec<_>>()
        };
        assert_eq!(about("w x"), ["a.two", "b.two", "c.one"]);
        assert_eq!(about("z y"), ["a.two", "b.two", "c.one"]);
        // The explanation is for another way of running them.
        assert_eq!(about("y w"), ["a.two", "b.one", "c.one"]);
        assert_eq!(expected.reason("x", "b.one"), Some("no b yet"));
        assert_eq!(expected.reason("y", "b.one"), None);
        assert_eq!(expected.left_out("w x").collect::<Vec<_>>(), [("d.*", "no end")]);
        assert_eq!(expected.left_out("y").next(), None);
    }
}
