//! NETLINK_RDMA for programs with the preload library: it connects their sockets to us.
//!
//! The listener has an abstract name as long as a netlink address, and so have the sockets that are
//! accepted from it; the letters that tell it from others are in the file `netlink` beside the
//! tree. A program that binds its end gives it a name of the same form with its port in it.

use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use super::netlink::Sockets;
use super::socket_call::ADDRESS;
use crate::live::Live;

/// Bytes of an abstract name that is as long as a netlink address: the second byte of its padding,
/// the port, the groups.
const NAME: usize = ADDRESS - 3;
/// Where its letters are; the port of the kernel is 0.
const LETTERS: [usize; 5] = [0, 5, 6, 7, 8];
/// Programs that may wait for their socket.
const BACKLOG: i32 = 128;

/// Where programs connect.
pub(super) struct Netlink {
    listener: OwnedFd,
    live: Arc<Live>,
    pub(super) sockets: Sockets,
}

impl Netlink {
    /// Listens, and writes into `directory` where.
    pub(super) fn open(directory: &Path, live: Arc<Live>) -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let listener =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        let letters = bind(&listener)?;
        rustix::net::listen(&listener, BACKLOG)?;
        std::fs::write(directory.join("netlink"), letters)?;
        Ok(Self { listener, live, sockets: Sockets::default() })
    }

    /// Takes the programs that have connected; those of other users are hung up on.
    pub(super) fn accept(&self) {
        loop {
            let socket = match rustix::net::accept_with(&self.listener, SocketFlags::CLOEXEC) {
                Ok(socket) => socket,
                Err(Errno::INTR | Errno::CONNABORTED) => continue,
                Err(_) => return,
            };
            let peer = descriptors::peer_cred(socket.as_fd());
            if !peer.is_ok_and(descriptors::PeerCred::is_same_user) {
                tracing::info!(?peer, "door: netlink is for programs of its user");
                continue;
            }
            if let Err(error) = self.sockets.adopt(&self.live, socket) {
                tracing::info!(%error, "door: netlink");
            }
        }
    }
}

impl AsFd for Netlink {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

/// Gives a socket a name as long as a netlink address, and returns its letters. Tools that list
/// sockets expect text.
pub(super) fn bind(socket: impl AsFd) -> Result<[u8; LETTERS.len()], Errno> {
    let mut tries = 0;
    loop {
        let mut random = RandomState::new().build_hasher().finish();
        let mut name = [0; NAME];
        for at in LETTERS {
            // CAST: below 26.
            name[at] = b'a' + (random % 26) as u8;
            random /= 26;
        }
        match rustix::net::bind(socket.as_fd(), &SocketAddrUnix::new_abstract_name(&name)?) {
            Err(Errno::ADDRINUSE) if tries < 100 => tries += 1,
            other => return other.map(|()| LETTERS.map(|at| name[at])),
        }
    }
}

/// The port in the name of the program's end; 0 if it has none.
pub(super) fn port_of_peer(socket: BorrowedFd<'_>) -> u32 {
    let name = rustix::net::getpeername(socket).ok().flatten();
    let name = name.and_then(|name| SocketAddrUnix::try_from(name).ok());
    let port = name.as_ref().and_then(|name| name.abstract_name()?.get(1..5)?.try_into().ok());
    port.map_or(0, u32::from_ne_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_port_is_read_from_the_name_of_the_other_end() {
        let pair = || {
            let flags = SocketFlags::CLOEXEC;
            rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
        };
        let (ours, theirs) = pair().expect("descriptors");
        assert_eq!(port_of_peer(ours.as_fd()), 0, "it is not bound");
        let mut name = *b"p....abcd";
        name[1..5].copy_from_slice(&std::process::id().to_ne_bytes());
        let address = SocketAddrUnix::new_abstract_name(&name).expect("short");
        rustix::net::bind(&theirs, &address).expect("nobody else has it");
        assert_eq!(port_of_peer(ours.as_fd()), std::process::id());
    }
}
