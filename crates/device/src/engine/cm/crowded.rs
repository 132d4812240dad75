//! Requests of this host's processes that wait until their listener has room.
//!
//! The kernel drops a request beyond the backlog, and its sender asks again after seconds; so do we
//! with those of other hosts. Between processes of one host nothing is lost on the way, and a
//! program that makes thousands of connections at once would only wait: here a request stays until
//! the program has taken one before it.

use std::time::Duration;

use ::cm::{Ignored, Route};

use super::crowd::Request;
use super::gsi::route_of;
use crate::engine::Engine;
use crate::mad::Arrived;

/// How long one may wait. By then its sender has repeated it, unless it asked us to hurry.
const PATIENCE: Duration = Duration::from_secs(4);

impl Engine {
    /// Does what is left to do with a message that the communication manager ignored. Returns
    /// whether it had a purpose after all.
    pub(super) fn save_ignored(&mut self, arrived: Arrived, ignored: Ignored) -> bool {
        // Datagrams may be anybody's, and are not kept.
        if arrived.from.via.is_none() || arrived.whole.is_some() {
            return false;
        }
        let crowded = &mut self.cm.mads.crowded;
        match (ignored, route_of(&arrived.mad)) {
            (Ignored::Backlog(_), Some((Route::Service(service, dst), Some(id)))) => {
                let until = self.common.now + PATIENCE;
                let listener = self.cm.cm.listener(service, dst);
                listener.is_some_and(|at| crowded.push(at, Request { until, id, arrived }))
            }
            (Ignored::NoConnection(_), Some((Route::Unknown, Some(id)))) => {
                crowded.take_back(arrived.from, id)
            }
            _ => false,
        }
    }

    /// Handles requests that waited, as far as there is room.
    pub(super) fn admit_crowded(&mut self) {
        if self.cm.mads.crowded.is_empty() {
            return;
        }
        let listeners: Vec<_> = self.cm.mads.crowded.listeners();
        for listener in listeners {
            while self.cm.cm.has_room(listener) {
                let Some(request) = self.cm.mads.crowded.pop(listener) else { break };
                if request.until > self.common.now {
                    self.handle_mad(request.arrived);
                }
            }
        }
    }
}
