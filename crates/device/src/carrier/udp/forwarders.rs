//! Whose word is taken for where a datagram came from.
//!
//! UDP 4791 belongs to the processes of one user; those of others get their packets forwarded over
//! a ring. Such a datagram names its source, and only whoever forwards it has seen it. So it is
//! taken from those alone who can have received it:
//!
//! * processes of our own user, which is one trust domain;
//! * root, who can send any packet with any source anyway;
//! * the user who holds the port, as the kernel says, on the address that the datagram was sent to.
//!   While we hold it ourselves there is no other.
//!
//! A user who takes the port first can thus forge packets to those who depend on it. That user
//! receives all of them, too, and the kernel offers no way to tell a port taken for good from one
//! taken for ill.

use std::net::IpAddr;
use std::time::Duration;

use link::registry::PeerInfo;
use link::udp::{self, Holder};
use transport::Time;

/// How long it is believed who holds the port.
const FRESH: Duration = Duration::from_millis(100);

const ROOT: u32 = 0;

/// Who holds the port, as far as it was asked.
#[derive(Debug)]
pub(crate) struct Forwarders {
    port: u16,
    holders: Vec<Holder>,
    asked: Option<Time>,
}

impl Forwarders {
    pub(crate) fn new(port: u16) -> Self {
        Self { port, holders: Vec::new(), asked: None }
    }

    /// Whether a datagram to `dst` may have been received and forwarded by this peer.
    pub(crate) fn include(&mut self, now: Time, peer: &PeerInfo, dst: IpAddr) -> bool {
        if peer.same_uid() || peer.uid == ROOT {
            return true;
        }
        if self.asked.is_none_or(|at| now.since(at) >= FRESH) {
            self.asked = Some(now);
            self.holders = udp::holders(self.port).unwrap_or_else(|error| {
                tracing::warn!(target: "peerdma::udp", "who holds the port is unknown: {error}");
                Vec::new()
            });
        }
        udp::may_receive(&self.holders, peer.uid, dst)
    }
}
