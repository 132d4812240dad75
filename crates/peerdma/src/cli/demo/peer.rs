//! The target, as the initiator sees it: a process that answers each line.

use std::error::Error;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use verbs::{Endpoint, Gid, Psn, Qpn, RKey, Remote};

/// Nothing on one host takes this long.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);

pub(super) type Outcome<T> = Result<T, Box<dyn Error>>;

/// The target, as the initiator sees it. Dropping it ends the process.
pub(super) struct Peer {
    child: Child,
    to: Option<ChildStdin>,
    from: BufReader<ChildStdout>,
    pub(super) memories: Vec<Remote>,
}

impl Peer {
    pub(super) fn spawn(args: &[&str]) -> Outcome<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["demo", "--target"])
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let to = child.stdin.take();
        let from = child.stdout.take().ok_or("the target has no standard output")?;
        Ok(Self { child, to, from: BufReader::new(from), memories: Vec::new() })
    }

    /// Sends a line and returns the answer, which must begin with `ok`.
    pub(super) fn ask(&mut self, line: &str) -> Outcome<String> {
        self.tell(line)?;
        self.answer(line)
    }

    pub(super) fn tell(&mut self, line: &str) -> Outcome<()> {
        let to = self.to.as_mut().ok_or("the target was told to end")?;
        writeln!(to, "{line}")?;
        Ok(to.flush()?)
    }

    pub(super) fn answer(&mut self, line: &str) -> Outcome<String> {
        let mut answer = String::new();
        self.from.read_line(&mut answer)?;
        match answer.trim().strip_prefix("ok") {
            Some(rest) => Ok(rest.trim().to_owned()),
            None if answer.is_empty() => Err("the target ended".into()),
            None => Err(format!("{line}: the target answered: {}", answer.trim()).into()),
        }
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        // The target ends when its input does.
        self.to = None;
        let _ = self.child.wait();
    }
}

/// The line that gives the target our endpoint.
pub(super) fn connect_line(here: &Endpoint) -> String {
    let gid: String = here.gid.0.iter().map(|byte| format!("{byte:02x}")).collect();
    format!("connect {gid} {} {}", here.qpn.value(), here.psn.value())
}

/// Memory of the target, as the target describes it.
pub(super) fn remote(words: &str) -> Outcome<Remote> {
    let (addr, rkey) = words.split_once(':').ok_or("memory without a key")?;
    Ok(Remote { addr: addr.parse()?, rkey: RKey(rkey.parse()?) })
}

pub(super) fn endpoint(gid: &str, qpn: &str, psn: &str) -> Outcome<Endpoint> {
    let gid = u128::from_str_radix(gid, 16)?;
    Ok(Endpoint {
        gid: Gid(gid.to_be_bytes()),
        qpn: Qpn::new(qpn.parse()?),
        psn: Psn::new(psn.parse()?),
    })
}
