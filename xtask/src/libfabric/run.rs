//! Running fabtests by their own runner, `runfabtests.py`, which reaches its hosts by ssh:
//! `interop/fabtests` has the files for that.

use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::time::Duration;

use super::build::Built;
use super::hosts::{FAR, NEAR, of_their_own};
use super::pytest::Reader;
use super::way::Way;
use crate::sh::{Outcome, root, target_dir};
use crate::suites::{End, PYTHON, Verdicts, follow};

/// The stand-ins for ssh and nvidia-smi.
const STAND_INS: &str = "interop/fabtests";
/// In seconds: a program that takes longer hangs, and the runner ends it. Each has a buffer of a
/// gigabyte, and writes all of it.
const LIMIT: &str = "120";
/// The runner prints something after each test. It gives `fi_ubertest` 1000 seconds, and those that
/// hang 100 more, whatever the limit is.
const PATIENCE: Duration = Duration::from_secs(1200);

impl Way {
    /// Where a run leaves its output.
    fn scratch(&self) -> PathBuf {
        target_dir().join("libfabric").join(self.words().replace([' ', ';'], "-"))
    }

    /// The results of the last run of the tests, if that run completed.
    pub(crate) fn last(&self) -> Option<Verdicts> {
        let text = fs::read_to_string(self.scratch().join("log")).ok()?;
        let mut reader = Reader::default();
        text.lines().for_each(|line| reader.read(line));
        reader.is_whole.then(|| reader.finish())
    }

    /// Runs the tests that `expression` selects, or all.
    pub(crate) fn run(&self, built: &Built, expression: Option<&str>) -> Outcome<Verdicts> {
        let bin = built.installed.join("bin");
        let scratch = self.scratch();
        fs::create_dir_all(&scratch).map_err(|err| format!("{}: {err}", scratch.display()))?;

        let mut command = of_their_own(self.is_wire)?;
        command.arg(PYTHON).arg(bin.join("runfabtests.py"));
        command.args(["-vvv", "-t", "quick", "-T", LIMIT, "-p"]).arg(&bin);
        // It would run eight of shm's tests at a time, and print them in another form.
        command.args(["--nworkers", "1"]);
        for option in ["-C", "-L"] {
            command.args(self.args().map(|args| format!("{option}={args}")));
        }
        if let Some(expression) = expression {
            command.args(["--expression", expression]);
        }
        let client = if self.is_wire { FAR } else { NEAR };
        if let Some((_, utility)) = self.provider.split_once(';') {
            // The runner looks for it under a name with the semicolon.
            let dir = built.installed.join("share/fabtests/test_configs").join(utility);
            command.arg("-f").arg(dir.join(format!("{utility}.exclude")));
            // Its ubertest for pairs of providers is not the quick one, and takes more than a
            // quarter of an hour.
            command.args(["-m", "not ubertest_quick"]);
        }
        // A shell parses it.
        command.args([&self.provider.replace(';', "\\;"), NEAR, client]);

        command.env("FABTESTS_PEERDMA", target_dir().join("release/peerdma"));
        command.env("FABTESTS_GPU", self.gpu().unwrap_or_default());
        // Wide enough for a test's name and why it was skipped.
        command.env("COLUMNS", "300");
        command.env("FABTESTS_LOG_DIR", &scratch).env("PYTHONPATH", &built.python);
        let path = std::env::var_os("PATH").unwrap_or_default();
        let path = [root().join(STAND_INS)].into_iter().chain(std::env::split_paths(&path));
        let path = std::env::join_paths(path).map_err(|err| format!("PATH: {err}"))?;
        command.env("PATH", path);

        let log = scratch.join("log");
        let mut log = fs::File::create(&log).map_err(|err| format!("{}: {err}", log.display()))?;
        let mut reader = Reader::default();
        let end = follow(command, PATIENCE, |line| {
            reader.read(line);
            // A full disk is no reason to stop testing.
            let _ = writeln!(log, "{line}");
        })?;
        if let End::Hung = end {
            println!("{}: nothing for {} seconds", self.words(), PATIENCE.as_secs());
        }
        Ok(reader.finish())
    }
}
