//! Running the programs of the suite.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use super::way::Way;
use super::{LEFT_OUT, WALK};
use crate::sh::{Outcome, target_dir};
use crate::suites::gtest::{self, Tests};
use crate::suites::{End, Verdict, follow, host, side_by_side};

/// One program, in one variant.
#[derive(Debug)]
pub(crate) struct Task<'a> {
    pub(crate) way: &'a Way,
    pub(crate) config: PathBuf,
    pub(crate) program: String,
    /// The filter for its tests.
    pub(crate) filter: String,
}

/// The program that needs huge pages.
const HUGE: &str = "hugepage_test";
/// The longest of the suite's tests prints nothing for 60 to 90 seconds on two cores, and for
/// longer beside other work.
const PATIENCE: Duration = Duration::from_secs(300);
/// Some tests have a peer that does not answer, with an ACK timeout of a second and five retries:
/// that takes 6 seconds, and 20 over a wire, where timeouts grow. Others wait as long as they may
/// for something that must not come. So tests for which the first limit was too short get a second
/// run with a longer one.
const WAITS: [u32; 2] = [4, 16];
/// The output of such a test.
const TOO_LATE: &str = "DEADLINE_EXCEEDED";
/// How many run at a time: the tests have one or two threads, which mostly wait.
const AT_A_TIME: usize = 2;

/// Runs all, and returns the result of each.
pub(crate) fn all(programs: &Path, tasks: &[Task<'_>]) -> Outcome<Vec<Tests>> {
    side_by_side(AT_A_TIME, tasks, |task| {
        let start = Instant::now();
        let tests = task.run(programs)?;
        let passed = tests.values().filter(|verdict| **verdict == Verdict::Passed).count();
        let (words, took, of) = (task.way.words(), start.elapsed().as_secs_f64(), tests.len());
        println!("{words}: {}: {passed} of {of} pass, {took:.0} s", task.program);
        Ok(tests)
    })
}

impl Task<'_> {
    /// Runs the program, and again after each test in which it ends.
    fn run(&self, programs: &Path) -> Outcome<Tests> {
        let log = self.config.with_file_name(format!("{}.log", self.log()));
        let mut log = File::create(&log).map_err(|err| format!("{}: {err}", log.display()))?;
        let [first, second] = WAITS;
        let mut seen = self.all(programs, &self.filter, first, &mut log)?;
        let is_late =
            |verdict: &Verdict| matches!(verdict, Verdict::Failed(why) if why.contains(TOO_LATE));
        let late: Vec<&str> =
            seen.iter().filter(|(_, verdict)| is_late(verdict)).map(|(test, _)| &**test).collect();
        if !late.is_empty() {
            let again = self.all(programs, &late.join(":"), second, &mut log)?;
            seen.extend(again);
        }
        Ok(seen.into_iter().map(|(test, verdict)| (self.full_name(&test), verdict)).collect())
    }

    /// Runs the tests of a filter.
    fn all(&self, programs: &Path, filter: &str, patience: u32, log: &mut File) -> Outcome<Tests> {
        let command = |seen: &Tests| self.command(programs, filter, patience, seen);
        if self.program != WALK {
            return gtest::run(PATIENCE, log, command);
        }
        let end = follow(command(&Tests::new())?, PATIENCE, |line| {
            // A full disk is no reason to stop testing.
            let _ = writeln!(log, "{line}");
        })?;
        let is_good = matches!(end, End::Exited(status) if status.success());
        let verdict = if is_good { Verdict::Passed } else { Verdict::Failed(end.words(PATIENCE)) };
        Ok([(WALK.to_owned(), verdict)].into())
    }

    fn full_name(&self, test: &str) -> String {
        format!("{}:{test}", self.program)
    }

    fn log(&self) -> String {
        format!("{}-{}", self.way.words().replace(' ', "-"), self.program)
    }

    /// `without`: tests that have run already.
    fn command(
        &self,
        programs: &Path,
        filter: &str,
        patience: u32,
        without: &Tests,
    ) -> Outcome<Command> {
        let mut command = host::of_its_own(self.program == HUGE)?;
        command.arg(target_dir().join("release/peerdma")).args(["run", "--"]);
        command.arg(programs.join(&self.program)).args(self.way.flags(patience));
        let mut filter = format!("{filter}-{LEFT_OUT}");
        without.keys().for_each(|test| filter.extend([":", test]));
        if self.program != WALK {
            command.arg("--gtest_color=no");
            command.arg(format!("--gtest_filter={filter}"));
        }
        command.env("PEERDMA_CONFIG", &self.config);
        // The path MTU must fit.
        command.env("MTU", "9000");
        Ok(command)
    }
}
