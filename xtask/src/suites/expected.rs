//! What is known of the suite: `interop/pyverbs/expected.toml`.

use std::fs;

use toml::{Table, Value};

use super::{Verdict, Verdicts};
use crate::sh::{Outcome, root};

const FILE: &str = "interop/pyverbs/expected.toml";

/// The checked-in explanations.
#[derive(Debug, Default)]
pub(crate) struct Expected {
    /// Tests that cannot run, and why.
    skip: Vec<Entry>,
    /// Tests that do not pass yet, and what for.
    todo: Vec<Entry>,
}

/// One explanation, for all tests that one of the patterns fits. A `*` in a pattern stands for anything.
#[derive(Debug)]
struct Entry {
    tests: Vec<String>,
    reason: String,
}

impl Expected {
    pub(crate) fn read() -> Outcome<Self> {
        let text = fs::read_to_string(root().join(FILE)).map_err(|err| format!("{FILE}: {err}"))?;
        Self::parse(&text)
    }

    fn parse(text: &str) -> Outcome<Self> {
        let table: Table = text.parse().map_err(|err| format!("{FILE}: {err}"))?;
        let mut expected = Self::default();
        for (key, value) in &table {
            let list = match &**key {
                "skip" => &mut expected.skip,
                "todo" => &mut expected.todo,
                _ => return Err(format!("{FILE}: there is no list {key:?}")),
            };
            for entry in value.as_array().map(Vec::as_slice).unwrap_or_default() {
                list.push(Entry::parse(entry).ok_or_else(|| format!("{FILE}: {key}: {entry}"))?);
            }
        }
        Ok(expected)
    }

    /// Why a test does not pass, as far as the list knows.
    pub(crate) fn reason(&self, test: &str) -> Option<&str> {
        let entries = self.skip.iter().chain(&self.todo);
        entries.into_iter().find(|entry| entry.fits(test)).map(|entry| &*entry.reason)
    }

    /// Whether a test is known not to pass yet.
    pub(crate) fn awaits(&self, test: &str) -> bool {
        self.todo.iter().any(|entry| entry.fits(test))
    }

    /// What is not as the list has it.
    pub(crate) fn complaints(&self, verdicts: &Verdicts) -> Vec<String> {
        let complain = |(test, verdict): (&String, &Verdict)| {
            let may_skip = self.skip.iter().any(|entry| entry.fits(test));
            let may_fail = self.awaits(test);
            match verdict {
                Verdict::Passed if may_fail => {
                    Some(format!("{test} passes: take it out of the list `todo` of {FILE}"))
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
}

impl Entry {
    fn parse(entry: &Value) -> Option<Self> {
        let tests = entry.get("tests")?.as_array()?;
        let tests = tests.iter().map(|test| test.as_str().map(str::to_owned));
        Some(Self {
            tests: tests.collect::<Option<_>>()?,
            reason: entry.get("reason")?.as_str()?.to_owned(),
        })
    }

    fn fits(&self, test: &str) -> bool {
        self.tests.iter().any(|pattern| fits(pattern, test))
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
            "[[skip]]\ntests = [\"a.*\"]\nreason = \"no a\"\n\
             [[todo]]\ntests = [\"b.one\", \"b.two\"]\nreason = \"no b yet\"\n",
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
        let complaints = expected.complaints(&verdicts);
        let about: Vec<_> = complaints.iter().map(|c| c.split(' ').next().unwrap()).collect();
        assert_eq!(about, ["a.two", "b.two", "c.one"]);
        assert_eq!(expected.reason("b.one"), Some("no b yet"));
    }
}
