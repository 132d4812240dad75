//! Connection management: endpoints over the communication manager, and QP 1 below it (see
//! [`crate::cm`]).
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
mod endpoint;
mod events;
mod gsi;
mod injected;
mod path;
mod ports;
#[cfg(test)]
mod tests;
mod unheard;

use std::collections::{BTreeMap, VecDeque};

use ::cm::{Cm, ListenId, Local, Transmit};
use iba::{PKey, Psn, Time};
use link::registry::{Directory, VF_COUNT};
use wire::cm::CommId;

use self::endpoint::{Endpoint, Role};
pub(crate) use self::gsi::Arrived;
pub(crate) use self::injected::HeldMad;
use self::ports::Ports;
use self::unheard::Unheard;
use super::Engine;
use super::core::Core;
use crate::cm::EventKind;
use crate::ids::CmId;
use crate::random::random;

/// Communication ids are 10 bits of VF and 22 bits that count.
const COMM_VF_SHIFT: u8 = 22;
const _: () = assert!(VF_COUNT as u32 == 1 << (32 - COMM_VF_SHIFT as u32));

/// How long we take to acknowledge a packet: `4.096 us * 2^code`, as the kernel's rxe says of
/// itself.
const ACK_DELAY: u8 = 15;
/// Endpoints of one process: as many QPs as its numbers allow, with listeners.
const MAX_ENDPOINTS: usize = 1 << 16;
/// Rounds in which a message of ours to ourselves is looked at before others have their turn.
const ROUNDS: usize = 16;

/// What connection management has in an engine.
#[derive(Debug)]
pub(crate) struct CmService {
    cm: Cm,
    /// `None` where there are no descriptors left, and in the child of a fork.
    pub(super) directory: Option<Directory>,
    ports: Ports,
    endpoints: BTreeMap<CmId, Endpoint>,
    next_id: u32,
    by_conn: BTreeMap<CommId, CmId>,
    by_listener: BTreeMap<ListenId, CmId>,
    /// Datagrams that wait for room, or for the answer who listens.
    unsent: VecDeque<Transmit>,
    /// Datagrams of the wire that wait for that answer.
    waiting: VecDeque<Arrived>,
    unheard: Unheard,
    remembered: VecDeque<gsi::Remembered>,
    /// Processes of this host that went away just now.
    pub(super) lost: Vec<u16>,
    psn: Psn,
}

impl CmService {
    pub(crate) fn new(core: &Core) -> Self {
        let random = random();
        let local = Local {
            ca_guid: core.nic.attr.node_guid,
            ack_delay: ACK_DELAY,
            pkey: PKey::DEFAULT,
            prefix: u32::from(core.nic.vf) << COMM_VF_SHIFT,
            index_bits: COMM_VF_SHIFT,
            // A peer may still know connections of a process that had our VF.
            start: random as u32,
        };
        let directory = Directory::new(&core.nic.config.name, core.nic.vf);
        let directory = directory
            .inspect_err(|error| tracing::warn!(target: "peerdma::cm", "no ports: {error}"))
            .inspect(|directory| core.out.shm.waits().add_always(directory))
            .ok();
        Self {
            cm: Cm::new(local),
            directory,
            ports: Ports::default(),
            endpoints: BTreeMap::new(),
            next_id: 0,
            by_conn: BTreeMap::new(),
            by_listener: BTreeMap::new(),
            unsent: VecDeque::new(),
            waiting: VecDeque::new(),
            unheard: Unheard::default(),
            remembered: VecDeque::new(),
            lost: Vec::new(),
            psn: Psn::new((random >> 32) as u32),
        }
    }

    fn next_psn(&mut self) -> Psn {
        let psn = self.psn;
        self.psn = Psn::new(psn.value().wrapping_add(1));
        psn
    }

    pub(crate) fn next_deadline(&self) -> Option<Time> {
        self.cm.poll_timeout().into_iter().chain(self.unheard.look_at()).min()
    }

    pub(crate) fn has_unsent(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// The device failed: every endpoint is told, and its ports are free.
    pub(crate) fn fail(&mut self) {
        for (id, endpoint) in &mut self.endpoints {
            endpoint.role = Role::Over;
            endpoint.tell(*id, EventKind::DeviceRemoval);
        }
        self.directory = None;
        self.unsent.clear();
        self.waiting.clear();
        self.unheard.clear();
    }

    /// Gives up, in the child of a fork, what is the parent's. Nothing is reported.
    pub(crate) fn abandon_in_child(&mut self) {
        if let Some(directory) = self.directory.take() {
            directory.abandon_in_child();
        }
        self.unsent.clear();
        self.waiting.clear();
        self.unheard.clear();
    }
}

impl Engine {
    /// Does what is due: datagrams in, timers, events out, datagrams out.
    pub(crate) fn run_cm(&mut self) -> bool {
        let now = self.core.now;
        let is_due = self.cm.next_deadline().is_some_and(|at| at <= now);
        if self.core.gsi.is_empty() && self.cm.unsent.is_empty() && !is_due {
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

    /// Lets what was just done have its effects.
    fn settle_cm(&mut self) -> bool {
        let mut moved = false;
        for _ in 0..ROUNDS {
            moved |= !self.core.gsi.is_empty();
            self.handle_arrived();
            self.deliver_cm_events();
            moved |= self.send_mads();
            if self.core.gsi.is_empty() {
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

    /// Answers who asks for our names, and looks again at what waited for an answer.
    pub(crate) fn poll_directory(&mut self) {
        let Some(directory) = &mut self.cm.directory else { return };
        if directory.poll() {
            self.core.gsi.extend(self.cm.waiting.drain(..));
        }
    }

    /// Connections of processes of this host that are gone have ended.
    pub(crate) fn cm_peers_gone(&mut self, vfs: &[u16]) {
        // What they said last is still in the queue.
        self.handle_arrived();
        let now = self.core.now;
        for vf in vfs {
            for gid in &self.core.nic.port.gids {
                self.cm.cm.peer_gone(now, *gid, *vf);
            }
        }
        self.settle_cm();
    }
}
