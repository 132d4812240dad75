//! Running the programs of the suite.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::gtest::Reader;
use super::way::Way;
use super::{LEFT_OUT, WALK};
use crate::sh::{Outcome, target_dir};
use crate::suites::{End, Verdict, follow, host};

/// One program, in one variant.
#[derive(Debug)]
pub(crate) struct Task<'a> {
    pub(crate) way: &'a Way,
    pub(crate) config: PathBuf,
    pub(crate) program: String,
    /// The filter for its tests.
    pub(crate) filter: String,
}

/// Tests by name, which is `PROGRAM:SUITE.TEST`.
type Tests = BTreeMap<String, Verdict>;

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
/// How often a program is started again after a test in which it ended.
const STARTS: usize = 20;
/// How many run at a time: the tests have one or two threads, which mostly wait.
const AT_A_TIME: usize = 2;

/// Runs all, and returns the result of each.
pub(crate) fn all(programs: &Path, tasks: &[Task<'_>]) -> Outcome<Vec<Tests>> {
    let next = AtomicUsize::new(0);
    let results: Mutex<BTreeMap<usize, Outcome<Tests>>> = Mutex::default();
    let work = || {
        while let index = next.fetch_add(1, Ordering::Relaxed)
            && let Some(task) = tasks.get(index)
        {
            let start = Instant::now();
            let result = task.run(programs);
            if let Ok(tests) = &result {
                let passed = tests.values().filter(|verdict| **verdict == Verdict::Passed).count();
                let (words, took) = (task.way.words(), start.elapsed().as_secs_f64());
                let of = tests.len();
                println!("{words}: {}: {passed} of {of} pass, {took:.0} s", task.program);
            }
            let mut results = results.lock().expect("nobody panics with it");
            results.insert(index, result);
        }
    };
    thread::scope(|scope| (0..AT_A_TIME).for_each(|_| drop(scope.spawn(work))));
    results.into_inner().expect("nobody panics with it").into_values().collect()
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
        let mut seen = BTreeMap::new();
        for _ in 0..STARTS {
            let mut reader = Reader::default();
            let command = self.command(programs, filter, patience, &seen)?;
            let end = follow(command, PATIENCE, |line| {
                reader.read(line);
                // A full disk is no reason to stop testing.
                let _ = writeln!(log, "{line}");
            })?;
            let (why, is_good) = match end {
                End::Exited(status) => (status.to_string(), status.success()),
                End::Hung => (format!("nothing for {} seconds", PATIENCE.as_secs()), false),
            };
            if self.program == WALK {
                let verdict = if is_good { Verdict::Passed } else { Verdict::Failed(why) };
                return Ok([(WALK.to_owned(), verdict)].into());
            }
            reader.broke_off(&why);
            let is_over = reader.is_whole || reader.verdicts.is_empty();
            if !reader.is_whole && reader.verdicts.is_empty() {
                let why = format!("no test: {why}");
                reader.verdicts.insert("all".to_owned(), Verdict::Failed(why));
            }
            seen.append(&mut reader.verdicts);
            if is_over {
                break;
            }
        }
        Ok(seen)
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
