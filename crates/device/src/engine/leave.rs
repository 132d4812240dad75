//! What a QP still owes its peer when it goes away.

use std::time::Duration;

use super::Engine;
use super::env::Route;
use crate::ids::QpId;

/// How long a carrier without room is waited for. A peer that reads makes room in far less.
const LINGER: Duration = Duration::from_millis(100);

impl Engine {
    /// Sends the answers of a QP that wait for room in their carrier.
    ///
    /// A NIC has acknowledged a message before the program sees its completion, so the program may destroy the QP then.
    /// Here the acknowledgement may stand behind other bytes, and without it the peer would count the message as lost.
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
}
