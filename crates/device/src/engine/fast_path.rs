//! The fast path of small messages (`transport::FastPacket`).
//!
//! A record in the ring is the same whichever path it takes at either end, and so is a datagram.
//! Here they are written without building headers, and recognised by comparing them with what would
//! have been written. Of several that arrive at once in a ring, one acknowledgement answers all.
//! Everything else takes the full path: packets that are recorded or tampered with, packets within
//! a process.

pub(super) mod datagram;

use iba::QpState;
use transport::wr::Request;
use transport::{AckWay, FastPacket, PostError};
use umem::Foreign;

use super::Engine;
use super::common::Common;
use super::delayed_acks::End;
use super::env::QpEnv;
use super::unasked_acks::UnaskedAcks;
use crate::carrier::Route;
use crate::carrier::fast_path::{Arrived, read};
use crate::clock::Clock;
use crate::counters::STAYS;
use crate::ids::QpId;
use crate::payload::InPayload;
use crate::qp::QpTable;

/// What took a record by the fast path.
pub(super) struct Took {
    pub(super) id: QpId,
    /// Whether it has something to send, or its timer may have changed.
    pub(super) owes: bool,
    is_ack: bool,
}

/// Gives a record of another process to its QP, if it can take the fast path. If not, nothing has
/// happened.
///
/// Observers do not see it: the caller makes sure that there are none.
#[inline]
pub(super) fn deliver_record(
    common: &mut Common,
    qps: &mut QpTable,
    unasked: &mut UnaskedAcks,
    clock: &Clock,
    vf: u16,
    record: Foreign<'_>,
    ack: AckWay,
) -> Option<Took> {
    let Arrived { packet, source, dest, payload } = read(record)?;
    let entry = qps.by_number(dest)?;
    let context = &mut entry.context;
    if context.route.peer() != Some(vf) || context.dest_qpn != source {
        return None;
    }
    let is_ack = matches!(packet, FastPacket::Ack { .. });
    if ack == AckWay::AtOnce {
        if matches!(packet, FastPacket::Send { ackreq: true, .. }) {
            // For the acknowledgement.
            common.out.shm.expect_push(vf);
        }
        if common.stamps {
            common.now = clock.now();
        }
    }
    let (id, now, length) = (context.id, common.now, payload.len() as u32);
    let payload = InPayload::Ring(payload);
    let env = &mut QpEnv::new(common, context);
    if !entry.qp.handle_fast(env, now, packet, (&payload, length), ack) {
        return None;
    }
    let counters = common.counters.of(entry.context.port);
    counters.rx_shm_packets += 1;
    counters.rx_bytes += u64::from(length) + STAYS;
    let owes = entry.qp.owes_answers() || is_ack && entry.qp.sends() > 0;
    if !is_ack && entry.qp.holds_ack() {
        unasked.note(entry);
    }
    Some(Took { id, owes, is_ack })
}

impl Common {
    /// Whether packets by this route may take the fast path.
    #[inline]
    pub(super) fn takes_fast(&self, route: Route) -> bool {
        self.is_plain() && (route.is_udp() || route.peer().is_some())
    }
}

impl Engine {
    /// Takes the first record in a ring, if it can take the fast path.
    pub(super) fn receive_by_fast_path(&mut self) -> bool {
        if !self.common.is_plain() {
            return false;
        }
        let Self { common, qps, receivers, schedule, clock, polls, .. } = self;
        let Some(inbound) = receivers.shm.busy() else { return false };
        let vf = inbound.peer().vf;
        let unasked = &mut schedule.unasked_acks;
        let popped = inbound.pop_if(|record| {
            deliver_record(common, qps, unasked, clock, vf, record, AckWay::AtOnce)
        });
        // The full path closes a ring that broke.
        let Ok(Some(Took { id, owes, is_ack })) = popped else { return false };
        polls.takes_turns = is_ack;
        if owes {
            self.transmit(id);
        }
        self.keep_unasked_acks();
        self.common.out.shm.ring_doorbells();
        true
    }

    /// Adds a send to a QP's queue and sends it. For lists, use [`Engine::post_sends`] or
    /// [`Engine::queue_send`].
    #[doc(alias = "ibv_post_send")]
    #[inline]
    pub fn post_send<R: Request>(&mut self, id: QpId, request: R) -> Result<(), R::Error> {
        if self.is_dead() {
            return Err(PostError::Dead.into());
        }
        let Self { common, qps, clock, schedule, .. } = self;
        let Some(entry) = qps.get_mut(id) else {
            return Err(PostError::State(QpState::Reset).into());
        };
        let route = entry.context.route;
        let is_full = route.peer().is_some_and(|vf| schedule.full.contains(&vf));
        if entry.queued || is_full || !common.takes_fast(route) {
            entry.qp.post_send_with(|to| request.fill(to))?;
            if !common.is_plain() {
                common.trace_posted(entry, 1, clock);
            }
            self.kick_posted(id);
            return Ok(());
        }
        let env = &mut QpEnv::new(common, &mut entry.context);
        let is_all = entry.qp.post_fast(env, request)?;
        if !is_all || !route.is_udp() {
            entry.qp.watch(|| clock.now());
        }
        if !is_all {
            if !self.holds(id) {
                self.kick_posted(id);
            }
        } else if route.is_udp() {
            entry.context.has_received = false;
            if self.holds_train(id) {
                self.watch_sends(id);
            } else {
                self.send_short_train(id);
            }
        } else {
            self.polls.takes_turns |= entry.qp.sends() == 1;
            self.note_deadline(id);
            self.common.out.shm.ring_doorbells();
        }
        Ok(())
    }

    /// Sends the train that a packet of this QP just joined by the fast path, and starts its timer.
    ///
    /// The clock is read when the train is on its way, so that the train does not wait for that.
    /// Code that starts a timer or needs the time before then reads the clock itself: the last
    /// reading may be old, and a timer that starts in the past may expire at once.
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

    /// Starts the timer of a QP whose packet waits in a train, unless it runs.
    fn watch_sends(&mut self, id: QpId) {
        let Self { qps, clock, .. } = self;
        if let Some(entry) = qps.get_mut(id) {
            entry.qp.watch(|| clock.now());
        }
        self.note_deadline(id);
    }
}
