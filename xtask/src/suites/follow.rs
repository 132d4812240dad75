//! Reading the output of a run, with a limit on silence.

use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use crate::sh::{Outcome, tool};

/// How a run ended.
#[derive(Debug)]
pub(crate) enum End {
    Exited(ExitStatus),
    /// It printed nothing for too long, and was killed.
    Hung,
}

impl End {
    /// It in words, after a run with that patience.
    pub(crate) fn words(&self, patience: Duration) -> String {
        match self {
            Self::Exited(status) => status.to_string(),
            Self::Hung => format!("nothing for {} seconds", patience.as_secs()),
        }
    }
}

/// Passes each line of standard output and standard error to `seen` as it comes. A run that prints
/// nothing for as long as `patience` is killed, with all processes that it started.
pub(crate) fn follow(
    mut command: Command,
    patience: Duration,
    mut seen: impl FnMut(&str),
) -> Outcome<End> {
    // A process group of its own, so that all of it can be killed.
    command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let program = command.get_program().to_string_lossy().into_owned();
    let mut child = command.spawn().map_err(|err| format!("cannot start {program}: {err}"))?;
    let (send, lines) = mpsc::channel();
    // These threads end with the pipes: when every process that holds the other end is gone.
    read(child.stdout.take().expect("stdout is piped"), send.clone());
    read(child.stderr.take().expect("stderr is piped"), send);
    let is_silent = loop {
        match lines.recv_timeout(patience) {
            Ok(line) => seen(&line),
            Err(RecvTimeoutError::Disconnected) => break false,
            Err(RecvTimeoutError::Timeout) => break true,
        }
    };
    if is_silent {
        let group = format!("-{}", child.id());
        let _ = tool("kill").args(["-KILL", "--", &group]).status();
    }
    let status = child.wait().map_err(|err| format!("{program}: {err}"))?;
    Ok(if is_silent { End::Hung } else { End::Exited(status) })
}

/// The same, but prints all lines, and, if the run hung, in which test (from `running`).
pub(crate) fn show<R>(
    command: Command,
    patience: Duration,
    mut reader: R,
    read: impl Fn(&mut R, &str),
    running: impl Fn(&R) -> Option<&str>,
) -> Outcome<R> {
    let end = follow(command, patience, |line| {
        println!("{line}");
        read(&mut reader, line);
    })?;
    if let End::Hung = end {
        let test = running(&reader).unwrap_or("between tests");
        println!("nothing for {} seconds: {test}", patience.as_secs());
    }
    Ok(reader)
}

fn read(from: impl Read + Send + 'static, to: Sender<String>) {
    thread::spawn(move || {
        for line in BufReader::new(from).split(b'\n').map_while(Result::ok) {
            if to.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                break;
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(script: &str, patience: Duration) -> (End, Vec<String>) {
        let mut command = tool("sh");
        command.args(["-c", script]);
        let mut lines = Vec::new();
        let end = follow(command, patience, |line| lines.push(line.to_owned())).unwrap();
        (end, lines)
    }

    #[test]
    fn both_outputs_are_read_to_their_end() {
        let (end, mut lines) = run("echo a; echo b >&2; exit 3", Duration::from_secs(60));
        lines.sort();
        assert_eq!(lines, ["a", "b"]);
        assert!(matches!(end, End::Exited(status) if status.code() == Some(3)), "{end:?}");
    }

    #[test]
    fn a_run_that_is_silent_too_long_is_killed_with_all_its_processes() {
        // If the second sleep continued, the wait for the end of the pipes would never end.
        let (end, lines) = run("echo a; sleep 1000 & sleep 1000", Duration::from_millis(100));
        assert_eq!(lines, ["a"]);
        assert!(matches!(end, End::Hung), "{end:?}");
    }
}
