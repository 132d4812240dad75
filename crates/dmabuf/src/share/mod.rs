//! Buffers whose exporter is in another process.
//!
//! The name of a shared memfd is its exporter's address: `peerdma:NAME@TOKEN.ID`, where TOKEN is
//! the exporting process and ID the buffer. That process listens on the abstract socket
//! `peerdma-dmabuf-TOKEN`.
//!
//! ```text
//!   importing process                                        exporting process
//!
//!   importer -> DmaBuf -> Proxy (an Exporter)                StandIn (an Importer) -> DmaBuf -> exporter
//!                           |  connect (same user?)             ^
//!                           |  import: id, dev, ino  -------->  |  facts, gate
//!                           |  attach, pin, map      -------->  |  addresses as (file, offset, length), epoch
//!                           |  unmap, unpin, detach  -------->  |  (no answer)
//!                           v                                   v
//!   importer is told <-- notes thread   <--------------------  invalidate: the gate first, then a note
//!                                          gate (shared page)
//!   accesses: enter the gate, copy through the bus window
//! ```
//!
//! **What a move waits for.** The exporter closes the gate, which needs no cooperation. The note
//! that follows is for the importer's bookkeeping: it is sent without waiting, and queued while the
//! importing process has no room for it. So a stopped or slow importer blocks no move, and an
//! importer that has not seen the note finds its epoch stale.
//!
//! **Locks.** Each process has its own reservation lock for a buffer. A request is made under the
//! importing process's lock, if the operation needs it, and takes the exporting process's lock
//! while it is served. The exporting process never waits for an importing one: its notes do not
//! wait, and the gate's slots are held only for copies. So requests end when the exporter's lock is
//! free, and with one lock per buffer there is no cycle. A thread that holds the lock of one of its
//! own buffers while it maps a buffer of another process adds a dependency that no single process
//! can see; such a deadlock ends after [`ANSWER_LIMIT`], with
//! [`Busy`](crate::ExporterErrorKind::Busy).
//!
//! **Ends.** When an importing process dies, its attachments are detached as its connection ends.
//! When the exporting process dies, existing maps stay valid
//! ([`Sharing::HostKept`](crate::Sharing::HostKept)) or the buffer is revoked; everything else
//! answers [`NoDevice`](crate::ExporterErrorKind::NoDevice). A forked child does not use its
//! parent's connections; it imports again, from its parent if needed.
//!
//! **Trust.** Both sides belong to one user, as the kernel reports (`SO_PEERCRED`); others are
//! refused with a reason. Messages are checked and bounded nevertheless: an invalid message ends
//! the connection.

mod answer;
mod client;
mod codec;
mod dial;
mod link;
mod message;
mod proxy;
mod serve;
mod server;
mod socket;
mod stand_in;

#[cfg(fuzzing)]
pub mod fuzzing;

use std::collections::hash_map::RandomState;
use std::fmt;
use std::hash::{BuildHasher, Hasher};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::SocketAddrUnix;

pub(crate) use client::{import, registered};
pub(crate) use dial::ImportRefused;
pub(crate) use proxy::Proxy;
pub(crate) use server::{publish, reserve, token};

/// How long a request waits for its answer. A stopped exporter answers when it continues; until
/// then requests to it fail after this time, and their effects are undone.
pub const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// The token of a process that exports buffers: a number that two processes do not share by
/// accident. Not a secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Token(u64);

/// The address of a buffer: its process, and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) token: Token,
    pub(crate) id: u64,
}

impl Token {
    fn random() -> Self {
        Self(RandomState::new().build_hasher().finish())
    }

    pub(crate) fn number(self) -> u64 {
        self.0
    }

    fn socket_name(self) -> Result<SocketAddrUnix, Errno> {
        SocketAddrUnix::new_abstract_name(format!("peerdma-dmabuf-{self}").as_bytes())
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "@{}.{}", self.token, self.id)
    }
}

/// Splits a buffer's name, without its prefix, into the user's name for it and its exporter's
/// address, if it has one in canonical form.
pub(crate) fn split_name(name: &str) -> Option<(&str, Address)> {
    let (short, rest) = name.rsplit_once('@')?;
    let (token, id) = rest.split_once('.')?;
    let token = Token(u64::from_str_radix(token, 16).ok()?);
    let address = Address { token, id: id.parse().ok()? };
    // An address has exactly one spelling.
    (address.to_string()[1..] == *rest).then_some((short, address))
}

#[cfg(all(test, not(loom)))]
mod tests;

#[cfg(test)]
mod names {
    use super::*;

    #[test]
    fn an_address_survives_the_name() {
        let address = Address { token: Token(0xfeed), id: 42 };
        let name = format!("frame@home{address}");
        assert_eq!(name, "frame@home@000000000000feed.42");
        assert_eq!(split_name(&name), Some(("frame@home", address)));
        assert_eq!(split_name(&format!("{address}")), Some(("", address)));
    }

    #[test]
    fn names_that_only_look_like_it_are_names() {
        for name in [
            "frame",
            "frame@home",
            "frame@feed.42",
            "frame@000000000000FEED.42",
            "frame@000000000000feed.042",
            "frame@000000000000feed.+42",
            "frame@+00000000000feed.42",
            "frame@000000000000feed.18446744073709551616",
            "frame@000000000000feed.42 ",
        ] {
            assert_eq!(split_name(name), None, "{name}");
        }
    }
}
