//! The sockets through which processes of a host find each other.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use descriptors::strangers::{self, PeerSocket};
use descriptors::{Known, PeerCred, peer_cred};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType};

use super::name::address;

/// How long connections wait when there is no room for them. There is no event for when there is
/// room again.
pub(super) const PAUSE: Duration = Duration::from_millis(50);

/// Our effective uid, which is what `SO_PEERCRED` shows others.
pub(super) fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Connects to the listener of `vf`, without waiting, and returns its identity. That process cannot
/// send us descriptors unless we `expect` some, where the kernel can refuse them.
pub(super) fn dial(nic: &str, vf: u16, expect: bool) -> Result<(PeerSocket, PeerCred), Errno> {
    let socket = new_socket()?;
    let is_sealed = !expect && strangers::refuse_descriptors(&socket);
    rustix::net::connect(&socket, &address(nic, vf)?)?;
    let cred = peer_cred(socket.as_fd())?;
    Ok((PeerSocket::born(socket, cred, is_sealed), cred))
}

/// A spare descriptor, to close when there are no others.
pub(super) fn spare_fd(any: impl AsFd) -> Option<Known> {
    rustix::io::fcntl_dupfd_cloexec(any, 0).ok().map(Known::new)
}

pub(super) fn new_socket() -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}
