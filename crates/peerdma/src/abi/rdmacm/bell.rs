//! A descriptor that says that there is something to do.

use std::os::fd::{AsRawFd, RawFd};

use descriptors::Known;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketAddrUnix, SocketFlags, SocketType, bind, connect,
    getsockname, recv, send, socket_with,
};

use super::{Answer, Failure};

/// A descriptor that is readable while it rings.
///
/// It is a datagram socket connected to itself, and not an eventfd, since only a socket can be
/// waited on without taking what it holds: the wait then ends as a read of the kernel's device
/// would, by `O_NONBLOCK` and by signals with and without `SA_RESTART`, and the queue alone decides
/// when it falls silent. A socket is also told from the program's files by its inode, which an
/// eventfd is not.
#[derive(Debug)]
pub(in crate::abi) struct Bell(Known);

impl Bell {
    pub(in crate::abi) fn new() -> rustix::io::Result<Self> {
        let fd = socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
        // The kernel finds a name (unix(7), autobind). Connected, the socket takes datagrams of its
        // peer only: its own.
        bind(&fd, &SocketAddrUnix::new_unnamed())?;
        connect(&fd, &getsockname(&fd)?)?;
        Ok(Self(Known::new(fd)))
    }

    /// The descriptor.
    pub(in crate::abi) fn descriptor(&self) -> &Known {
        &self.0
    }

    /// Has it ring.
    pub(in crate::abi) fn ring(&self) {
        if self.0.look().is_ok() {
            let _ = send(&self.0, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
        }
    }

    /// Has it ring no more. Returns whether it rang.
    pub(in crate::abi) fn silence(&self) -> bool {
        let mut rang = false;
        if self.0.look().is_ok() {
            while recv(&self.0, &mut [0; 1], RecvFlags::DONTWAIT).is_ok() {
                rang = true;
            }
        }
        rang
    }

    /// The descriptor, for [`Step::Peek`](crate::abi::cancel::Step::Peek).
    ///
    /// # Errors
    /// EBADF if the program took the descriptor.
    pub(in crate::abi) fn to_wait_for(&self) -> Answer<RawFd> {
        self.0.look().map_err(|error| Failure(error.raw_os_error()))?;
        Ok(self.0.as_raw_fd())
    }
}

#[cfg(test)]
mod tests {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};

    use super::*;
    use crate::abi::cancel::{After, Step, wait_uncancelled};
    use crate::abi::waiting::blocks;

    fn is_readable(bell: &Bell) -> bool {
        let mut fds = [PollFd::new(&bell.0, PollFlags::IN)];
        poll(&mut fds, Some(&Timespec::default())).unwrap() == 1
    }

    #[test]
    fn a_bell_rings_until_it_is_silenced() {
        let bell = Bell::new().unwrap();
        assert!(!is_readable(&bell));
        bell.ring();
        assert!(is_readable(&bell));
        let wait = || wait_uncancelled(Step::Peek(bell.to_wait_for().unwrap()));
        assert!(matches!(wait(), After::Read));
        assert!(is_readable(&bell), "waiting takes nothing");
        assert!(bell.silence());
        assert!(!is_readable(&bell));
        // Silence twice is silence.
        assert!(!bell.silence());
        assert!(blocks(&bell.0));
        rustix::io::ioctl_fionbio(&bell.0, true).unwrap();
        assert!(!blocks(&bell.0));
        assert!(matches!(wait(), After::Failed(libc::EAGAIN)));
    }

    #[test]
    fn nobody_else_can_ring() {
        let bell = Bell::new().unwrap();
        let name = getsockname(&bell.0).unwrap();
        let stranger =
            socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
                .unwrap();
        assert!(connect(&stranger, &name).is_err());
        assert!(!is_readable(&bell));
    }
}
