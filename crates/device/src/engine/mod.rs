//! The engine: every object of one process, and the progress of its QPs.
//!
//! One lock guards it ([`crate::Hca::lock`]). Inside, three parts are borrowed separately so that a
//! QP can run with the rest at hand: the table of QPs, the receiving halves of the carriers
//! ([`Receivers`]), and [`Common`], which a QP reaches through [`QpEnv`]. The lower layers do not
//! know the engine (docs/ARCHITECTURE.md, "The layers of `device`").
//!
//! ```text
//!   post_send -> QP -> poll_transmit -> QpEnv::transmit -> loopback | ring of a peer | UDP batch
//!   progress  -> rings, UDP, loopback -> QP::handle_packet -> CQ, and what the QP now has to send
//! ```

mod acks;
mod advise;
pub(crate) mod alarm;
mod api_mem;
mod api_qp;
mod api_queue;
mod at_hand;
pub(crate) mod cm;
pub(crate) mod common;
mod comp_cntr;
pub(crate) mod delayed_acks;
mod deliver;
mod descriptors;
mod direct;
pub(crate) mod early;
mod env;
mod explain;
mod failures;
mod fast_path;
mod give;
mod held;
mod housekeeping;
mod leave;
mod multicast;
mod netdev;
mod null;
mod observed;
mod overrun;
mod pinned;
mod present;
mod progress;
mod publish;
pub(crate) mod raw;
mod receive;
mod rereg;
mod resources;
mod share;
pub(crate) mod state;
#[cfg(test)]
mod tests;
mod tm;
mod unasked_acks;
mod view;
mod window;
mod within;
mod xrc;

use std::cmp::Reverse;
use std::mem;

use transport::{Poll, Time};

pub use self::advise::MrAdvice;
pub use self::api_mem::MrInfo;
pub use self::api_qp::QpSpec;
use self::cm::CmService;
use self::common::Common;
pub use crate::objects::comp_cntr::{CompCntrEntry, CompCntrType};
pub use crate::objects::cq::Wc;
pub use crate::objects::{AsyncEvent, EventSource};

use self::delayed_acks::DelayedAcks;
use self::env::QpEnv;
use self::held::Held;
pub use self::observed::set_weather;
pub use self::progress::Turn;
pub use self::raw::WqState;
pub use self::rereg::Rereg;
pub use self::resources::Resources;
use self::state::{Alarm, Descriptors, Life, Polls, Schedule};
use crate::attr::{DeviceAttr, GidEntry, PortAttr};
use crate::carrier::Receivers;
use crate::carrier::udp::{Look, UdpQueue};
use crate::clock::Clock;
use crate::ids::QpId;
pub use crate::memory::mr::MrKind;
pub use crate::memory::window::MwType;
pub use crate::objects::tags::{TagOp, TagOpKind};
use crate::qp::{QpEntry, QpTable, vf_of};

/// Everything of one process on one NIC.
#[derive(Debug)]
pub struct Engine {
    /// Dropped before another process can have the VF of `common`: peers with a ring to this
    /// process would forward packets for that one here.
    pub(crate) receivers: Receivers,
    pub(crate) common: Common,
    pub(crate) qps: QpTable,
    pub(crate) cm: CmService,
    pub(crate) clock: Clock,
    schedule: Schedule,
    pub(crate) delayed_acks: DelayedAcks,
    pub(crate) held: Held,
    polls: Polls,
    alarm: Alarm,
    descriptors: Descriptors,
    pub(crate) life: Life,
}

/// After this many timeouts in a row, packets to a peer leave from the usual port again: a network
/// may drop packets from other ports.
const SILENT: u32 = 2;
impl Engine {
    pub(crate) fn new(
        common: Common,
        qps: QpTable,
        receivers: Receivers,
        cm: CmService,
        clock: Clock,
    ) -> Self {
        Self {
            common,
            qps,
            receivers,
            cm,
            clock,
            schedule: Schedule::default(),
            delayed_acks: DelayedAcks::default(),
            held: Held::default(),
            polls: Polls::default(),
            alarm: Alarm::Awake,
            descriptors: Descriptors::default(),
            life: Life::Alive,
        }
    }

    /// The limits of the device.
    #[doc(alias = "ibv_query_device")]
    pub fn device_attr(&self) -> &DeviceAttr {
        &self.common.nic.attr
    }

    /// The state of the port.
    #[doc(alias = "ibv_query_port")]
    pub fn port_attr(&self) -> PortAttr {
        let attr = crate::nic::port_attr(&self.common.nic.port);
        PortAttr { active: attr.active && !self.common.is_port_down(), ..attr }
    }

    /// The number of a QP.
    pub fn qpn(&self, id: QpId) -> Option<iba::Qpn> {
        Some(self.qps.get(id)?.context.qpn)
    }

    /// The GIDs of the port.
    #[doc(alias = "ibv_query_gid_table")]
    pub fn gids(&self) -> Vec<GidEntry> {
        crate::nic::gid_entries(&self.common.nic.port)
    }

    /// The counters since the device was opened, of all its ports.
    pub fn counters(&self) -> crate::Counters {
        self.with_others(self.common.counters.sum())
    }

    /// The same of each port, from the first on. What belongs to no QP is counted on the first.
    pub fn port_counters(&self) -> Vec<crate::Counters> {
        let counters = &self.common.counters;
        let first = self.with_others(counters.first);
        std::iter::once(first).chain(counters.others().iter().copied()).collect()
    }

    /// Counters with what is counted elsewhere.
    fn with_others(&self, mut counters: crate::Counters) -> crate::Counters {
        // Exporters invalidate mappings without the engine, so those of existing regions are
        // counted in the regions.
        let regions = self.common.memory.mrs.ids().filter_map(|id| self.common.memory.mrs.get(id));
        let imports = regions.filter_map(|mr| mr.import.as_ref());
        counters.page_invalidations += imports.map(|import| import.invalidations()).sum::<u64>();
        counters.set_of_process();
        counters
    }

    /// The time of the device's clock in nanoseconds, as completions report it.
    pub fn clock_nanos(&self) -> u64 {
        self.clock.now().as_nanos()
    }

    /// The same time on the wall clock, in nanoseconds since 1970.
    #[doc(alias = "IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK")]
    pub fn wall_nanos(&mut self, timestamp: u64) -> u64 {
        self.clock.wall(Time::from_nanos(timestamp))
    }

    /// Whether the engine is the husk in a forked child (see [`crate::fork`]).
    pub fn is_husk(&self) -> bool {
        self.life == Life::Husk
    }

    /// In a forked child, gives up everything that belongs to the parent.
    pub(crate) fn become_husk(&mut self) {
        self.life = Life::Husk;
        // The parent rings them.
        drop(self.common.objects.bells.take());
        self.common.abandon_records();
        self.common.memory.abandon_in_child();
        self.common.charges.abandon_in_child();
        self.receivers.abandon_in_child();
        self.common.out.ether.abandon_in_child();
        self.cm.abandon_in_child();
        self.common.out.shm.abandon_in_child();
        self.common.detach_event_queues();
        self.stop();
    }

    /// Drops all pending work.
    pub(crate) fn stop(&mut self) {
        self.common.out.loopback.clear();
        self.common.waiting.gsi.clear();
        self.common.objects.due.moderated.clear();
        self.delayed_acks.clear();
        self.schedule.clear();
    }

    fn make_ready(&mut self, id: QpId) {
        if let Some(entry) = self.qps.get_mut(id)
            && !entry.queued
        {
            entry.queued = true;
            self.schedule.ready.push_back(id);
        }
    }

    /// Lets one QP send. Returns false if its carrier has no room.
    fn transmit(&mut self, id: QpId) -> bool {
        let Self { common, qps, delayed_acks, schedule, clock, .. } = self;
        let Some(entry) = qps.get_mut(id) else { return true };
        delayed_acks.note_receive(entry, common.now, common.now_is_stale);
        if entry.qp.has_unsent() {
            common.catch_up(clock);
        }
        let now = common.now;
        let burst = entry.context.route.burst();
        let poll = if schedule.is_full_for(entry) {
            Poll::Blocked
        } else {
            let mut env = QpEnv::new(common, &mut entry.context);
            entry.qp.poll_transmit(&mut env, now, burst)
        };
        if entry.qp.holds_ack() {
            schedule.unasked_acks.note(entry);
        }
        let keeps_answers = entry.qp.keeps_answers();
        if keeps_answers && self.give_again(id) {
            self.make_ready(id);
        }
        self.note_deadline(id);
        match poll {
            Poll::Idle => {}
            Poll::More => self.make_ready(id),
            Poll::Blocked if self.makes_room() => {
                self.make_ready(id);
                return true;
            }
            Poll::Blocked => {
                let entry = self.qps.get_mut(id).expect("the QP was found above");
                self.schedule.wait_for_room(entry);
            }
        }
        poll != Poll::Blocked
    }

    /// Whether the queue of trains is full, as a QP that cannot go on may have filled it, and has
    /// room again at once. A few of the longest trains fill it before the QP had its turn, and the
    /// socket may take them all. A QP of datagrams that waits for a ring instead tries once more.
    fn makes_room(&mut self) -> bool {
        if !self.common.out.udp.is_full() {
            return false;
        }
        self.flush_full_udp();
        !self.common.out.udp.is_full()
    }

    /// Makes sure that a QP's timer is checked when it is due.
    #[inline]
    fn note_deadline(&mut self, id: QpId) {
        let Some(entry) = self.qps.get_mut(id) else { return };
        if let Some(at) = entry.qp.poll_timeout()
            && entry.deadline.is_none_or(|known| at < known)
        {
            entry.deadline = Some(at);
            self.schedule.timers.push(Reverse((at, id.0)));
        }
    }

    /// Passes on what a transmission left in the carriers that have no reader of their own.
    fn after_transmit(&mut self) {
        self.pass_on_here();
        if self.common.out.udp.front().is_some() {
            if self.schedule.ready.is_empty() {
                self.flush_udp();
            } else {
                // A QP in the ready queue continues in a moment, and may fill the last train.
                self.flush_full_udp();
            }
        }
        self.common.out.shm.ring_doorbells();
    }

    /// The same after a request was posted, but the last train may wait for the next one.
    fn after_post(&mut self, id: QpId) {
        let is_train = self.common.out.udp.front().is_some() && self.schedule.ready.is_empty();
        if is_train && self.common.is_plain() && self.holds_train(id) {
            self.pass_on_here();
            self.common.out.shm.ring_doorbells();
        } else {
            self.after_transmit();
        }
    }

    /// Passes on what stays in this process.
    fn pass_on_here(&mut self) {
        self.run_observers();
        while !self.common.out.loopback.is_empty() {
            self.deliver_loopback(64);
        }
    }

    /// Sends the datagrams that wait for the sockets; what these do not take now keeps waiting.
    fn flush_udp(&mut self) {
        self.send_trains(|_| true);
        self.forget_train();
    }

    /// Sends the trains that will not grow any more.
    fn flush_full_udp(&mut self) {
        self.send_trains(UdpQueue::has_full);
    }

    fn send_trains(&mut self, is_due: impl Fn(&UdpQueue) -> bool) {
        if !self.may_use_udp() {
            return;
        }
        self.common.send_trains(&mut self.receivers.udp, is_due);
    }

    fn run_ready(&mut self) -> bool {
        if !self.schedule.blocked.is_empty() {
            for id in mem::take(&mut self.schedule.blocked) {
                self.schedule.ready.push_back(id);
            }
        }
        let mut left = self.schedule.ready.len();
        if left == 0 && self.common.out.loopback.is_empty() {
            return false;
        }
        let mut moved = false;
        self.schedule.full.clear();
        // QPs that need not try, as their ring is full. They are first next time.
        let mut passed_over = Vec::new();
        while left > 0 {
            left -= 1;
            let Some(id) = self.schedule.ready.pop_front() else { break };
            let Some(entry) = self.qps.get_mut(id) else { continue };
            if self.schedule.is_full_for(entry) {
                passed_over.push(id);
                continue;
            }
            entry.queued = false;
            moved |= self.transmit(id);
            if let Some(vf) = self.qps.get(id).and_then(QpEntry::waits_for_ring) {
                self.schedule.note_full(vf);
            }
            self.flush_full_udp();
        }
        if !passed_over.is_empty() {
            passed_over.append(&mut self.schedule.blocked);
            self.schedule.blocked = passed_over;
        }
        self.after_transmit();
        moved
    }

    /// Fires the timers that are due, and does nothing else.
    pub(crate) fn progress_of_timers(&mut self) {
        if !self.is_dead() {
            self.common.now = self.clock.now();
            self.carry_out_overdue();
            self.fire_timers();
        }
    }

    /// Drops deadlines that no longer apply, so that nobody prepares to fire them.
    fn drop_met_deadlines(&mut self, now: Time) {
        while let Some(Reverse((at, index))) = self.schedule.timers.peek().copied()
            && at <= now
        {
            let id = QpId(index);
            if let Some(entry) = self.qps.get_mut(id)
                && entry.deadline == Some(at)
            {
                if entry.qp.poll_timeout().is_some_and(|due| due <= now) {
                    return;
                }
                entry.deadline = None;
            }
            self.schedule.timers.pop();
            self.note_deadline(id);
        }
    }

    fn fire_timers(&mut self) -> bool {
        let now = self.common.now;
        self.drop_met_deadlines(now);
        if self.next_deadline().is_none_or(|at| at > now) {
            return false;
        }
        // A process that did not run for a while has a queue of packets: those that are already
        // there came in time, even from a peer whose ring is not known yet.
        if self.schedule.timers.peek().is_some_and(|Reverse((at, _))| *at <= now) {
            self.housekeeping();
        }
        let mut rounds = 0;
        while rounds < 16 && (self.receive_local() | self.receive_udp(Look::Everywhere)) {
            rounds += 1;
        }
        let mut fired = false;
        while let Some(Reverse((at, index))) = self.schedule.timers.peek().copied() {
            if at > now {
                break;
            }
            self.schedule.timers.pop();
            let id = QpId(index);
            let Self { common, qps, .. } = self;
            let Some(entry) = qps.get_mut(id) else { continue };
            if entry.deadline != Some(at) {
                continue;
            }
            entry.deadline = None;
            if entry.qp.poll_timeout().is_some_and(|due| due <= now) {
                let (peer, position) = (entry.context.route.peer(), entry.context.ring_position);
                let unread = peer.filter(|vf| common.out.shm.has_unread(*vf, position));
                if let Some(vf) = unread {
                    // Nothing new is pushed in the meantime.
                    common.out.shm.ring_later(vf);
                }
                entry.context.peer_is_behind = unread.is_some();
                entry.qp.handle_timeout(&mut QpEnv::new(common, &mut entry.context), now);
                fired = true;
                if entry.context.route.is_udp() && entry.qp.timeouts_in_a_row() == SILENT {
                    let (peer, dest) = (entry.context.av.dgid, entry.context.dest_qpn);
                    self.receivers.udp.leave_tx_sockets(
                        &mut self.common.out.udp,
                        peer,
                        vf_of(dest),
                    );
                }
            }
            self.transmit(id);
        }
        fired |= self.common.report_overdue();
        fired |= self.end_qps_of_overruns();
        fired |= self.run_observers();
        fired |= self.run_cm();
        if fired {
            self.after_transmit();
        }
        fired
    }
}
