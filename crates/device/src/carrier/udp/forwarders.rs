//! Which processes are trusted to name the source of a datagram.
//!
//! UDP 4791 belongs to the processes of one user; those of others get their packets forwarded over
//! a ring. Such a datagram names its source, and only the process that forwards it has seen it. So
//! it is accepted only from processes that can have received it:
//!
//! * processes of our own user, which is one trust domain;
//! * root, which can send any packet with any source anyway;
//! * the user that holds the port, as the kernel reports it, on the address that the datagram was
//!   sent to. While we hold it ourselves, there is no other.
//!
//! A user that takes the port first can thus forge packets to those that depend on it. That user
//! also receives all of their packets, and the kernel cannot tell a port taken in good faith from
//! one taken with bad intent.

use std::net::IpAddr;
use std::time::Duration;

use link::registry::PeerInfo;
use link::udp::{self, Holder};
use transport::Time;

/// How long the result of looking up the port's holder is valid.
const FRESH: Duration = Duration::from_millis(100);

const ROOT: u32 = 0;

/// The holders of the port, if they were looked up.
#[derive(Debug)]
pub(super) struct Forwarders {
    port: u16,
    holders: Vec<Holder>,
    asked: Option<Time>,
}

impl Forwarders {
    pub(super) fn new(port: u16) -> Self {
        Self { port, holders: Vec::new(), asked: None }
    }

    /// Whether a datagram to `dst` may have been received and forwarded by this peer.
    pub(super) fn include(&mut self, now: Time, peer: &PeerInfo, dst: IpAddr) -> bool {
        if peer.same_uid() || peer.uid == ROOT {
            return true;
        }
        if self.asked.is_none_or(|at| now.since(at) >= FRESH) {
            self.asked = Some(now);
            self.holders = udp::holders(self.port).unwrap_or_else(|error| {
                tracing::warn!(target: "peerdma::udp", "the holder of the port is unknown: {error}");
                Vec::new()
            });
        }
        udp::may_receive(&self.holders, peer.uid, dst)
    }
}
