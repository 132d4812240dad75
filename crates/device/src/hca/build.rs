//! Opens a device: claims a VF and builds an engine around it.

use std::sync::Arc;

use link::registry::{Claim, NicIdentity};
use link::udp::{BindError, Options, UdpLink};
use transport::Time;

use crate::attr::DeviceAttr;
use crate::carrier::shm::peers::Peers;
use crate::carrier::shm::table::Table;
use crate::carrier::udp::queue::UdpQueue;
use crate::carrier::udp::tx_sockets::TxSockets;
use crate::carrier::{Receivers, Senders, udp};
use crate::clock::Clock;
use crate::counters::PortCounters;
use crate::engine::Engine;
use crate::engine::cm::CmService;
use crate::engine::common::Common;
use crate::memory::Memory;
use crate::memory::faults::Faults;
use crate::nic::NicInfo;
use crate::objects::Objects;
use crate::objects::charges::Charges;
use crate::observe::Observed;
use crate::port::Nic;
use crate::qp::QpTable;
use crate::random::random;
use crate::refusal::{Kind, Refusal, Result};
use crate::waits::Waits;

/// Claims a VF and builds an engine around it.
pub(crate) fn build_engine(nic: &NicInfo, waits: &Arc<Waits>) -> Result<Engine> {
    let config = &nic.config;
    let (guid, port) = crate::nic::look(config, nic.index)?;
    let identity =
        NicIdentity { guid: guid.0, ifindex: port.ifindex, settings: u64::from(config.udp_port) };
    let mut claim = Claim::new(&config.name, identity)
        .map_err(|error| Refusal::new(Kind::NoDevice, format!("{}: {error}", config.name)))?;
    let vf = claim.vf();
    // Observers must see packets, so no operation may go without one.
    let clock = Clock::new();
    let observed = Observed::open(config, vf, &clock)?;
    let direct = config.direct && !config.force_udp && observed.is_plain();
    let table = if direct { Some(Table::new()?) } else { None };
    if let Some(file) = table.as_ref().and_then(Table::fd) {
        claim.set_table(file);
    }
    let options = Options { vf, ifindex: port.ifindex, ..Options::default() };
    let mut is_deaf = false;
    let udp = match UdpLink::bind(config.udp_port, options) {
        Err(error @ BindError::InUse { .. }) => {
            tracing::info!(target: "peerdma::udp", "{error}");
            is_deaf = true;
            UdpLink::send_only(config.udp_port, options)
        }
        bound => bound,
    };
    let udp = udp
        .inspect_err(|error| {
            tracing::warn!(target: "peerdma::udp", "no packets to or from other hosts: {error}");
        })
        .ok();
    let watch = link::netdev::Watch::new()
        .inspect_err(|error| {
            tracing::warn!(target: "peerdma::netdev", "changes of the port will not be noticed: {error}");
        })
        .ok();
    let segments = udp.as_ref().map_or(1, |udp| udp.max_gso_segments(UdpQueue::TYPICAL));
    let source = udp.as_ref().map_or(config.udp_port, UdpLink::source_port);
    let faults = Faults::new(Arc::clone(waits));
    let shm = Peers::new(claim, config.ring_size as usize, table, Arc::clone(waits));
    // Observers see only packets that are sent through the shared socket.
    let tx_sockets = TxSockets::new(observed.is_plain());
    let common = Common {
        nic: Nic { attr: DeviceAttr::new(config, guid), config: config.clone(), port, vf },
        now: Time::default(),
        now_is_stale: false,
        stamps: false,
        objects: Objects::default(),
        charges: Charges::new(&config.name, vf, &config.cgroup_root),
        memory: Memory::new(faults),
        out: Senders {
            loopback: Default::default(),
            shm,
            udp: UdpQueue::new(segments, source, config.udp_port).with(tx_sockets, is_deaf),
            ether: Default::default(),
        },
        waiting: Default::default(),
        counters: PortCounters::new(config.ports),
        failures: Default::default(),
        observed,
    };
    watch.iter().for_each(|watch| waits.add_idle(watch));
    let receivers = Receivers {
        shm: Default::default(),
        udp: udp::Receiver::new(udp, config.udp_port),
        frames: None,
        watch,
    };
    // Numbers that a process with this VF used recently rest, and nobody can predict the next one.
    let start = random() as u32;
    let cm = CmService::new(&common.nic, waits);
    Ok(Engine::new(common, QpTable::new(vf, start), receivers, cm, clock))
}
