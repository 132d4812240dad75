//! What is looked at now and then: who came and who went, the netdev, and whether the kernel still
//! gives us our datagrams.

use std::time::Instant;

use link::registry::{Claim, Event};
use link::shm::{Inbound, InboundState};
use transport::Time;

use super::Engine;
use super::receivers::LONG_SILENCE;

impl Engine {
    /// Accepts connections, notices peers that came up or went away, and follows the netdev.
    pub(crate) fn housekeeping(&mut self) -> bool {
        self.look_at_descriptors();
        if self.is_dead() {
            return false;
        }
        let mut moved = false;
        // What they sent before they went is taken below, even if their ring was new.
        let mut gone = std::mem::take(&mut self.cm.lost);
        let events = self.core.peers.claim.as_mut().map_or_else(Vec::new, Claim::poll_events);
        for event in events {
            match event {
                Event::NewInbound(inbound) => {
                    tracing::debug!(target: "peerdma::peer", "ring from {}", inbound.peer());
                    self.core.peers.waits().add_always(&*inbound);
                    // A VF has one ring to us. What lies in an older one is still taken, as of one
                    // that went.
                    let vf = inbound.peer().vf;
                    let older =
                        self.receivers.inbounds.iter_mut().filter(|old| old.peer().vf == vf);
                    older.for_each(Inbound::hang_up);
                    self.receivers.inbounds.push(*inbound);
                    moved = true;
                }
                Event::Refused(peer) => tracing::info!(
                    target: "peerdma::peer", uid = peer.uid, "turned away: {}", peer.reason
                ),
                _ => {}
            }
        }
        for inbound in &mut self.receivers.inbounds {
            if inbound.poll() == InboundState::Gone {
                gone.push(inbound.peer().vf);
            }
        }
        let mut not_yet = Vec::new();
        if !gone.is_empty() {
            gone.sort_unstable();
            gone.dedup();
            // What a peer pushed before it went is still delivered. One that goes only now has its
            // turn later.
            let (is_holding, left) = self.receive_of_gone(&gone);
            // It may have been the one that had the port, which the kernel takes away a little
            // later.
            if self.core.is_deaf {
                self.receivers.port_may_be_free(self.core.now);
            }
            if is_holding {
                not_yet = gone;
            } else {
                self.receivers.inbounds.retain_mut(|inbound| {
                    inbound.state() != InboundState::Gone || inbound.may_hold_last_words()
                });
                not_yet.extend(gone.extract_if(.., |vf| left.contains(vf)));
                self.cm_peers_gone(&gone);
            }
            moved = true;
        }
        self.cm.lost = self.core.peers.poll();
        moved |= !self.cm.lost.is_empty();
        self.cm.lost.append(&mut not_yet);
        if self.core.udp.front().is_none()
            && let Some(udp) = &mut self.receivers.udp
        {
            self.core.udp.lines.sweep(self.core.now, udp);
            self.core.sources.sweep(self.core.now, udp);
        }
        if self.receivers.try_port.is_some_and(|(at, _)| at <= self.core.now) && !self.take_port() {
            self.receivers.try_port_later(self.core.now);
        }
        if self.silence_until().is_some_and(|at| at <= self.core.now) {
            self.after_silence();
        }
        if self.core.missteered {
            // A process came or went: ask again which socket is whose.
            self.core.missteered = false;
            if let Some(steering) = &mut self.receivers.steering {
                steering.start(Instant::now());
            }
        }
        self.receivers.steer();
        self.poll_directory();
        if self.receivers.watch.as_ref().is_some_and(|watch| watch.drain().unwrap_or(false)) {
            crate::nic::refresh(&mut self.core);
            self.cm_follow_addresses();
        }
        moved
    }

    /// When it is suspicious that nothing came over UDP.
    pub(super) fn silence_until(&self) -> Option<Time> {
        // Who has not the port hears nothing of those who want to connect, either.
        let matters = self.core.uses_udp || self.core.is_deaf;
        self.receivers.silence_until(self.core.is_deaf).filter(|_| matters)
    }

    /// Makes sure that datagrams reach us.
    fn after_silence(&mut self) {
        let (_, silence) = self.receivers.heard;
        self.receivers.heard = (self.core.now, (2 * silence).min(LONG_SILENCE));
        if !self.core.is_deaf {
            self.core.missteered = true;
        } else if !self.take_port()
            && let Some(udp) = &self.receivers.udp
        {
            udp.plead();
        }
    }

    /// Takes the UDP port if it was another user's and is free now. Not while a datagram waits that
    /// cannot be sent: its ICRC covers the port that it is to leave from.
    fn take_port(&mut self) -> bool {
        if !self.core.is_deaf {
            return false;
        }
        self.flush_udp();
        if self.core.udp.front().is_some() {
            return false;
        }
        let Some(port) = self.receivers.take_port(self.core.peers.waits()) else { return false };
        self.receivers.try_port = None;
        self.core.udp.leave_from(port);
        self.core.is_deaf = false;
        true
    }
}
