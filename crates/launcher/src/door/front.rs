//! The front: the process that was started as `peerdma run`. It represents the program to the
//! process that started it.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::ExitCode;
use std::sync::Arc;

use rustix::event::{PollFd, PollFlags};
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, WaitOptions};

use super::backing::Backing;
use super::channel::{Channel, Message};
use super::process::{self, Signals};
use super::supervisor::Door;
use crate::live::Live;

/// Signals that are passed on to the program when they are sent to us. Those that stop and continue
/// a process act on us as on any process.
pub(super) const FORWARDED: [i32; 8] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGTERM,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGALRM,
    libc::SIGWINCH,
];

/// The exit status when the program's own is lost with its parent.
const LOST: u8 = 125;

/// Lives for as long as the program, and ends as it does.
pub(super) fn run(
    supervisor: Channel,
    pid: Pid,
    signals: Signals,
    live: &Arc<Live>,
) -> io::Result<ExitCode> {
    let explain = process::is_explaining();
    process::let_go(&[supervisor.as_fd(), signals.as_fd()], explain);
    let mut successor = None;
    loop {
        let (message, signal) = wait(&[supervisor.as_fd(), signals.as_fd()])?;
        if signal {
            while let Some((signal, sent)) = signals.next() {
                // Signals from the kernel reach the program as they reach us: a terminal sends its
                // signals to the process group.
                if sent {
                    // If the supervisor has been killed, the next message shows it.
                    let _ = supervisor.send(&Message::Signal(signal));
                }
            }
        }
        if !message {
            continue;
        }
        match supervisor.receive() {
            Ok(Some(Message::Started { program, door })) => {
                let door = door.and_then(|door| {
                    let backing = Backing::adopt(door.root, door.named);
                    Door::new(door.listener, backing, Arc::clone(live)).ok()
                });
                successor = Some(Successor { program, door });
            }
            Ok(Some(Message::Left(status))) => return Ok(exit_code(status)),
            Ok(Some(Message::Ended(status))) => {
                // Nothing is left over, not even for init to reap.
                let _ = rustix::process::waitpid(Some(pid), WaitOptions::empty());
                return Ok(exit_code(status));
            }
            Ok(Some(_)) => {}
            Ok(None) | Err(_) => {
                tracing::error!("door: the supervisor was killed; the front takes over its work");
                return match successor {
                    Some(successor) => successor.stay(&signals),
                    None => Ok(ExitCode::from(LOST)),
                };
            }
        }
    }
}

/// Takes over from a supervisor that was killed: the front does the same work, so that no call of
/// the program fails.
struct Successor {
    program: OwnedFd,
    door: Option<Door>,
}

impl Successor {
    fn stay(mut self, signals: &Signals) -> io::Result<ExitCode> {
        let mut ended = None;
        while ended.is_none() || self.door.is_some() {
            let (program_ready, signal, door_ready) = self.wait(signals, ended.is_none())?;
            if signal {
                while let Some((signal, sent)) = signals.next() {
                    if let Some(signal) = Signal::from_named_raw(signal).filter(|_| sent) {
                        let _ = rustix::process::pidfd_send_signal(&self.program, signal);
                    }
                }
            }
            if let Some(door) = &mut self.door
                && !door.serve(door_ready)
                && let Some(door) = self.door.take()
            {
                door.close();
            }
            if program_ready {
                ended = Some(self.status());
            }
        }
        Ok(ended.unwrap_or(ExitCode::from(LOST)))
    }

    fn wait(&self, signals: &Signals, running: bool) -> io::Result<(bool, bool, PollFlags)> {
        let mut polled = vec![PollFd::new(signals, PollFlags::IN)];
        if running {
            polled.push(PollFd::new(&self.program, PollFlags::IN));
        }
        polled.extend(self.door.as_ref().map(|door| PollFd::new(door, PollFlags::IN)));
        rustix::io::retry_on_intr(|| rustix::event::poll(&mut polled, None))?;
        let mut ready = polled.iter().map(PollFd::revents);
        let mut next = || ready.next().unwrap_or(PollFlags::empty());
        let signal = !next().is_empty();
        let program = running && !next().is_empty();
        Ok((program, signal, next()))
    }

    /// The program's status, if its death made us its parent.
    fn status(&self) -> ExitCode {
        let status =
            rustix::process::waitid(WaitId::PidFd(self.program.as_fd()), WaitIdOptions::EXITED);
        match status {
            Ok(Some(status)) => match (status.exit_status(), status.terminating_signal()) {
                (Some(code), _) => ExitCode::from(code as u8),
                (None, Some(signal)) => ExitCode::from(128 + signal as u8),
                (None, None) => ExitCode::from(LOST),
            },
            _ => ExitCode::from(LOST),
        }
    }
}

/// Waits until one of two descriptors is readable.
fn wait(fds: &[BorrowedFd<'_>; 2]) -> io::Result<(bool, bool)> {
    let mut polled = fds.each_ref().map(|fd| PollFd::new(fd, PollFlags::IN));
    rustix::io::retry_on_intr(|| rustix::event::poll(&mut polled, None))?;
    Ok((!polled[0].revents().is_empty(), !polled[1].revents().is_empty()))
}

/// The exit status that a shell reports for a wait status.
fn exit_code(status: i32) -> ExitCode {
    if libc::WIFEXITED(status) {
        // CAST: an exit status has 8 bits.
        ExitCode::from(libc::WEXITSTATUS(status) as u8)
    } else {
        ExitCode::from(128 + libc::WTERMSIG(status) as u8)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn statuses_are_those_of_a_shell() {
        assert_eq!(exit_code(3 << 8), ExitCode::from(3));
        assert_eq!(exit_code(libc::SIGTERM), ExitCode::from(143));
    }
}
