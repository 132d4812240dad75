//! Another process: this test program again, told by a variable which part it plays.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

pub(crate) struct Actor {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Actor {
    /// Runs one test of this program with these variables. It takes lines, and answers each with a
    /// line that begins with "said: ".
    pub(crate) fn start<V: AsRef<OsStr>>(
        test: &str,
        variables: impl IntoIterator<Item = (&'static str, V)>,
    ) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture", "--test-threads=1"])
            .envs(variables)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (to, from) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Self { child, to, from: BufReader::new(from) }
    }

    pub(crate) fn tell(&mut self, line: &str) {
        writeln!(self.to, "{line}").unwrap();
    }

    /// The next line for us, skipping those of the test harness.
    pub(crate) fn hear(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(self.from.read_line(&mut line).unwrap() > 0, "a process ended too early");
            if let Some((_, said)) = line.split_once("said: ") {
                return said.trim_end().to_owned();
            }
        }
    }

    pub(crate) fn ask(&mut self, line: &str) -> String {
        self.tell(line);
        self.hear()
    }

    /// Ends it as a crash would.
    pub(crate) fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        self.kill();
    }
}
