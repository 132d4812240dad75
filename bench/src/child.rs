//! Children: roles of this program, which take commands as lines, and third-party programs.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread::JoinHandle;

use rustix::process::{Pid, Signal, kill_process};

use crate::Outcome;

/// No program here takes this many seconds.
const LIMIT: &str = "60";

/// A role of this program in a process of its own. It ends with its standard input, at the latest
/// on drop.
#[derive(Debug)]
pub(crate) struct Role {
    child: Child,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
    name: String,
}

impl Role {
    /// Starts `bench --role NAME ARGS` after `prefix` (a command that runs the rest of its words),
    /// and returns the words of its first answer.
    pub(crate) fn start(prefix: &[String], name: &str, args: &[String]) -> Outcome<(Self, Words)> {
        let mut role = Self::start_later(prefix, name, args)?;
        let words = role.answer()?;
        Ok((role, words))
    }

    /// The same, and waits for no answer.
    pub(crate) fn start_later(prefix: &[String], name: &str, args: &[String]) -> Outcome<Self> {
        let own = std::env::current_exe()?;
        let mut child = command(prefix, own)
            .args(["--role", name])
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let to = child.stdin.take();
        let from = BufReader::new(child.stdout.take().ok_or("a child without an output")?);
        Ok(Self { child, to, from, name: name.to_owned() })
    }

    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    /// Sends a line and waits for the answer to it.
    pub(crate) fn ask(&mut self, line: &str) -> Outcome<Words> {
        self.tell(line)?;
        self.answer()
    }

    pub(crate) fn tell(&mut self, line: &str) -> Outcome<()> {
        let to = self.to.as_mut().ok_or("the role was told to end")?;
        writeln!(to, "{line}")?;
        Ok(to.flush()?)
    }

    /// The next answer, which begins with `ok`.
    pub(crate) fn answer(&mut self) -> Outcome<Words> {
        let mut line = String::new();
        self.from.read_line(&mut line)?;
        match line.trim().strip_prefix("ok") {
            Some(rest) => Ok(Words(rest.split_whitespace().map(str::to_owned).collect())),
            None => Err(format!("role {}: {}", self.name, line.trim()).into()),
        }
    }
}

impl Drop for Role {
    fn drop(&mut self) {
        self.to = None;
        let _ = self.child.wait();
    }
}

/// The words of an answer.
#[derive(Clone, Debug)]
pub(crate) struct Words(pub(crate) Vec<String>);

impl Words {
    /// The word at `index`, parsed.
    pub(crate) fn get<T: std::str::FromStr>(&self, index: usize) -> Outcome<T> {
        let word = self.0.get(index).ok_or("an answer is incomplete")?;
        word.parse().map_err(|_| format!("an answer says {word:?}").into())
    }
}

/// A third-party program. Dropping it ends it.
#[derive(Debug)]
pub(crate) struct Program {
    child: Child,
    line: String,
    output: Option<JoinHandle<String>>,
}

impl Program {
    /// Starts `PREFIX timeout 60 WORDS`.
    pub(crate) fn start<S: AsRef<OsStr>>(
        prefix: &[String],
        env: &[(&str, &str)],
        words: &[S],
    ) -> Outcome<Self> {
        let line: Vec<_> = words.iter().map(|word| word.as_ref().to_string_lossy()).collect();
        let line = line.join(" ");
        let mut child = command(prefix, "timeout")
            .args(["--kill-after=2", LIMIT])
            .args(words)
            .env("LC_ALL", "C")
            .envs(env.iter().copied())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|error| format!("{line}: {error}"))?;
        let (mut out, mut err) = (child.stdout.take(), child.stderr.take());
        // A program that prints a lot must not wait for a reader.
        let output = std::thread::spawn(move || {
            let (mut text, mut errors) = (Vec::new(), Vec::new());
            let _ = out.as_mut().map(|out| out.read_to_end(&mut text));
            let _ = err.as_mut().map(|err| err.read_to_end(&mut errors));
            text.extend(errors);
            String::from_utf8_lossy(&text).into_owned()
        });
        Ok(Self { child, line, output: Some(output) })
    }

    /// Waits until it listens on a TCP port, in its own network namespace.
    pub(crate) fn wait_listening(&mut self, port: u16) -> Outcome<()> {
        let needle = format!(":{port:04X} ");
        loop {
            let is_there = ["tcp", "tcp6"].iter().any(|table| {
                let path = format!("/proc/{}/net/{table}", self.child.id());
                let text = std::fs::read_to_string(path).unwrap_or_default();
                // Local address, remote address, state: 0A is LISTEN.
                text.lines().any(|line| {
                    let mut words = line.split_whitespace().skip(1);
                    let is_port =
                        words.next().is_some_and(|at| format!("{at} ").ends_with(&needle));
                    is_port && words.nth(1) == Some("0A")
                })
            });
            if is_there {
                return Ok(());
            }
            if self.child.try_wait()?.is_some() {
                let text = self.collect();
                return Err(format!("{} ended: {text}", self.line).into());
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        }
    }

    /// Waits for its end and returns its output.
    pub(crate) fn finish(mut self) -> Outcome<String> {
        let status = self.child.wait()?;
        let text = self.collect();
        if status.success() {
            return Ok(text);
        }
        let lines: Vec<_> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let last = lines[lines.len().saturating_sub(4)..].join("; ");
        Err(format!("{}: {status}: {last}", self.line).into())
    }

    fn collect(&mut self) -> String {
        self.output.take().and_then(|output| output.join().ok()).unwrap_or_default()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            // `timeout` passes it on.
            let _ = kill_process(Pid::from_child(&self.child), Signal::TERM);
            let _ = self.child.wait();
        }
    }
}

/// A command after others that run the rest of their words.
fn command(prefix: &[String], program: impl AsRef<OsStr>) -> Command {
    match prefix {
        [] => Command::new(program),
        [first, rest @ ..] => {
            let mut command = Command::new(first);
            command.args(rest).arg(program);
            command
        }
    }
}

/// The program `peerdma` of the release build.
pub(crate) fn peerdma() -> Outcome<PathBuf> {
    let own = std::env::current_exe()?;
    let beside = own.with_file_name("peerdma");
    if beside.is_file() {
        return Ok(beside);
    }
    Err(format!("{} is not built: cargo build --release", beside.display()).into())
}

/// A TCP port without a listener at the moment.
pub(crate) fn free_port() -> Outcome<u16> {
    Ok(free_ports(1)?.remove(0))
}

/// Several of them, no two of which are the same.
pub(crate) fn free_ports(count: usize) -> Outcome<Vec<u16>> {
    let held = (0..count)
        .map(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, 0)))
        .collect::<Result<Vec<_>, _>>()?;
    held.iter().map(|listener| Ok(listener.local_addr()?.port())).collect()
}
