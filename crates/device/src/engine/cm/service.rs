//! The state of connection management: endpoints, ports, connections, and datagrams that wait.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, VecDeque};

use ::cm::{Cm, ListenId, Local, Route as CmRoute, Transmit};
use iba::{Gid, PKey, Psn, Time};
use link::registry::{Directory, Holder, VF_COUNT};
use rustc_hash::FxHashMap;
use wire::cm::CommId;

use super::crowd::Crowd;
use super::endpoint::{Endpoint, Role};
use super::passed::Passed;
use super::ports::{self, Ports};
use crate::ids::CmId;
use crate::mad::Arrived;
use crate::objects::bell::Bells;
use crate::port::Nic;
use crate::random::random;
use crate::rdma_cm::EventKind;
use crate::refusal::{Result, refuse};
use crate::waits::Waits;

/// Communication ids are 10 bits of VF and 22 bits that count.
const COMM_VF_SHIFT: u8 = 22;
const _: () = assert!(VF_COUNT as u32 == 1 << (32 - COMM_VF_SHIFT as u32));

/// How long we take to acknowledge a packet: `4.096 us * 2^code`, as the kernel's rxe reports.
const ACK_DELAY: u8 = 15;
/// Endpoints of one process: as many QPs as its numbers allow, and listeners.
const MAX_ENDPOINTS: usize = 1 << 16;
/// Datagrams that wait for a carrier, or for the answer to which process listens.
pub(super) const MAX_UNSENT: usize = 4096;
/// Where to send a datagram on this host.
pub(super) enum Target {
    Vf(u16),
    /// Nobody listens: we answer for the host.
    Nobody,
    /// It is being determined.
    Asked,
}

/// The requests that wait for a listener.
#[derive(Debug, Default)]
pub(super) struct Unheard {
    /// Requests, and until when each waits.
    pub(super) waiting: VecDeque<(Time, Arrived)>,
    pub(super) look_at: Option<Time>,
}

impl Unheard {
    fn look_at(&self) -> Option<Time> {
        self.look_at
    }

    fn clear(&mut self) {
        *self = Self::default();
    }
}

/// The state of connection management in an engine.
#[derive(Debug)]
pub(crate) struct CmService {
    pub(super) cm: Cm,
    /// `None` where there are no descriptors left, and in a forked child.
    pub(crate) directory: Option<Directory>,
    pub(super) ports: Ports,
    /// By numbers of ours, as those of connections.
    pub(super) endpoints: FxHashMap<CmId, Box<Endpoint>>,
    next_id: u32,
    pub(super) by_conn: FxHashMap<CommId, CmId>,
    pub(super) by_listener: BTreeMap<ListenId, CmId>,
    pub(super) mads: Mads,
    /// Processes of this host that have just gone.
    pub(crate) lost: Vec<u16>,
}

/// Datagrams of QP 1 that wait, and where others were forwarded.
#[derive(Debug)]
pub(super) struct Mads {
    /// Those that wait for room, or for the answer to which process listens.
    pub(super) unsent: VecDeque<Transmit>,
    /// Datagrams from the wire that wait for that answer.
    pub(super) waiting: VecDeque<Arrived>,
    pub(super) unheard: Unheard,
    pub(super) crowded: Crowd,
    passed: Passed,
    psn: Psn,
}

impl CmService {
    pub(crate) fn new(nic: &Nic, waits: &Waits) -> Self {
        let random = random();
        let local = Local {
            ca_guid: nic.attr.node_guid,
            ack_delay: ACK_DELAY,
            pkey: PKey::DEFAULT,
            prefix: u32::from(nic.vf) << COMM_VF_SHIFT,
            index_bits: COMM_VF_SHIFT,
            // A peer may still know connections of a process that had our VF.
            start: random as u32,
        };
        let directory = Directory::new(&nic.config.name, nic.vf);
        let directory = directory
            .inspect_err(|error| tracing::warn!(target: "peerdma::cm", "no ports: {error}"))
            .inspect(|directory| waits.add_always(directory))
            .ok();
        Self {
            cm: Cm::new(local),
            directory,
            ports: Ports::default(),
            endpoints: FxHashMap::default(),
            next_id: 0,
            by_conn: FxHashMap::default(),
            by_listener: BTreeMap::new(),
            lost: Vec::new(),
            mads: Mads {
                unsent: VecDeque::new(),
                waiting: VecDeque::new(),
                unheard: Unheard::default(),
                crowded: Crowd::default(),
                passed: Passed::default(),
                psn: Psn::new((random >> 32) as u32),
            },
        }
    }

    pub(super) fn next_psn(&mut self) -> Psn {
        let psn = self.mads.psn;
        self.mads.psn = Psn::new(psn.value().wrapping_add(1));
        psn
    }

    pub(crate) fn next_deadline(&self) -> Option<Time> {
        self.cm.poll_timeout().into_iter().chain(self.mads.unheard.look_at()).min()
    }

    pub(crate) fn has_unsent(&self) -> bool {
        !self.mads.unsent.is_empty()
    }

    /// The device failed: notifies every endpoint, and frees the ports.
    pub(crate) fn fail(&mut self, bells: &mut Bells) {
        let mut all: Vec<_> = self.endpoints.iter_mut().collect();
        all.sort_unstable_by_key(|(id, _)| **id);
        for (id, endpoint) in all {
            endpoint.role = Role::Over;
            endpoint.tell(*id, EventKind::DeviceRemoval, bells);
        }
        self.directory = None;
        self.mads.unsent.clear();
        self.mads.waiting.clear();
        self.mads.unheard.clear();
        self.mads.crowded.clear();
    }

    /// In a forked child, gives up what belongs to the parent, without reporting anything.
    pub(crate) fn abandon_in_child(&mut self) {
        if let Some(directory) = self.directory.take() {
            directory.abandon_in_child();
        }
        self.mads.unsent.clear();
        self.mads.waiting.clear();
        self.mads.unheard.clear();
        self.mads.crowded.clear();
    }

    pub(super) fn get(&self, id: CmId) -> Result<&Endpoint> {
        match self.endpoints.get(&id) {
            Some(endpoint) => Ok(endpoint),
            None => refuse!(NotFound, "there is no endpoint {}", id.handle()),
        }
    }

    pub(super) fn get_mut(&mut self, id: CmId) -> Result<&mut Endpoint> {
        match self.endpoints.get_mut(&id) {
            Some(endpoint) => Ok(endpoint),
            None => refuse!(NotFound, "there is no endpoint {}", id.handle()),
        }
    }

    /// The connection of an endpoint.
    pub(super) fn conn(&self, id: CmId, call: &str) -> Result<CommId> {
        match self.get(id)?.role {
            Role::Conn(conn) => Ok(conn),
            role => {
                refuse!(Invalid, "{call}: endpoint {} is not a connection: {role:?}", id.handle())
            }
        }
    }

    /// Adds an endpoint. A number is reused only after all others.
    pub(super) fn insert(&mut self, endpoint: Endpoint) -> Result<CmId> {
        if self.endpoints.len() >= MAX_ENDPOINTS {
            refuse!(NoMemory, "this process has {} endpoints", MAX_ENDPOINTS);
        }
        loop {
            let id = CmId(self.next_id);
            self.next_id = self.next_id.wrapping_add(1);
            if let Entry::Vacant(free) = self.endpoints.entry(id) {
                free.insert(Box::new(endpoint));
                return Ok(id);
            }
        }
    }

    /// The process of this host that a message is for.
    pub(super) fn target(
        &mut self,
        vf: u16,
        from: Gid,
        route: CmRoute,
        id: Option<CommId>,
    ) -> Target {
        match route {
            CmRoute::Comm(id) => Target::Vf((id >> COMM_VF_SHIFT) as u16),
            CmRoute::Service(service, dst) => {
                if self.cm.has_listener(service, dst) {
                    return Target::Vf(vf);
                }
                let (Some(dst), Some(directory)) = (dst, &mut self.directory) else {
                    return Target::Nobody;
                };
                let names = [ports::name_of(service, dst), ports::any_name(service, dst.is_ipv4())];
                for name in names {
                    match directory.lookup(&name) {
                        Holder::Nobody => {}
                        Holder::Asked => return Target::Asked,
                        // We have the name but do not listen.
                        Holder::Vf(own) if own == vf => return Target::Nobody,
                        Holder::Vf(vf) => {
                            if let Some(id) = id {
                                self.mads.passed.remember(from, id, vf);
                            }
                            return Target::Vf(vf);
                        }
                    }
                }
                Target::Nobody
            }
            CmRoute::Unknown => {
                let known = id.and_then(|id| self.mads.passed.to(from, id));
                known.map_or(Target::Nobody, Target::Vf)
            }
        }
    }

    /// Keeps a datagram until it can be sent; without room it is lost, as datagrams may be. There
    /// is room for one of each connection of ours, but not for all that strangers make us answer.
    pub(super) fn keep_unsent(&mut self, transmit: Transmit) {
        let most = if transmit.conn.is_some() { MAX_ENDPOINTS } else { MAX_UNSENT };
        if self.mads.unsent.len() < most {
            self.mads.unsent.push_back(transmit);
        }
    }
}
