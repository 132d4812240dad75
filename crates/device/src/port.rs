//! A NIC and its port.

use iba::{Gid, Mtu};

use crate::attr::DeviceAttr;
use crate::config::NicConfig;

/// Attributes of the netdev under the port.
#[derive(Clone, Debug, Default)]
pub(crate) struct Port {
    pub(crate) netdev: String,
    pub(crate) ifindex: u32,
    pub(crate) active: bool,
    pub(crate) link_mtu: u32,
    pub(crate) speed_mbps: u32,
    pub(crate) gids: Vec<Gid>,
    /// The hardware address of the netdev.
    pub(crate) mac: [u8; 6],
    pub(crate) is_loopback: bool,
}

impl Port {
    /// The headers around a payload: IPv6, UDP, BTH, the longest extended headers and the ICRC.
    /// RoCE drivers leave as much room (`iboe_get_mtu` of the kernel).
    const OVERHEAD: u32 = 40 + 8 + 12 + 28 + 4;

    pub(crate) fn active_mtu(&self) -> Mtu {
        Mtu::largest_within(self.link_mtu, Self::OVERHEAD)
    }

    /// The GID at an index; zero if there is none.
    pub(crate) fn sgid(&self, index: u8) -> Gid {
        self.gids.get(usize::from(index)).copied().unwrap_or_default()
    }
}

/// The NIC.
#[derive(Debug)]
pub(crate) struct Nic {
    pub(crate) config: NicConfig,
    pub(crate) attr: DeviceAttr,
    pub(crate) port: Port,
    /// The number of this process.
    pub(crate) vf: u16,
}
