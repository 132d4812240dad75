//! Running the programs of the suite.

use std::fs::{self, File};
use std::io::BufReader;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use super::build::Built;
use super::way::Way;
use crate::sh::{Outcome, target_dir, tool};
use crate::suites::gtest::{self, Tests};
use crate::suites::{Expected, Verdict, Verdicts};

/// The longest test prints nothing for half a minute on two cores.
const PATIENCE: Duration = Duration::from_secs(240);

impl Way {
    /// Runs some programs one after another: all of them allocate the memory of the same GPUs.
    pub(crate) fn run(
        &self,
        built: &Built,
        expected: &Expected,
        programs: &[&str],
        filter: &str,
    ) -> Outcome<Verdicts> {
        let mut verdicts = Verdicts::default();
        let words = self.words();
        for program in programs {
            let start = Instant::now();
            let of_program = |(tests, _)| {
                str::strip_prefix(tests, program)?.strip_prefix(':').map(str::to_owned)
            };
            let left_out: Vec<String> = expected.left_out(&words).filter_map(of_program).collect();
            let tests = self.program(built, program, filter, &left_out)?;
            let passed = tests.values().filter(|verdict| **verdict == Verdict::Passed).count();
            let (took, of) = (start.elapsed().as_secs_f64(), tests.len());
            println!("{words}: {program}: {passed} of {of} pass, {took:.0} s");
            let named = |(test, verdict)| (format!("{program}:{test}"), verdict);
            verdicts.tests.extend(tests.into_iter().map(named));
        }
        Ok(verdicts)
    }

    /// The results of the last run of each program, of those whose last run came to its end.
    pub(crate) fn last(&self, programs: &[&str]) -> Verdicts {
        let mut verdicts = Verdicts::default();
        for program in programs {
            let log = File::open(self.file(program, "log"));
            let tests = log.ok().and_then(|log| gtest::logged(BufReader::new(log)));
            let named = |(test, verdict)| (format!("{program}:{test}"), verdict);
            verdicts.tests.extend(tests.unwrap_or_default().into_iter().map(named));
        }
        verdicts
    }

    fn file(&self, program: &str, end: &str) -> PathBuf {
        self.scratch().join(format!("{program}.{end}"))
    }

    fn program(
        &self,
        built: &Built,
        program: &str,
        filter: &str,
        left_out: &[String],
    ) -> Outcome<Tests> {
        let config = self.config()?;
        let (log, flags) = (self.file(program, "log"), self.file(program, "flags"));
        let mut log = File::create(&log).map_err(|err| format!("{}: {err}", log.display()))?;
        gtest::run(PATIENCE, &mut log, |seen| {
            // In a file: the names of thousands of tests are more than a command line takes.
            let without = left_out.iter().chain(seen.keys()).map(|test| &**test);
            let without = without.collect::<Vec<_>>().join(":");
            let text = format!("--gtest_color=no\n--gtest_filter={filter}-{without}\n");
            fs::write(&flags, text).map_err(|err| format!("{}: {err}", flags.display()))?;
            let mut command = tool(target_dir().join("release/peerdma"));
            command.current_dir(&built.programs).arg("run");
            command.arg(format!("--gpu={}", self.preset)).arg("--").arg(format!("./{program}"));
            command.arg(format!("--gtest_flagfile={}", flags.display()));
            command.env("PEERDMA_CONFIG", &config).env("LD_LIBRARY_PATH", &built.loader);
            command.envs(self.variables().iter().map(|name| (name, "1")));
            Ok::<Command, String>(command)
        })
    }
}
