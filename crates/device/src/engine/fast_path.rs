//! The fast path of small messages (`transport::FastPacket`).
//!
//! A record of the ring is the same whichever way it goes at either end, and so is a datagram. Here
//! they are written without headers in between, and recognised by comparing them with what would
//! have been written. All that is not simply so goes the long way: packets that are recorded or
//! tampered with, several that come at once by a ring (which one acknowledgement answers), packets
//! within a process.

pub(super) mod datagram;

use iba::QpState;
use transport::wr::Request;
use transport::{FastPacket, PostError};

use super::Engine;
use super::delayed_acks::End;
use super::env::QpEnv;
use crate::carrier::fast_path::{Arrived, read};
use crate::ids::QpId;
use crate::payload::InPayload;

impl Engine {
    /// Takes the first record that lies in a ring, if it takes the fast path.
    pub(super) fn receive_by_fast_path(&mut self) -> bool {
        if !self.common.is_plain() {
            return false;
        }
        let Self { common, qps, receivers, clock, polls, .. } = self;
        let Some(inbound) = receivers.shm.busy() else { return false };
        let vf = inbound.peer().vf;
        let popped = inbound.pop_if(|record| {
            let Arrived { packet, source, dest, payload } = read(record)?;
            let entry = qps.by_number(dest)?;
            let context = &mut entry.context;
            if context.route.peer() != Some(vf) || context.dest_qpn != source {
                return None;
            }
            if let FastPacket::Send { .. } = packet {
                // For the acknowledgement.
                common.out.shm.expect_push(vf);
            }
            if common.stamps {
                common.now = clock.now();
            }
            let (id, now, length) = (context.id, common.now, payload.len() as u32);
            let payload = InPayload::Ring(payload);
            let env = &mut QpEnv::new(common, context);
            if !entry.qp.handle_fast(env, now, packet, &payload, length) {
                return None;
            }
            common.counters.rx_shm_packets += 1;
            polls.takes_turns = matches!(packet, FastPacket::Ack { .. });
            Some((id, entry.qp.owes_answers()))
        });
        // A ring that broke is the long way's to close.
        let Ok(Some((id, owes))) = popped else { return false };
        if owes {
            self.transmit(id);
        }
        self.common.out.shm.ring_doorbells();
        true
    }

    /// Puts a send on a QP's queue and sends it. Lists go by [`Engine::post_sends`] or
    /// [`Engine::queue_send`].
    #[doc(alias = "ibv_post_send")]
    #[inline]
    pub fn post_send<R: Request>(&mut self, id: QpId, request: R) -> Result<(), R::Error> {
        if self.is_dead() {
            return Err(PostError::Dead.into());
        }
        let Self { common, qps, clock, .. } = self;
        let Some(entry) = qps.get_mut(id) else {
            return Err(PostError::State(QpState::Reset).into());
        };
        let route = entry.context.route;
        if entry.queued || !(route.is_udp() || route.peer().is_some()) {
            entry.qp.post_send_with(|to| request.fill(to))?;
            self.kick(id);
            return Ok(());
        }
        let env = &mut QpEnv::new(common, &mut entry.context);
        let is_all = entry.qp.post_fast(env, request)?;
        if !is_all || !route.is_udp() {
            entry.qp.watch(|| clock.now());
        }
        if !is_all {
            self.kick(id);
        } else if route.is_udp() {
            entry.context.has_received = false;
            self.send_short_train(id);
        } else {
            self.polls.takes_turns |= entry.qp.sends() == 1;
            self.note_deadline(id);
            self.common.out.shm.ring_doorbells();
        }
        Ok(())
    }

    /// Sends the train that a packet of this QP just joined by the fast path, and starts its timer.
    ///
    /// The clock is read when the train is on its way, so that it does not wait for that. Whatever
    /// starts a timer or tells the time before reads it for itself: how long ago the last reading
    /// was nobody knows, and a timer that starts in the past may be over at once.
    fn send_short_train(&mut self, id: QpId) {
        let common = &mut self.common;
        common.now_is_stale = true;
        if !common.is_plain() || !common.out.loopback.is_empty() {
            common.catch_up(&self.clock);
        }
        self.release_delayed_acks();
        self.after_transmit();
        self.common.now_is_stale = false;
        self.common.now = self.clock.now();
        self.polls.looks = 0;
        self.judge_delayed_acks(End::Answered);
        if let Some(entry) = self.qps.get_mut(id) {
            entry.qp.watch(|| self.common.now);
        }
        self.note_deadline(id);
    }
}
