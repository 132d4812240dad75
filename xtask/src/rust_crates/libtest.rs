//! Reading what `cargo test` prints.

use std::collections::BTreeMap;

use crate::suites::Verdict;

/// Takes the lines of a run one by one, standard error among them.
///
/// Cargo prints `Running tests/a.rs (...)` or `Doc-tests a`; the program then prints `test NAME ...
/// ok`, or `FAILED`, or `ignored, WHY`. For each failed test, the reason is below
/// `---- NAME stdout ----`.
#[derive(Debug, Default)]
pub(crate) struct Reader {
    /// Keyed by name, which is `PROGRAM:TEST`.
    pub(crate) verdicts: BTreeMap<String, Verdict>,
    program: String,
    /// The failed test whose output is being read.
    of: Option<String>,
    /// Programs that have started and not printed how many tests passed.
    is_open: bool,
}

impl Reader {
    pub(crate) fn read(&mut self, line: &str) {
        let words = line.trim_start();
        if let Some(program) = program(words) {
            self.end();
            (self.program, self.is_open, self.of) = (program.to_owned(), true, None);
        } else if words.starts_with("test result: ") {
            (self.is_open, self.of) = (false, None);
        } else if let Some((test, verdict)) = verdict(line) {
            self.verdicts.insert(format!("{}:{test}", self.program), verdict);
        } else if let Some(test) = line.strip_prefix("---- ") {
            let test = test.trim_end_matches(" ----").trim_end_matches(" stdout");
            self.of = Some(format!("{}:{test}", self.program));
        } else if let Some(Verdict::Failed(why)) =
            self.of.as_ref().and_then(|test| self.verdicts.get_mut(test))
        {
            // The message of a panic is on the line below its location.
            if why.is_empty() && !line.is_empty() && !line.contains("panicked at") {
                line.trim().clone_into(why);
            }
        }
    }

    /// The running program; several of its tests may run at a time.
    pub(crate) fn running(&self) -> Option<&str> {
        self.is_open.then_some(&*self.program)
    }

    /// Counts a program that did not complete as failed.
    pub(crate) fn end(&mut self) {
        if std::mem::take(&mut self.is_open) {
            let why = "the program did not come to its end".to_owned();
            self.verdicts.insert(format!("{}:all", self.program), Verdict::Failed(why));
        }
    }
}

/// The program that cargo starts, if the line says so.
fn program(words: &str) -> Option<&str> {
    let rest = words.strip_prefix("Running ").or_else(|| words.strip_prefix("Doc-tests "))?;
    let rest = rest.strip_prefix("unittests ").unwrap_or(rest);
    rest.split(' ').next()
}

/// The test and the verdict in a line.
fn verdict(line: &str) -> Option<(&str, Verdict)> {
    let (test, words) = line.strip_prefix("test ")?.rsplit_once(" ... ")?;
    let test = test.trim_end_matches(" - should panic");
    let verdict = match words {
        "ok" => Verdict::Passed,
        "FAILED" => Verdict::Failed(String::new()),
        _ => {
            let why = words.strip_prefix("ignored")?;
            Verdict::Skipped(why.trim_start_matches(", ").to_owned())
        }
    };
    Some((test, verdict))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tests_are_known_by_their_program() {
        let mut reader = Reader::default();
        let text = "     Running unittests src/lib.rs (target/debug/deps/a-1)\n\
                    test a::b ... ok\n\
                    test a::c - should panic ... ok\n\
                    test result: ok. 2 passed; 0 failed\n\
                    \x20    Running tests/d.rs (target/debug/deps/d-1)\n\
                    test e ... FAILED\n\
                    test f ... ignored, needs two NICs\n\
                    \n---- e stdout ----\n\
                    thread 'e' panicked at tests/d.rs:3:5:\n\
                    assertion failed\n\n\
                    test result: FAILED. 0 passed; 1 failed\n\
                    \x20  Doc-tests a\n\
                    test src/lib.rs - a (line 3) - compile ... ok\n";
        text.lines().for_each(|line| reader.read(line));
        reader.end();
        let expected = [
            ("a:all", Verdict::Failed("the program did not come to its end".to_owned())),
            ("a:src/lib.rs - a (line 3) - compile", Verdict::Passed),
            ("src/lib.rs:a::b", Verdict::Passed),
            ("src/lib.rs:a::c", Verdict::Passed),
            ("tests/d.rs:e", Verdict::Failed("assertion failed".to_owned())),
            ("tests/d.rs:f", Verdict::Skipped("needs two NICs".to_owned())),
        ];
        let expected = expected.map(|(test, verdict)| (test.to_owned(), verdict));
        assert_eq!(reader.verdicts, expected.into());
    }
}
