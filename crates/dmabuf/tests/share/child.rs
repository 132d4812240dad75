//! A child: this program in another role, and the exchange with it, line by line.

use std::io::{BufRead, BufReader, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

use rustix::cmsg_space;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags,
};
use rustix::process::{Pid, Signal};

use crate::ROLE;

/// A process that is killed and reaped when this is dropped.
pub(crate) struct Child {
    process: std::process::Child,
    lines: BufReader<UnixStream>,
}

impl Child {
    /// Starts a child whose descriptor 1 is `fd`, by inheritance.
    pub(crate) fn start(role: &str, fd: Option<BorrowedFd<'_>>) -> Self {
        Self::start_as(role, fd, None, std::env::current_exe().expect("Linux tells"))
            .expect("this program")
    }

    /// As [`start`](Self::start), as another user and from another place.
    pub(crate) fn start_as(
        role: &str,
        fd: Option<BorrowedFd<'_>>,
        uid: Option<u32>,
        program: std::path::PathBuf,
    ) -> std::io::Result<Self> {
        let (ours, theirs) = UnixStream::pair()?;
        let mut command = Command::new(program);
        command.env(ROLE, role).stdin(Stdio::from(OwnedFd::from(theirs)));
        if let Some(fd) = fd {
            command.stdout(Stdio::from(fd.try_clone_to_owned()?));
        }
        if let Some(uid) = uid {
            command.uid(uid);
        }
        Ok(Self { process: command.spawn()?, lines: BufReader::new(ours) })
    }

    pub(crate) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Sends a command and returns the answer.
    pub(crate) fn ask(&mut self, what: &str) -> String {
        self.say(what);
        self.hear()
    }

    /// Sends a command that must succeed.
    pub(crate) fn must(&mut self, what: &str) -> String {
        let answer = self.ask(what);
        answer.strip_prefix("ok").unwrap_or_else(|| panic!("{what}: {answer}")).trim().to_owned()
    }

    pub(crate) fn say(&mut self, what: &str) {
        self.lines.get_mut().write_all(format!("{what}\n").as_bytes()).expect("the child lives");
    }

    pub(crate) fn hear(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).expect("the child lives");
        assert!(!line.is_empty(), "the child died");
        line.trim_end().to_owned()
    }

    /// Whether there is something to read.
    pub(crate) fn has_answered(&self) -> bool {
        let mut fds = [PollFd::new(self.lines.get_ref(), PollFlags::IN)];
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        !self.lines.buffer().is_empty()
            || rustix::event::poll(&mut fds, Some(&none)).expect("connected") > 0
    }

    /// Sends a descriptor over the socket.
    pub(crate) fn send(&mut self, fd: BorrowedFd<'_>) {
        send_fd(self.lines.get_ref(), fd);
    }

    pub(crate) fn receive(&mut self) -> OwnedFd {
        receive_fd(self.lines.get_ref())
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.process.id() as i32).expect("a child");
        rustix::process::kill_process(pid, signal).expect("our child");
    }

    /// Stops it, and waits until it has stopped.
    pub(crate) fn stop(&self) {
        self.signal(Signal::STOP);
        let stat = format!("/proc/{}/stat", self.process.id());
        loop {
            let text = std::fs::read_to_string(&stat).expect("the child lives");
            if text.rsplit(')').next().is_some_and(|rest| rest.trim_start().starts_with('T')) {
                return;
            }
            std::thread::yield_now();
        }
    }

    /// Kills and reaps it.
    pub(crate) fn kill(&mut self) {
        // An error means that it is dead already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
    }
}

pub(crate) fn send_fd(socket: &UnixStream, fd: BorrowedFd<'_>) {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let fds = [fd];
    assert!(control.push(SendAncillaryMessage::ScmRights(&fds)), "room for one");
    let bytes = [IoSlice::new(b"f")];
    rustix::net::sendmsg(socket, &bytes, &mut control, SendFlags::empty()).expect("connected");
}

pub(crate) fn receive_fd(socket: &UnixStream) -> OwnedFd {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut bytes = [IoSliceMut::new(&mut byte)];
    let flags = RecvFlags::CMSG_CLOEXEC;
    rustix::net::recvmsg(socket.as_fd(), &mut bytes, &mut control, flags).expect("connected");
    let mut messages = control.drain();
    let Some(RecvAncillaryMessage::ScmRights(mut fds)) = messages.next() else {
        panic!("a descriptor was sent")
    };
    fds.next().expect("one")
}

/// The child's side: reads commands until the parent is gone.
pub(crate) fn serve(mut handle: impl FnMut(&UnixStream, &str) -> String) -> std::process::ExitCode {
    let stdin = std::io::stdin();
    let fd = stdin.as_fd().try_clone_to_owned().expect("a descriptor");
    let socket = UnixStream::from(fd);
    let mut reader = socket.try_clone().expect("a descriptor");
    let mut line = Vec::new();
    loop {
        // Byte by byte, since a descriptor may follow a line.
        let mut byte = [0];
        match std::io::Read::read(&mut reader, &mut byte) {
            Ok(1) if byte[0] == b'\n' => {
                let answer = handle(&socket, &String::from_utf8_lossy(&line));
                line.clear();
                if (&socket).write_all(format!("{answer}\n").as_bytes()).is_err() {
                    return std::process::ExitCode::SUCCESS;
                }
            }
            Ok(1) => line.push(byte[0]),
            _ => return std::process::ExitCode::SUCCESS,
        }
    }
}
