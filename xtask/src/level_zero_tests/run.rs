//! Running the programs of the suite.

use std::fs::{self, File};
use std::io::BufReader;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use super::build::Built;
use super::way::Way;
use crate::sh::{Outcome, target_dir};
use crate::suites::gtest::{self, Tests};
use crate::suites::{Expected, Verdict, Verdicts, host, side_by_side};

/// The longest test prints nothing for half a minute on two cores.
const PATIENCE: Duration = Duration::from_secs(240);

/// A program that mostly waits (`usleep(5e5)` for each message), and how many numbers its tests end
/// in. They run in shares side by side. A share is a range: the numbers follow the sizes, and only
/// a few shares have large ones.
const WAITING: (&str, usize) = ("test_ipc_p2p_memory", 208);
const SHARES: usize = 10;

/// Gives a program directories of its own: tests of IPC name their socket and shared memory for the
/// whole machine.
const OF_ITS_OWN: &str = "\
set -e
mount -t tmpfs tmpfs /dev/shm
mount -t tmpfs tmpfs /tmp
exec \"$0\" \"$@\"
";

/// Some of the tests of a program.
#[derive(Debug)]
struct Share<'a> {
    program: &'a str,
    number: usize,
    filter: String,
}

/// The shares of the tests of a program that a filter picks.
fn shares<'a>(program: &'a str, filter: &str) -> Vec<Share<'a>> {
    let (waiting, numbers) = WAITING;
    if (program, filter) != (waiting, "*") {
        return vec![Share { program, number: 0, filter: filter.to_owned() }];
    }
    let each: Vec<String> = (0..numbers).map(|number| format!("*/{number}")).collect();
    let ranges = each.chunks(numbers.div_ceil(SHARES)).enumerate();
    ranges.map(|(number, range)| Share { program, number, filter: range.join(":") }).collect()
}

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
            let shares = shares(program, filter);
            let run = |share: &Share<'_>| self.share(built, share, &left_out);
            let tests: Tests =
                side_by_side(shares.len(), &shares, run)?.into_iter().flatten().collect();
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
            let logged = |share: Share<'_>| {
                gtest::logged(BufReader::new(File::open(self.file(&share, "log")).ok()?))
            };
            let tests: Option<Vec<Tests>> = shares(program, "*").into_iter().map(logged).collect();
            let tests = tests.map(|tests| tests.into_iter().flatten().collect::<Tests>());
            let named = |(test, verdict)| (format!("{program}:{test}"), verdict);
            verdicts.tests.extend(tests.unwrap_or_default().into_iter().map(named));
        }
        verdicts
    }

    fn file(&self, share: &Share<'_>, end: &str) -> PathBuf {
        let Share { program, number, .. } = share;
        self.scratch().join(format!("{program}.{number}.{end}"))
    }

    fn share(&self, built: &Built, share: &Share<'_>, left_out: &[String]) -> Outcome<Tests> {
        let config = self.config(share.number)?;
        let (log, flags) = (self.file(share, "log"), self.file(share, "flags"));
        let mut log = File::create(&log).map_err(|err| format!("{}: {err}", log.display()))?;
        gtest::run(PATIENCE, &mut log, |seen| {
            // In a file: the names of thousands of tests are more than a command line takes.
            let without = left_out.iter().chain(seen.keys()).map(|test| &**test);
            let without = without.collect::<Vec<_>>().join(":");
            let text = format!("--gtest_color=no\n--gtest_filter={}-{without}\n", share.filter);
            fs::write(&flags, text).map_err(|err| format!("{}: {err}", flags.display()))?;
            let mut command = host::with_mounts_of_its_own()?;
            command.args(["sh", "-c", OF_ITS_OWN]).arg(target_dir().join("release/peerdma"));
            command.current_dir(&built.programs).arg("run").arg(format!("--gpu={}", self.preset));
            command.arg("--").arg(format!("./{}", share.program));
            command.arg(format!("--gtest_flagfile={}", flags.display()));
            command.env("PEERDMA_CONFIG", &config).env("LD_LIBRARY_PATH", &built.loader);
            command.envs(self.variables().iter().map(|name| (name, "1")));
            Ok::<Command, String>(command)
        })
    }
}
