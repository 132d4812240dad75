//! What the engine says of its objects to another process of its user: the kernel's restrack, for
//! one process.

use std::net::SocketAddr;

use iba::{Av, QpType};
use link::registry::{Asker, Claim};
use view::LIST_MAX;

use super::Engine;
use crate::carrier::Route;
use crate::ids::{CqId, PdId};
use crate::memory::mr::{Mr, MrKind};
use crate::objects::Srq;
use crate::objects::cq::Cq;
use crate::qp::QpEntry;

/// Failures that are told, of those that are remembered.
const FAILURES: usize = 16;

/// Types of shared receive queues (`enum ib_srq_type`).
const SRQ_BASIC: u8 = 0;
const SRQ_XRC: u8 = 1;
const SRQ_TM: u8 = 2;

/// What a process counted until its end.
pub(crate) struct LastWords {
    nic: String,
    process: view::Process,
}

impl LastWords {
    /// Leaves it. The engine's lock is not needed.
    pub(crate) fn leave(self) {
        let Self { nic, process } = self;
        if let Err(error) = view::leave(&nic, process) {
            tracing::info!(target: "peerdma::peer", %error, "the port forgets what was counted");
        }
    }
}

impl Engine {
    /// Answers processes that asked for our objects.
    pub(super) fn show_objects(&self, askers: Vec<Asker>) {
        if askers.is_empty() {
            return;
        }
        let bytes = self.view().encode();
        for asker in askers {
            if let Err(error) = asker.show(&bytes) {
                tracing::info!(target: "peerdma::peer", %error, "our objects cannot be shown");
            }
        }
    }

    /// Which process this is, and what it counted.
    fn counted(&self) -> view::Process {
        let common = &self.common;
        let counter = |(name, value): (&str, u64)| view::Counter { name: name.to_owned(), value };
        let mut ports = self.port_counters().into_iter();
        let first = ports.next().unwrap_or_default();
        let others = (2..).zip(ports).map(|(number, counters)| {
            let counters = counters.iter().filter(|(_, value)| *value > 0).map(counter);
            view::Port { number, counters: counters.collect() }
        });
        view::Process {
            vf: common.nic.vf,
            pid: std::process::id(),
            nonce: common.out.shm.claim.as_ref().map_or(0, |claim| Claim::probe(claim).value),
            ifindex: common.nic.port.ifindex,
            counters: first.iter().map(counter).collect(),
            other_ports: others.filter(|port| !port.counters.is_empty()).collect(),
            ..view::Process::default()
        }
    }

    /// What it leaves with those that keep the port's counters when it ends; nothing in a forked
    /// child, whose counters are the parent's, and without a claim, as nobody sees it then.
    pub(crate) fn last_words(&self) -> Option<LastWords> {
        let is_seen = !self.is_husk() && self.common.out.shm.claim.is_some();
        is_seen.then(|| LastWords {
            nic: self.common.nic.config.name.clone(),
            process: self.counted(),
        })
    }

    /// The objects of this process on the NIC.
    pub(crate) fn view(&self) -> view::Process {
        let common = &self.common;
        let objects = &common.objects;
        let mut process = self.counted();
        let left_out = &mut process.left_out;
        let contexts = objects.ctxs.iter().map(|(id, _)| view::Context { id: id as u32 });
        process.contexts = some(contexts, left_out);
        let pds = objects.pds.iter().map(|(id, pd)| view::Pd {
            id: id as u32,
            context: pd.ctx.handle(),
            users: (pd.uses.count() + pd.handles) as u64,
        });
        process.pds = some(pds, left_out);
        process.cqs = some(objects.cqs.iter().map(|(id, cq)| describe_cq(id, cq)), left_out);
        process.qps = some(self.qps.iter().map(|entry| self.describe_qp(entry)), left_out);
        let mrs = &common.memory.mrs;
        // Processes of one user may be kept from each other's memory (Yama, set-group-ID), and with
        // a key they would reach it. Root's are not.
        let tells_keys = rustix::process::geteuid().is_root();
        let mrs =
            mrs.ids().filter_map(|id| Some(describe_mr(id.handle(), mrs.get(id)?, tells_keys)));
        process.mrs = some(mrs, left_out);
        process.srqs = some(objects.srqs.iter().map(|(id, srq)| describe_srq(id, srq)), left_out);
        process.cm_ids = some(self.cm.describe(), left_out);
        // A text with control characters is refused as a whole.
        let clean = |words: &str| words.chars().filter(|c| !c.is_control()).collect();
        // They name keys of peers.
        if tells_keys {
            process.failures = common.failures.latest(FAILURES).map(clean).collect();
        }
        process
    }

    fn describe_qp(&self, entry: &QpEntry) -> view::Qp {
        let context = &entry.context;
        let attr = entry.qp.query();
        let is_connected = context.qp_type.is_connected();
        let pd = (context.pd != PdId::NONE && context.qp_type != QpType::XrcRecv)
            .then_some(context.pd.handle());
        let queue = |id: CqId| (id != CqId::NONE).then_some(id.handle());
        view::Qp {
            qpn: context.qpn.value(),
            context: context.ctx.handle(),
            pd,
            send_cq: queue(context.send_cq),
            recv_cq: queue(context.recv_cq),
            srq: context.srq.map(|srq| srq.handle()),
            kind: context.qp_type as u8,
            state: attr.cur_state as u8,
            port: context.port,
            remote_qpn: is_connected.then_some(attr.dest_qpn.value()),
            rq_psn: attr.rq_psn.value(),
            sq_psn: attr.sq_psn.value(),
            path_mig_state: attr.path_mig_state,
            // CAST: queues are bounded by the limits of the device.
            sends: entry.qp.sends() as u32,
            receives: entry.qp.receives() as u32,
            timeouts: entry.qp.timeouts_in_a_row(),
            path: (is_connected && !context.route.is_none())
                .then(|| self.describe_path(context.route, &context.av, context.path_mtu)),
        }
    }

    fn describe_path(&self, route: Route, av: &Av, mtu: iba::Mtu) -> view::Path {
        let is_own = self.common.nic.port.gids.contains(&av.dgid);
        let (carrier, why) = route.why(is_own).split_once(": ").unwrap_or_default();
        let vf = if route.is_loopback() { Some(self.common.nic.vf) } else { route.peer() };
        view::Path {
            carrier: carrier.to_owned(),
            why: why.to_owned(),
            vf,
            to: SocketAddr::new(av.dgid.to_ip(), self.common.nic.config.udp_port).into(),
            mtu: mtu.bytes(),
        }
    }
}

/// As many as a description may have; the others are counted.
fn some<T>(mut all: impl Iterator<Item = T>, left_out: &mut u64) -> Vec<T> {
    let taken = all.by_ref().take(LIST_MAX).collect();
    *left_out += all.count() as u64;
    taken
}

fn describe_cq(id: usize, cq: &Cq) -> view::Cq {
    view::Cq {
        id: id as u32,
        context: cq.ctx.handle(),
        capacity: cq.capacity,
        held: cq.len() as u32,
        users: cq.uses.count() as u64,
        is_overrun: cq.overrun,
    }
}

fn describe_mr(id: u32, mr: &Mr, tells_keys: bool) -> view::Mr {
    let memory = match mr.kind {
        MrKind::User => "user",
        MrKind::Peer => "peer",
        MrKind::Dmabuf => "dmabuf",
        MrKind::Dm(_) => "dm",
    };
    view::Mr {
        id,
        pd: mr.pd.handle(),
        key: tells_keys.then_some(mr.key),
        iova: tells_keys.then_some(mr.iova),
        length: mr.length,
        access: mr.access.bits(),
        memory: memory.to_owned(),
        is_revoked: mr.is_revoked,
    }
}

fn describe_srq(id: usize, srq: &Srq) -> view::Srq {
    let kind = match (&srq.xrc, &srq.tm) {
        (Some(_), _) => SRQ_XRC,
        (None, Some(_)) => SRQ_TM,
        (None, None) => SRQ_BASIC,
    };
    view::Srq {
        id: id as u32,
        context: srq.ctx.handle(),
        pd: (srq.pd != PdId::NONE).then_some(srq.pd.handle()),
        kind,
        receives: srq.queue.len() as u32,
        max_wr: srq.max_wr,
    }
}
