//! Packets with descriptors on sockets.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use descriptors::PrivateFd;
use rustix::cmsg_space;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags,
    SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};

use super::message::{BadMessage, FILES_MAX};

/// The result of [`recv`].
#[derive(Debug)]
pub(super) enum Received {
    /// A packet of this length, with the descriptors it carried.
    Packet(usize, Vec<OwnedFd>),
    /// Something that cannot be a message.
    Bad(BadMessage),
    /// Nothing yet.
    Nothing,
    /// The other end was closed.
    Closed,
}

/// A socket for packets. It never blocks.
pub(super) fn new_socket() -> Result<OwnedFd, Errno> {
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None)
}

/// The two ends of a socket pair.
pub(super) fn pair() -> Result<(OwnedFd, OwnedFd), Errno> {
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, FLAGS, None)
}

/// Whether a descriptor that a peer sent is an end of such a pair.
pub(super) fn is_pair(fd: BorrowedFd<'_>) -> bool {
    rustix::net::sockopt::socket_domain(fd) == Ok(AddressFamily::UNIX)
        && rustix::net::sockopt::socket_type(fd) == Ok(SocketType::SEQPACKET)
}

/// Sends a packet on a long-lived socket; EBADF if the descriptor is no longer ours.
pub(super) fn send(socket: &PrivateFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<(), Errno> {
    if !socket.is_ours() {
        return Err(Errno::BADF);
    }
    send_at_once(socket.as_fd(), bytes, fds)
}

/// Sends a packet and copies of `fds` without waiting.
pub(super) fn send_at_once(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    fds: &[BorrowedFd<'_>],
) -> Result<(), Errno> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(FILES_MAX))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !control.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::INVAL);
    }
    let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
    rustix::io::retry_on_intr(|| {
        rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, flags)
    })?;
    Ok(())
}

/// Receives one packet without waiting. `buffer` has room for the longest.
pub(super) fn recv(socket: &PrivateFd, buffer: &mut [u8]) -> Received {
    if !socket.is_ours() {
        return Received::Closed;
    }
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(FILES_MAX))];
    loop {
        let mut control = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let mut iov = [IoSliceMut::new(buffer)];
        match rustix::net::recvmsg(socket, &mut iov, &mut control, flags) {
            Ok(got) => {
                // The kernel closes descriptors beyond the space; the drop of `control` closes
                // those not taken.
                let mut fds = Vec::new();
                for message in control.drain() {
                    if let RecvAncillaryMessage::ScmRights(some) = message {
                        fds.extend(some);
                    }
                }
                return if got.bytes == 0 {
                    Received::Closed
                } else if got.flags.contains(ReturnFlags::CTRUNC) {
                    Received::Bad(BadMessage::Descriptors)
                } else if got.flags.contains(ReturnFlags::TRUNC) {
                    Received::Bad(BadMessage::Length)
                } else {
                    Received::Packet(got.bytes, fds)
                };
            }
            // The peer closed with our message unread: its last message comes after the error,
            // which is reported once.
            Err(Errno::CONNRESET | Errno::INTR) => {}
            Err(Errno::AGAIN) => return Received::Nothing,
            Err(_) => return Received::Closed,
        }
    }
}

/// Waits until one of `fds` has a requested event, at most until `deadline`. Returns the events of
/// each; none if the time has passed.
pub(super) fn wait<const N: usize>(
    fds: [(BorrowedFd<'_>, PollFlags); N],
    deadline: Option<Instant>,
) -> [PollFlags; N] {
    let mut list = fds.map(|(fd, flags)| PollFd::from_borrowed_fd(fd, flags));
    loop {
        let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
        let left = left.map(|left| Timespec {
            // CAST: limits are seconds.
            tv_sec: left.as_secs() as i64,
            tv_nsec: left.subsec_nanos().into(),
        });
        match rustix::event::poll(&mut list, left.as_ref()) {
            Err(Errno::INTR) => {}
            Err(errno) => {
                // Out of kernel memory: retry, but not at full speed.
                tracing::debug!("poll: {errno}");
                std::thread::sleep(Duration::from_millis(10));
                return [PollFlags::empty(); N];
            }
            Ok(_) => return list.map(|fd| fd.revents()),
        }
    }
}

/// Wakes a thread that waits for descriptors.
#[derive(Debug)]
pub(super) struct Bell {
    fd: PrivateFd,
}

impl Bell {
    pub(super) fn new() -> Result<Self, Errno> {
        let fd = rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { fd: PrivateFd::new(fd) })
    }

    pub(super) fn ring(&self) {
        if self.fd.is_ours() {
            // Full: the thread has been woken already.
            let _ = rustix::io::write(&self.fd, &1u64.to_ne_bytes());
        }
    }

    pub(super) fn hush(&self) {
        if !self.fd.is_ours() {
            return;
        }
        let _ = rustix::io::read(&self.fd, &mut [0; 8]);
    }
}

impl AsFd for Bell {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

const FLAGS: SocketFlags = SocketFlags::CLOEXEC.union(SocketFlags::NONBLOCK);
