//! Periodic checks: peers that came and went, the netdev, and whether the kernel still gives us our
//! datagrams.

use link::registry::{Claim, Event};

use super::Engine;
use super::common::Common;

impl Engine {
    /// Accepts connections, notices peers that came up or went away, and follows the netdev.
    pub(super) fn housekeeping(&mut self) -> bool {
        self.look_at_descriptors();
        if self.is_dead() {
            return false;
        }
        let mut moved = false;
        // Records that they sent before they ended are taken below, even if their ring was new.
        let mut gone = std::mem::take(&mut self.cm.lost);
        let events = self.common.out.shm.claim.as_mut().map_or_else(Vec::new, Claim::poll_events);
        let mut askers = Vec::new();
        for event in events {
            match event {
                Event::NewInbound(inbound) => {
                    tracing::debug!(target: "peerdma::peer", "ring from {}", inbound.peer());
                    self.common.out.shm.waits().add_always(&*inbound);
                    self.receivers.shm.add(*inbound);
                    moved = true;
                }
                Event::Refused(peer) => tracing::info!(
                    target: "peerdma::peer", uid = peer.uid, "turned away: {}", peer.reason
                ),
                Event::Asked(asker) => askers.push(asker),
                _ => {}
            }
        }
        self.show_objects(askers);
        self.receivers.shm.find_gone(&mut gone);
        let mut not_yet = Vec::new();
        if !gone.is_empty() {
            gone.sort_unstable();
            gone.dedup();
            // Records that a peer pushed before it ended are still delivered. A peer that ends only
            // now has its turn later.
            let (is_holding, left) = self.receive_of_gone(&gone);
            self.receivers.udp.port_may_be_free(&self.common.out.udp, self.common.now);
            if is_holding {
                not_yet = gone;
            } else {
                self.receivers.shm.close_gone();
                not_yet.extend(gone.extract_if(.., |vf| left.contains(vf)));
                self.cm_peers_gone(&gone);
            }
            moved = true;
        }
        self.cm.lost = self.common.out.shm.poll();
        moved |= !self.cm.lost.is_empty();
        self.cm.lost.append(&mut not_yet);
        self.keep_up_udp();
        self.poll_directory();
        if self.receivers.watch.as_ref().is_some_and(|watch| watch.drain().unwrap_or(false)) {
            super::netdev::refresh(&mut self.common);
            self.cm_follow_addresses();
        }
        moved
    }

    fn keep_up_udp(&mut self) {
        // The port changes hands only while no datagram waits.
        if self.receivers.udp.may_take_port(&self.common.out.udp, self.common.now) {
            self.flush_udp();
        }
        let Common { out, now, .. } = &mut self.common;
        self.receivers.udp.upkeep(&mut out.udp, *now, out.shm.waits());
    }
}
