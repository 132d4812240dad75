//! The NICs of this machine, and how a port follows its netdev.

use iba::{Guid, Mtu};
use link::netdev::Netdev;

use crate::attr::{GidEntry, PortAttr};
use crate::config::{Config, NicConfig};
use crate::port::Port;
use crate::refusal::{Kind, Refusal, Result};

/// Entries of a GID table, set or not.
const GID_TABLE: u32 = 256;

/// A NIC as a program finds it, before it opens it.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct NicInfo {
    /// Its configuration.
    pub config: NicConfig,
    /// Its GUID, made from the netdev's MAC address.
    pub guid: Guid,
    /// Its port.
    pub port: PortAttr,
    /// Its GIDs.
    pub gids: Vec<GidEntry>,
    /// Its index among the NICs, from 0.
    pub index: u32,
}

/// The NICs that the configuration names, over the existing netdevs; only those in `PEERDMA_NIC`, a
/// comma-separated list, if that is set.
#[doc(alias = "ibv_get_device_list")]
pub fn nics() -> Result<Vec<NicInfo>> {
    let config = Config::load()?;
    let chosen = environment::var("PEERDMA_NIC").unwrap_or_default();
    let is_chosen = |name: &str| chosen.is_empty() || chosen.split(',').any(|nic| nic == name);
    let mut found = Vec::new();
    for (index, nic) in config.nics.into_iter().enumerate() {
        if !is_chosen(&nic.name) {
            continue;
        }
        found.push(NicInfo::at(nic, index as u32)?);
    }
    Ok(found)
}

impl NicInfo {
    /// A NIC whose configuration is not in a file.
    pub fn new(config: NicConfig) -> Result<Self> {
        let mut config = Config::of(config)?;
        Self::at(config.nics.swap_remove(0), 0)
    }

    fn at(config: NicConfig, index: u32) -> Result<Self> {
        let (guid, port) = look(&config, index)?;
        Ok(Self { guid, port: port_attr(&port), gids: gid_entries(&port), config, index })
    }
}

/// The GUID and the port of a NIC, from its netdev as it is now.
pub(crate) fn look(config: &NicConfig, index: u32) -> Result<(Guid, Port)> {
    let netdev = match &config.netdev {
        Some(name) => Netdev::named(name),
        None => Netdev::find(),
    }
    .map_err(|error| Refusal::new(Kind::NoDevice, format!("nic {}: {error}", config.name)))?;
    let mut mac = netdev.mac;
    // Several NICs over one netdev, and a loopback netdev without an address, still need GUIDs of
    // their own.
    mac[5] = mac[5].wrapping_add(index as u8);
    if mac[..5] == [0; 5] {
        mac[0] = 2;
    }
    Ok((Guid::from_mac(mac), port_on(netdev)))
}

pub(crate) fn port_on(netdev: Netdev) -> Port {
    Port {
        active: netdev.is_up,
        link_mtu: netdev.mtu,
        speed_mbps: netdev.speed_mbps.unwrap_or(0),
        gids: netdev.gids(),
        ifindex: netdev.index,
        netdev: netdev.name,
        mac: netdev.mac,
        is_loopback: netdev.is_loopback,
    }
}

/// What a port reports about itself.
pub(crate) fn port_attr(port: &Port) -> PortAttr {
    // Width and speed per lane, as the kernel derives them from a netdev's speed
    // (`ib_get_width_and_speed`).
    let (active_width, active_speed) = match port.speed_mbps {
        0 => (2, 32),
        1..=1_000 => (1, 1),
        1_001..=10_000 => (1, 4),
        10_001..=25_000 => (1, 32),
        25_001..=40_000 => (2, 4),
        _ => (2, 32),
    };
    PortAttr {
        active: port.active && !port.gids.is_empty(),
        max_mtu: Mtu::Mtu4096,
        active_mtu: port.active_mtu(),
        gid_tbl_len: GID_TABLE,
        max_msg_sz: 1 << 30,
        pkey_tbl_len: 1,
        active_width,
        active_speed,
        netdev: port.netdev.clone(),
        ifindex: port.ifindex,
    }
}

/// The GIDs of a port with their indices.
pub(crate) fn gid_entries(port: &Port) -> Vec<GidEntry> {
    let entries = port.gids.iter().enumerate();
    entries
        .map(|(index, gid)| GidEntry { gid: *gid, index: index as u32, ifindex: port.ifindex })
        .collect()
}
