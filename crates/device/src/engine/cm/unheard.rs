//! Requests without a listener yet.
//!
//! Some programs agree by other means that one of them is about to listen, and then the other
//! connects (perftest with `-R`, whose retry does not work). A request through hardware takes
//! longer than a call to listen; here the request often arrives first. So a request without a
//! listener is refused only if there is still none a moment later.

use std::time::Duration;

use ::cm::{Peer, Route, Transmit};

use super::gsi::route_of;
use super::service::Target;
use crate::engine::Engine;
use crate::mad::Arrived;

/// How long a request waits for a listener: longer than a busy machine delays the next call of a
/// program, and short compared with the 4.3 s after which its sender retries.
pub(super) const PATIENCE: Duration = Duration::from_millis(200);
/// How often requests that wait are checked.
const LOOK: Duration = Duration::from_millis(10);
/// How many may wait. Requests beyond that are refused at once.
const MAX: usize = 64;

impl Engine {
    /// Keeps a request that no listener of this process accepts. Returns a message that is not a
    /// request.
    pub(super) fn wait_for_listener(&mut self, arrived: Arrived) -> Option<Arrived> {
        let Some((Route::Service(service, dst), _)) = route_of(&arrived.mad) else {
            return Some(arrived);
        };
        let unheard = &mut self.cm.mads.unheard;
        if self.cm.cm.has_listener(service, dst) || unheard.waiting.len() >= MAX {
            return Some(arrived);
        }
        let now = self.common.now;
        unheard.waiting.push_back((now + PATIENCE, arrived));
        unheard.look_at.get_or_insert(now + LOOK);
        None
    }

    /// Checks whether a process listens now, and refuses requests that have waited long enough.
    pub(super) fn look_for_listeners(&mut self) {
        let now = self.common.now;
        if self.cm.mads.unheard.look_at.is_none_or(|at| at > now) {
            return;
        }
        for _ in 0..self.cm.mads.unheard.waiting.len() {
            let Some((until, arrived)) = self.cm.mads.unheard.waiting.pop_front() else { break };
            let Some((Route::Service(service, dst), Some(id))) = route_of(&arrived.mad) else {
                continue;
            };
            if self.cm.cm.has_listener(service, dst) || until <= now {
                self.take_mad(arrived);
                continue;
            }
            let Some(arrived) = self.pass_on(arrived) else { continue };
            let own = self.common.nic.vf;
            let from = arrived.from;
            if arrived.whole.is_some() || from.via != Some(own) {
                self.cm.mads.unheard.waiting.push_back((until, arrived));
                continue;
            }
            // A request of ours for another process of this host.
            let route = Route::Service(service, dst);
            if self.cm.cm.state(id).is_none() {
                continue;
            }
            match self.cm.target(own, from.remote, route, Some(id)) {
                Target::Vf(vf) if vf != own => {
                    let peer = Peer { local: from.remote, remote: from.local, via: None };
                    self.send_mad(Transmit { peer, route, conn: Some(id), mad: arrived.mad });
                }
                _ => self.cm.mads.unheard.waiting.push_back((until, arrived)),
            }
        }
        let unheard = &mut self.cm.mads.unheard;
        unheard.look_at = (!unheard.waiting.is_empty()).then(|| now + LOOK);
    }
}
