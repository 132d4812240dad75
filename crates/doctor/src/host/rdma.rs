//! RDMA devices that the kernel shows, and how programs reach them.

use crate::fact::{Fact, fact, row};
use crate::files::Files;

/// RDMA in the kernel.
#[derive(Debug)]
pub(crate) struct Rdma {
    pub(crate) devices: Vec<RdmaDevice>,
    /// Whether a kernel socket listens to requests of `rdma` and libibverbs; `None` if no file
    /// says.
    pub(crate) has_netlink: Option<bool>,
    /// Clients of PeerDirect: `nv_mem`, `amdkfd`.
    pub(crate) peer_memory: Vec<String>,
}

/// One device.
#[derive(Debug)]
pub(crate) struct RdmaDevice {
    pub(crate) name: String,
    /// The address of its PCI function; a software device has none.
    pub(crate) bdf: Option<String>,
    pub(crate) driver: Option<String>,
    /// The state of each port: `ACTIVE`, `DOWN`.
    pub(crate) ports: Vec<String>,
    /// Its node of `/dev/infiniband`, if it is there.
    pub(crate) node: Option<String>,
}

const CLASS: &str = "/sys/class/infiniband";

impl Rdma {
    pub(super) fn read(files: &Files) -> Self {
        let clients = "/sys/kernel/mm/memory_peers";
        Self {
            devices: files.list(CLASS).into_iter().map(|name| device(files, name)).collect(),
            has_netlink: files.text("/proc/net/netlink").map(|text| {
                const NETLINK_RDMA: &str = "20";
                text.lines().any(|line| line.split_whitespace().nth(1) == Some(NETLINK_RDMA))
            }),
            peer_memory: files.list(clients),
        }
    }

    /// Devices that are hardware.
    pub(crate) fn hardware(&self) -> impl Iterator<Item = &RdmaDevice> {
        self.devices.iter().filter(|device| device.bdf.is_some())
    }

    pub(super) fn facts(&self) -> Vec<Fact> {
        let show = |device: &RdmaDevice| {
            let driver = device.driver.as_deref().unwrap_or("software");
            format!("{} ({driver}, {})", device.name, row(&device.ports))
        };
        let netlink = self.has_netlink.map(|has| if has { "yes" } else { "no" });
        let devices: Vec<_> = self.devices.iter().map(show).collect();
        vec![
            fact("rdma_devices", "RDMA devices", Some(row(&devices))),
            fact("rdma_netlink", "RDMA netlink", netlink.map(str::to_owned)),
            fact("peer_memory_clients", "peer memory clients", Some(row(&self.peer_memory))),
        ]
    }
}

fn device(files: &Files, name: String) -> RdmaDevice {
    let place = format!("{CLASS}/{name}");
    let is_pci = |target: &String| target.parse::<pci::Bdf>().is_ok();
    let ports = files.list(&format!("{place}/ports")).into_iter().map(|port| {
        let state = files.text(&format!("{place}/ports/{port}/state")).unwrap_or_default();
        // "4: ACTIVE"
        state.split_once(": ").map_or(state.clone(), |(_, word)| word.to_owned())
    });
    let nodes = files.list("/sys/class/infiniband_verbs").into_iter();
    let mut nodes = nodes.filter(|node| {
        let ours = format!("/sys/class/infiniband_verbs/{node}/ibdev");
        files.text(&ours).as_deref() == Some(&name)
    });
    let node = nodes.find(|node| files.exists(&format!("/dev/infiniband/{node}")));
    RdmaDevice {
        bdf: files.target(&format!("{place}/device")).filter(is_pci),
        driver: files.target(&format!("{place}/device/driver")),
        ports: ports.collect(),
        node,
        name,
    }
}
