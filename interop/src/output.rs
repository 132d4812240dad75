//! The result of a program: its exit status and its output.

use std::collections::HashMap;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

/// The result of a finished program.
#[derive(Clone, Debug)]
pub struct Output {
    /// The command line, for messages.
    pub command: String,
    /// Its exit status.
    pub status: ExitStatus,
    /// Standard output, lossily decoded.
    pub stdout: String,
    /// Standard error, lossily decoded.
    pub stderr: String,
}

/// The counters of packets that a device drops or refuses, and the log message
/// (`PEERDMA_LOG=peerdma::drop=debug`) of each.
pub const DROPS: [(&str, &str); 5] = [
    ("rx_unknown_qpn", "no such QP"),
    ("rx_icrc_encapsulated", "ICRC 0x"),
    ("out_of_sequence", "its sequence number is not due yet"),
    ("duplicate_request", "its sequence number was used before"),
    ("resp_remote_access_errors", "its key gives no access"),
];

impl Output {
    /// The counters of the device, which a program under `PEERDMA_LOG=info` logs on close; those of
    /// the first device if there are several.
    pub fn counters(&self) -> HashMap<&str, u64> {
        self.logged_counters().next().unwrap_or_default()
    }

    /// One counter, of every closed device that has it.
    pub fn all_counters(&self, name: &str) -> Vec<u64> {
        self.logged_counters().filter_map(|counters| counters.get(name).copied()).collect()
    }

    /// Requires that the log reports as many packets of each of [`DROPS`] as the counters.
    #[track_caller]
    pub fn names_its_drops(&self) -> &Self {
        let counted = self.counters();
        for (name, why) in DROPS {
            let says_why = |line: &&str| line.contains("peerdma::drop") && line.contains(why);
            let lines = self.stderr.lines().filter(says_why).count() as u64;
            let count = counted.get(name).copied().unwrap_or_default();
            assert_eq!(lines, count, "{name}: lines, and the count of {counted:?}");
        }
        self
    }

    fn logged_counters(&self) -> impl Iterator<Item = HashMap<&str, u64>> {
        let lines = self.stderr.lines().filter(|line| line.contains("peerdma::counters"));
        lines.map(|line| {
            line.split_whitespace()
                .filter_map(|word| word.split_once('='))
                .filter_map(|(name, count)| Some((name, count.parse().ok()?)))
                .collect()
        })
    }

    /// Requires exit status 0; otherwise fails the test with the whole output.
    #[track_caller]
    pub fn success(&self) -> &Self {
        assert!(self.status.success(), "this had to succeed:\n{self}");
        self
    }

    /// Requires a non-zero exit status without a signal: the program noticed the failure and
    /// reported it.
    #[track_caller]
    pub fn failure(&self) -> &Self {
        assert!(
            self.status.code().is_some_and(|code| code != 0),
            "this had to fail by its own exit status:\n{self}"
        );
        self
    }

    /// Requires `text` in standard output or standard error.
    #[track_caller]
    pub fn says(&self, text: &str) -> &Self {
        assert!(
            self.stdout.contains(text) || self.stderr.contains(text),
            "{text:?} had to be printed by:\n{self}"
        );
        self
    }

    /// Requires that `text` was not printed.
    #[track_caller]
    pub fn never_says(&self, text: &str) -> &Self {
        assert!(
            !self.stdout.contains(text) && !self.stderr.contains(text),
            "{text:?} must not be printed by:\n{self}"
        );
        self
    }

    /// The value of the first line `KEY:  VALUE` in standard output.
    pub fn field(&self, key: &str) -> Option<&str> {
        self.stdout
            .lines()
            .find_map(|line| Some(line.trim_start().strip_prefix(key)?.strip_prefix(':')?.trim()))
    }
}

impl std::fmt::Display for Output {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "$ {}\n-> ", self.command)?;
        match (self.status.code(), self.status.signal()) {
            (Some(code), _) => writeln!(f, "exit {code}")?,
            (None, signal) => writeln!(f, "signal {}", signal.unwrap_or_default())?,
        }
        write!(f, "--- stdout\n{}\n--- stderr\n{}", self.stdout, self.stderr)
    }
}
