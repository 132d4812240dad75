//! What a QP still owes its peer when it is destroyed, and a device the other processes of its
//! host.

use std::time::{Duration, Instant};

use link::udp::Payloads;

use super::Engine;
use super::deliver::{Arrival, Way, count_arrived, deliver_datagram, flow_of, is_for};
use crate::engine::Turn;
use crate::ids::QpId;

/// How long to wait for a carrier without room. A peer that reads makes room much sooner.
const LINGER: Duration = Duration::from_millis(100);

/// How long to wait for processes to which a device that ends forwarded datagrams. They take them
/// at once unless they are stopped, or the machine is overloaded.
const TAKEN: Duration = Duration::from_millis(500);

impl Engine {
    /// Sends the answers of a QP that wait for room in their carrier.
    ///
    /// A NIC has acknowledged a message before the program sees its completion, so the program may
    /// destroy the QP then. Here the acknowledgement may be queued after other bytes, and without
    /// it the peer would count the message as lost.
    pub(super) fn settle(&mut self, id: QpId) {
        let began = self.clock.now();
        if let Some(entry) = self.qps.get_mut(id)
            && entry.qp.holds_ack()
        {
            entry.qp.release_ack();
        }
        while let Some(entry) = self.qps.get(id)
            && entry.qp.owes_answers()
            && !self.is_dead()
        {
            let route = entry.context.route;
            let now = self.clock.now();
            // Do not wait again and again for a peer that does not read.
            let is_stalled = route.peer().is_some_and(|vf| self.common.out.shm.is_stalled(vf, now));
            if route.is_none() || is_stalled || now.since(began) >= LINGER {
                tracing::debug!(target: "peerdma::drop", qp = id.0, "destroyed before it answered");
                return;
            }
            self.make_ready(id);
            if !self.progress(Turn::Everything) {
                std::thread::yield_now();
            }
        }
    }

    /// Gives up the UDP port without losing packets for others: nothing new arrives, waiting
    /// packets are forwarded, and their receivers have taken them when this returns, unless one is
    /// stopped. For a device that ends.
    pub(crate) fn leave_port(&mut self) {
        self.flush_udp();
        if self.common.out.udp.is_deaf() || !self.receivers.udp.leave_port() {
            return;
        }
        self.pass_on_what_waits();
        self.common.out.shm.ring_doorbells();
        let began = Instant::now();
        while self.common.out.shm.passes_on() && began.elapsed() < TAKEN {
            std::thread::sleep(Duration::from_micros(50));
        }
        self.receivers.udp.close();
    }

    /// Takes what waits at the sockets. Packets for others are forwarded; packets for us are too
    /// late.
    fn pass_on_what_waits(&mut self) {
        let Self { common, qps, receivers, clock, .. } = self;
        common.catch_up(clock);
        receivers.udp.drain(|about, train, intake| {
            count_arrived(common, qps, about, train.payloads());
            let Some(flow) = flow_of(common, about, train.len()) else { return };
            let arrival = Arrival { way: Way::Socket, about, flow: &flow, clock };
            let own = common.nic.vf;
            for bytes in train.payloads().filter(|bytes| !is_for(own, bytes)) {
                deliver_datagram(common, qps, intake, arrival, &mut Payloads::one(bytes));
            }
        });
    }
}
