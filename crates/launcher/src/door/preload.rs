//! What programs with the preload library ask us: it connects their sockets of NETLINK_RDMA to us,
//! and asks for the counters of this moment before it opens one.
//!
//! The listener has an abstract name as long as a netlink address, and so have the sockets that are
//! accepted from it; the letters that tell it from others are in the file `netlink` beside the
//! tree. A program that binds its end gives it a name of the same form with its port in it.
//!
//! Another listener, by the file `counters`, says nothing and hangs up when the files of counters
//! are those of now.

use std::collections::BTreeMap;
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
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
        let listener = listen(directory, "netlink")?;
        Ok(Self { listener, live, sockets: Sockets::default() })
    }

    /// Takes the programs that have connected.
    pub(super) fn accept(&self) {
        accept_each(&self.listener, |socket| {
            if let Err(error) = self.sockets.adopt(&self.live, socket) {
                tracing::info!(%error, "door: netlink");
            }
        });
    }
}

/// Where programs ask for the counters of this moment.
pub(super) struct CounterFiles {
    listener: OwnedFd,
    live: Arc<Live>,
    directory: PathBuf,
    /// What the files say.
    written: BTreeMap<String, u64>,
}

impl CounterFiles {
    /// Listens, and writes into `directory` where. The tree is there, too.
    pub(super) fn open(directory: &Path, live: Arc<Live>) -> io::Result<Self> {
        let listener = listen(directory, "counters")?;
        let directory = directory.to_owned();
        Ok(Self { listener, live, directory, written: BTreeMap::new() })
    }

    /// Makes the files for the programs that have connected, and hangs up.
    pub(super) fn accept(&mut self) {
        let Self { listener, live, directory, written } = self;
        accept_each(listener, |_program| {
            for (file, value) in live.counter_files() {
                if written.get(&file).copied().unwrap_or(0) == value {
                    continue;
                }
                match replace(directory, &file, value) {
                    Ok(()) => drop(written.insert(file, value)),
                    // The tree may be on its way out.
                    Err(error) => tracing::debug!(%error, file, "door: a counter stays as it was"),
                }
            }
        });
    }
}

impl AsFd for CounterFiles {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }
}

/// Replaces a file of the tree. A reader finds the old value or the new one.
fn replace(directory: &Path, file: &str, value: u64) -> io::Result<()> {
    let new = directory.join("counter.new");
    std::fs::write(&new, format!("{value}\n"))?;
    std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o444))?;
    std::fs::rename(&new, directory.join(file.trim_start_matches('/')))
}

/// Listens under a name whose letters are in a file of `directory`.
fn listen(directory: &Path, file: &str) -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let listener =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
    let letters = bind(&listener)?;
    rustix::net::listen(&listener, BACKLOG)?;
    std::fs::write(directory.join(file), letters)?;
    Ok(listener)
}

/// Takes the programs that have connected; those of other users are hung up on.
fn accept_each(listener: &OwnedFd, mut take: impl FnMut(OwnedFd)) {
    loop {
        let socket = match rustix::net::accept_with(listener, SocketFlags::CLOEXEC) {
            Ok(socket) => socket,
            Err(Errno::INTR | Errno::CONNABORTED) => continue,
            Err(_) => return,
        };
        let peer = descriptors::peer_cred(socket.as_fd());
        if peer.is_ok_and(descriptors::PeerCred::is_same_user) {
            take(socket);
        } else {
            tracing::info!(?peer, "door: only programs of its user are answered");
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
