//! Finding all VFs of a nic, for people.

use std::collections::BTreeSet;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use descriptors::PeerCred;
use descriptors::strangers::PeerSocket;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::message::{Message, Received, recv};
use super::name::{sockets, vf_of_line};
use super::socket::dial;

/// A VF that a process holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VfInfo {
    /// Its number.
    pub vf: u16,
    /// The process that holds it, or `None` if it is in a pid namespace we cannot see.
    pub pid: Option<u32>,
    /// The effective uid of that process.
    pub uid: u32,
    /// The name of that process, if /proc shows it.
    pub comm: Option<String>,
    /// Its answer.
    pub answer: Answer,
}

/// What the holder of a VF answered to a ping.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Answer {
    /// It is an engine and makes progress.
    Alive,
    /// It did not answer in time: stopped, busy, or the descriptor outlived its engine (a child
    /// that forked without telling us).
    Silent,
    /// It is not an engine of ours: the reason in words.
    Stranger(String),
}

/// All VFs of `nic` in this network namespace, by number. Waits for answers for at most `patience`
/// in total.
///
/// # Errors
/// If /proc/net/unix cannot be read.
pub fn list(nic: &str, patience: Duration) -> io::Result<Vec<VfInfo>> {
    let mut asked: Vec<_> = held(nic)?.into_iter().filter_map(|vf| Asked::new(nic, vf)).collect();
    let deadline = Instant::now() + patience;
    while wait(asked.iter().filter_map(Asked::pending).map(AsFd::as_fd), deadline)? {
        asked.iter_mut().for_each(Asked::listen);
    }
    Ok(asked.into_iter().map(Asked::into_info).collect())
}

/// The VFs of `nic` that processes hold, from the kernel's list of sockets.
pub(super) fn held(nic: &str) -> io::Result<BTreeSet<u16>> {
    Ok(sockets()?.lines().filter_map(|line| vf_of_line(line, nic)).collect())
}

struct Asked {
    vf: u16,
    socket: PeerSocket,
    cred: PeerCred,
    answer: Option<Answer>,
}

impl Asked {
    fn new(nic: &str, vf: u16) -> Option<Self> {
        // Processes that have ended since the table was read are not listed.
        let (socket, cred) = dial(nic, vf, false).ok()?;
        let sent = Message::Ping.send(&socket, &[]);
        let answer = sent.err().map(|e| Answer::Stranger(format!("it refused a ping: {e}")));
        Some(Self { vf, socket, cred, answer })
    }

    /// The socket on which it has not answered yet.
    fn pending(&self) -> Option<&PeerSocket> {
        self.answer.is_none().then_some(&self.socket)
    }

    fn listen(&mut self) {
        if self.answer.is_some() {
            return;
        }
        self.answer = match recv(&self.socket) {
            Received::Nothing => None,
            Received::Closed => Some(Answer::Stranger("it hung up on a ping".to_owned())),
            Received::Message(Ok(Message::Pong { vf }), _) if vf == self.vf => Some(Answer::Alive),
            Received::Message(Ok(Message::Pong { vf }), _) => {
                Some(Answer::Stranger(format!("it answers for VF {vf}")))
            }
            Received::Message(Ok(Message::Refused(words)), _) => Some(Answer::Stranger(words)),
            Received::Message(Ok(_), _) => {
                Some(Answer::Stranger("it answered a ping with something else".to_owned()))
            }
            Received::Message(Err(e), _) => Some(Answer::Stranger(e.to_string())),
            Received::Brings(_) => {
                Some(Answer::Stranger("it sent descriptors that were not asked for".to_owned()))
            }
        };
    }

    fn into_info(self) -> VfInfo {
        let comm = self.cred.pid.and_then(comm);
        let answer = self.answer.unwrap_or(Answer::Silent);
        VfInfo { vf: self.vf, pid: self.cred.pid, uid: self.cred.uid, comm, answer }
    }
}

/// The name of a process, if /proc shows it, without what does not belong on a terminal.
pub(super) fn comm(pid: u32) -> Option<String> {
    let comm = std::fs::read(format!("/proc/{pid}/comm")).ok()?;
    let comm = String::from_utf8_lossy(&comm);
    Some(comm.trim_end().chars().filter(|c| !c.is_control()).collect())
}

/// Waits until one of those that have not answered does. Returns false when there is nothing to
/// wait for.
pub(super) fn wait<'a>(
    pending: impl Iterator<Item = BorrowedFd<'a>>,
    deadline: Instant,
) -> io::Result<bool> {
    let mut fds: Vec<_> =
        pending.map(|socket| PollFd::from_borrowed_fd(socket, PollFlags::IN)).collect();
    let left = deadline.saturating_duration_since(Instant::now());
    if fds.is_empty() || left.is_zero() {
        return Ok(false);
    }
    let timeout = Timespec {
        // CAST: a timeout of more than 2^63 seconds is capped.
        tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: left.subsec_nanos().into(),
    };
    match poll(&mut fds, Some(&timeout)) {
        Ok(ready) => Ok(ready > 0),
        Err(rustix::io::Errno::INTR) => Ok(true),
        Err(e) => Err(e.into()),
    }
}
