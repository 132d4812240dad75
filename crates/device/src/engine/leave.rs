//! What a QP still owes its peer when it goes away, and a device the other processes of its host.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use link::udp::Payloads;

use super::Engine;
use super::deliver::{Arrival, Way, deliver_datagram, flow_of, is_for};
use super::env::Route;
use super::peers::About;
use super::receivers::Receivers;
use crate::ids::QpId;

/// How long a carrier without room is waited for. A peer that reads makes room in far less.
const LINGER: Duration = Duration::from_millis(100);

/// How long those are waited for to whom a device that ends passed something on. They take it at
/// once unless they are stopped, or the machine has too much to do.
const TAKEN: Duration = Duration::from_millis(500);

impl Engine {
    /// Sends the answers of a QP that wait for room in their carrier.
    ///
    /// A NIC has acknowledged a message before the program sees its completion, so the program may
    /// destroy the QP then. Here the acknowledgement may stand behind other bytes, and without it
    /// the peer would count the message as lost.
    pub(crate) fn settle(&mut self, id: QpId) {
        let began = self.clock.now();
        while let Some(entry) = self.qps.get(id)
            && entry.qp.owes_answers()
            && !self.is_dead()
        {
            let route = entry.facts.route;
            let now = self.clock.now();
            // One that does not read is not waited for again and again.
            let is_stalled = matches!(route, Route::Shm(vf) if self.core.peers.is_stalled(vf, now));
            if route == Route::None || is_stalled || now.since(began) >= LINGER {
                tracing::debug!(target: "peerdma::drop", qp = id.0, "destroyed before it answered");
                return;
            }
            self.make_ready(id);
            if !self.progress_fully() {
                std::thread::yield_now();
            }
        }
    }

    /// Gives the UDP port up so that nothing is lost that is for others: nothing new comes, what
    /// waits is passed on, and those whom it is for have taken it when this returns, unless one is
    /// stopped. For a device that ends.
    pub(crate) fn leave_port(&mut self) {
        self.flush_udp();
        let Some(udp) = self.receivers.udp.as_mut().filter(|_| !self.core.is_deaf) else { return };
        udp.leave_port();
        let began = Instant::now();
        // Twice in a row nothing: an inlet may have waited for the shared socket.
        let mut idle = 0;
        while idle < 2 && began.elapsed() < LINGER {
            idle = if self.pass_on_what_waits() { 0 } else { idle + 1 };
        }
        self.core.peers.ring_doorbells();
        while self.core.peers.passes_on() && began.elapsed() < TAKEN {
            std::thread::sleep(Duration::from_micros(50));
        }
        self.receivers.udp = None;
    }

    /// Takes what waits at the sockets. What is for others is passed on; what is for us comes too
    /// late.
    fn pass_on_what_waits(&mut self) -> bool {
        let Self { core, qps, receivers, clock, .. } = self;
        let Receivers { udp, verifier, .. } = receivers;
        let Some(udp) = udp else { return false };
        let port = udp.port();
        core.catch_up(clock);
        let mut some = false;
        let received = udp.recv_trains(&mut |train| {
            some = true;
            let about = About {
                src: train.src,
                dst: SocketAddr::new(train.dst, port),
                traffic_class: train.traffic_class,
                hop_limit: train.hop_limit,
            };
            let Some(flow) = flow_of(core, &about, train.len()) else { return };
            let arrival = Arrival { way: Way::Socket, about: &about, flow: &flow, clock };
            let own = core.vf;
            for bytes in train.payloads().filter(|bytes| !is_for(own, bytes)) {
                deliver_datagram(core, qps, verifier, arrival, &mut Payloads::one(bytes));
            }
        });
        some && received.is_ok()
    }
}
