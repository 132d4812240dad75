//! If a program closed our descriptors, or replaced them by its own files, as daemons do, the
//! device fails.
//!
//! Where writes are rare, each descriptor is checked before a write ([`descriptors::Known`]). Those
//! that are read and polled, and the UDP sockets, are checked here, at the beginning of
//! housekeeping: a check at each use would cost as much as the system call itself.

use link::shm::{Inbound, Outbound};
use transport::Time;

use super::Engine;
use crate::thresholds::{DESCRIPTOR_LOOK, PEERS_PER_LOOK};

/// Why the device failed.
const LOST: &str =
    "the program closed descriptors of the device, or replaced them (closefrom, close_range, dup2)";

impl Engine {
    /// Checks whether the program left us our descriptors, unless that was done a moment ago. If
    /// not, the device fails.
    pub(crate) fn look_at_descriptors(&mut self) {
        let now = self.clock.now();
        if self.is_dead()
            || self.descriptors.looked.is_some_and(|at| now.since(at) < DESCRIPTOR_LOOK)
        {
            return;
        }
        self.descriptors.looked = Some(now);
        if !self.has_descriptors() {
            tracing::error!(target: "peerdma::descriptors", "the device fails: {LOST}");
            self.fail(LOST);
        }
    }

    /// Whether datagrams may be sent and received: the check was recent, or the sockets are still
    /// ours. If they are not, the device fails at the next check of everything.
    #[inline]
    pub(super) fn may_use_udp(&mut self) -> bool {
        let now = self.udp_now();
        self.descriptors.looked.is_some_and(|at| now.since(at) < DESCRIPTOR_LOOK)
            || self.look_at_udp()
    }

    /// The current time. While the program polls, its polls read the clock often enough.
    #[inline]
    fn udp_now(&self) -> Time {
        if self.is_alarm_off() { self.common.now } else { self.clock.now() }
    }

    #[cold]
    fn look_at_udp(&mut self) -> bool {
        let now = self.udp_now();
        let looked_at_udp = self.descriptors.looked_at_udp;
        if looked_at_udp.is_some_and(|at| now.since(at) < DESCRIPTOR_LOOK) {
            return true;
        }
        let are_ours = self.receivers.udp.has_descriptors();
        self.descriptors.looked_at_udp = are_ours.then_some(now);
        are_ours
    }

    fn has_descriptors(&mut self) -> bool {
        let peers = &self.common.out.shm;
        let next = self.descriptors.next;
        let inbounds = self.receivers.shm.iter().map(Inbound::look);
        let others = inbounds.chain(peers.outbounds().map(Outbound::look));
        let mut seen = 0;
        let are_ours = others.skip(next).take(PEERS_PER_LOOK).all(|look| {
            seen += 1;
            look.is_ok()
        });
        self.descriptors.next = if seen < PEERS_PER_LOOK { 0 } else { next + PEERS_PER_LOOK };
        are_ours
            && peers.waits().look().is_ok()
            && peers.claim.iter().all(|claim| claim.look().is_ok())
            && self.cm.directory.iter_mut().all(|directory| directory.look().is_ok())
            && self.receivers.udp.has_descriptors()
    }
}
