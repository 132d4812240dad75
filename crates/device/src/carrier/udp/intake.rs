//! The checks of a datagram, and what it reveals besides its packet.

use std::net::{IpAddr, SocketAddr};

use link::registry::PeerInfo;
use transport::Time;
use wire::icrc::Verifier;

use super::forwarders::Forwarders;
use super::sources::Sources;

/// The checks for datagrams of all sockets.
#[derive(Debug)]
pub(crate) struct Intake {
    pub(crate) verifier: Verifier,
    forwarders: Forwarders,
    pub(super) sources: Sources,
    /// Whether the kernel gave us a packet for another process.
    is_missteered: bool,
}

impl Intake {
    pub(super) fn new(port: u16) -> Self {
        Self {
            verifier: Verifier::new(),
            forwarders: Forwarders::new(port),
            sources: Sources::default(),
            is_missteered: false,
        }
    }

    /// Whether a datagram to `dst` may have been received and forwarded by this peer.
    pub(crate) fn may_forward(&mut self, now: Time, peer: &PeerInfo, dst: IpAddr) -> bool {
        self.forwarders.include(now, peer, dst)
    }

    /// A train with valid packets came through a shared socket.
    #[inline]
    pub(crate) fn came_from(&mut self, from: SocketAddr, to: IpAddr) {
        self.sources.count(from, to);
    }

    /// The kernel gave us a packet for another process: a process has come or gone.
    pub(crate) fn was_missteered(&mut self) {
        self.is_missteered = true;
    }

    pub(super) fn is_missteered(&self) -> bool {
        self.is_missteered
    }

    pub(super) fn take_missteered(&mut self) -> bool {
        std::mem::take(&mut self.is_missteered)
    }
}
