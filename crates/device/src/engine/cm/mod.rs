//! Connection management: endpoints over the communication manager, and QP 1 below it (see
//! [`crate::rdma_cm`]).
//!
//! ```text
//!   cm_connect, cm_accept, ...          Sink::deliver
//!          |                                 ^
//!     endpoints, ports                    events
//!          |                                 |
//!          +-------> ::cm::Cm, sans-IO ------+
//!                        |    ^
//!                     gsi: QP 1, to and from every carrier
//! ```

mod bind;
mod call;
mod crowd;
mod crowded;
mod describe;
mod endpoint;
mod events;
mod gsi;
mod passed;
mod path;
mod ports;
mod service;
#[cfg(test)]
mod tests;
mod unheard;

pub(crate) use self::service::CmService;
use super::Engine;

/// How many rounds of messages from us to ourselves are processed before others have their turn.
const ROUNDS: usize = 16;

impl Engine {
    /// Does what is due: datagrams in, timers, events out, datagrams out.
    pub(super) fn run_cm(&mut self) -> bool {
        let now = self.common.now;
        let is_due = self.cm.next_deadline().is_some_and(|at| at <= now);
        if self.common.waiting.gsi.is_empty() && self.cm.mads.unsent.is_empty() && !is_due {
            return false;
        }
        if is_due {
            self.cm.cm.handle_timeout(now);
            self.look_for_listeners();
        }
        let moved = self.settle_cm() || is_due;
        if moved {
            self.after_transmit();
        }
        moved
    }

    /// Carries out the effects of what was just done.
    fn settle_cm(&mut self) -> bool {
        let mut moved = false;
        for _ in 0..ROUNDS {
            moved |= !self.common.waiting.gsi.is_empty();
            self.handle_arrived();
            self.admit_crowded();
            self.deliver_cm_events();
            moved |= self.send_mads();
            if self.common.waiting.gsi.is_empty() {
                break;
            }
        }
        moved
    }

    /// After a call of the program.
    fn cm_called(&mut self) {
        self.settle_cm();
        self.after_transmit();
    }

    /// Answers processes that ask for our names, and rechecks what waited for an answer.
    pub(super) fn poll_directory(&mut self) {
        let Some(directory) = &mut self.cm.directory else { return };
        if directory.poll() {
            self.common.waiting.gsi.extend(self.cm.mads.waiting.drain(..));
        }
    }

    /// Whether processes of this host have just gone, whose connections end soon.
    pub(crate) fn has_lost_peers(&self) -> bool {
        !self.cm.lost.is_empty()
    }

    /// Ends the connections of processes of this host that are gone.
    pub(super) fn cm_peers_gone(&mut self, vfs: &[u16]) {
        // Their last messages are still in the queue.
        self.handle_arrived();
        let now = self.common.now;
        for vf in vfs {
            self.cm.mads.crowded.forget_process(*vf);
            for gid in &self.common.nic.port.gids {
                self.cm.cm.peer_gone(now, *gid, *vf);
            }
        }
        self.settle_cm();
    }
}
