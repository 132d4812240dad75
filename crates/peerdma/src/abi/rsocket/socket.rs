//! Sockets, and the table of them.

use std::collections::BTreeMap;
use std::ffi::{c_int, c_short};
use std::ops::Deref;
use std::sync::Arc;

use threads::whole::RwLock;

use super::common::Common;
use super::datagram::DatagramSocket;
use super::stream::StreamSocket;
use crate::abi::rdmacm::{Answer, Failure};

/// What a descriptor stands for.
#[derive(Clone)]
pub(super) enum Socket {
    Stream(Arc<StreamSocket>),
    Datagram(Arc<DatagramSocket>),
}

impl Deref for Socket {
    type Target = Common;

    fn deref(&self) -> &Common {
        match self {
            Self::Stream(stream) => &stream.common,
            Self::Datagram(datagram) => &datagram.common,
        }
    }
}

static SOCKETS: RwLock<BTreeMap<c_int, Socket>> = RwLock::new(BTreeMap::new());

/// The socket of a descriptor.
pub(super) fn lookup(fd: c_int) -> Option<Socket> {
    SOCKETS.read().get(&fd).cloned()
}

/// The socket of a descriptor.
///
/// # Errors
/// EBADF if there is none.
pub(super) fn find(fd: c_int) -> Answer<Socket> {
    lookup(fd).ok_or_else(|| Failure::new(libc::EBADF, format!("descriptor {fd} is no rsocket")))
}

/// The stream of a descriptor.
///
/// # Errors
/// EBADF if the descriptor is no socket, EOPNOTSUPP for datagrams.
pub(super) fn find_stream(call: &str, fd: c_int) -> Answer<Arc<StreamSocket>> {
    match find(fd)? {
        Socket::Stream(stream) => Ok(stream),
        Socket::Datagram(_) => {
            Err(Failure::new(libc::EOPNOTSUPP, format!("{call}: the rsocket is a datagram socket")))
        }
    }
}

/// Takes a socket from the table.
pub(super) fn take(fd: c_int) -> Option<Socket> {
    SOCKETS.write().remove(&fd)
}

impl Socket {
    /// Adds it to the table.
    pub(super) fn publish(self) -> c_int {
        let fd = self.fd;
        // The socket of a number that the program closed itself is dropped without the lock.
        let old = SOCKETS.write().insert(fd, self);
        drop(old);
        fd
    }

    /// What `poll(2)` would report. With `arm`, its descriptor becomes readable when that may
    /// change.
    pub(super) fn ready(&self, events: c_short, arm: bool) -> c_short {
        let always = libc::POLLERR | libc::POLLHUP | libc::POLLNVAL;
        let ready = match self {
            Self::Stream(stream) => stream.ready(arm),
            Self::Datagram(datagram) => datagram.ready(arm),
        };
        ready & (events | always)
    }

    /// The descriptor that is readable when something happened, if there is one.
    ///
    /// # Errors
    /// EBADF if the program has taken its number.
    pub(super) fn descriptor(&self) -> Answer<Option<c_int>> {
        match self {
            Self::Stream(stream) => stream.descriptor(),
            Self::Datagram(datagram) => datagram.descriptor().map(Some),
        }
    }

    /// Its descriptor has become readable.
    pub(super) fn happened(&self) {
        match self {
            Self::Stream(stream) => stream.happened(),
            Self::Datagram(datagram) => datagram.happened(),
        }
    }
}
