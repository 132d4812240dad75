//! What is known about a NIC: what the device reports about itself, and what the `/sys` directory
//! of its netdev tells about the machine around it.

use std::fmt;
use std::fs;
use std::net::Ipv6Addr;

use super::pci::Function;

/// What a [`super::Tree`] needs to know of one NIC.
#[derive(Clone, Debug)]
pub(crate) struct NicFacts {
    /// The device name that programs see.
    pub(crate) name: String,
    /// The node GUID, as a number that is written most significant byte first. It is also the
    /// system image GUID: one NIC is one system.
    pub(crate) node_guid: u64,
    /// The node description.
    pub(crate) node_desc: String,
    /// The used part of the GID table: IPv6 addresses, and IPv4 addresses mapped into IPv6.
    pub(crate) gids: Vec<Ipv6Addr>,
    /// The netdev underneath.
    pub(crate) netdev: Netdev,
    /// How many ports it has.
    pub(crate) ports: u32,
    /// Whether the ports are active.
    pub(crate) active: bool,
    /// The width code of the port (`enum ib_port_width`).
    pub(crate) width: u8,
    /// The speed code of a lane (`enum ib_port_speed`).
    pub(crate) speed: u8,
    /// The NUMA node, -1 if there is none.
    pub(crate) numa_node: i32,
    /// The CPUs near the NIC.
    pub(crate) cpus: CpuList,
    /// Whether it asks peer memory clients about the address of memory.
    pub(crate) peermem: bool,
    /// Where it is on PCI, if programs see that.
    pub(crate) function: Option<Function>,
}

/// The network interface that a NIC is on.
#[derive(Clone, Debug)]
pub(crate) struct Netdev {
    /// Its name.
    pub(crate) name: String,
    /// Its interface index.
    pub(crate) index: u32,
    /// Its MAC address, as text.
    pub(crate) address: String,
    /// Its MTU in bytes.
    pub(crate) mtu: u32,
}

/// A set of CPUs, written as the kernel writes it (`0-3,8`).
#[derive(Clone, Debug)]
pub(crate) struct CpuList(String);

impl NicFacts {
    /// The directory of the device.
    pub(crate) fn directory(&self) -> String {
        let own = || format!("/sys/devices/virtual/peerdma/{}", self.name);
        self.function.as_ref().map_or_else(own, |function| function.path.clone())
    }

    /// Where the NICs and the GPUs are on PCI.
    pub(crate) fn place(
        machine: &gpu::Machine,
        drivers: super::Drivers,
        nics: &mut [Self],
    ) -> (Vec<super::GpuFacts>, super::Bus) {
        super::pci::place(machine, drivers, nics)
    }

    /// The current facts about a NIC that the device crate found.
    pub(crate) fn of(nic: &device::NicInfo) -> Self {
        let netdev = &nic.port.netdev;
        let attribute = |attribute: &str| read(&format!("/sys/class/net/{netdev}/{attribute}"));
        let hostname = read("/proc/sys/kernel/hostname").unwrap_or_else(|| "localhost".to_owned());
        let cpus = attribute("device/local_cpulist")
            .or_else(|| read("/sys/devices/system/cpu/online"))
            .unwrap_or_else(|| "0".to_owned());
        Self {
            name: nic.config.name.clone(),
            node_guid: nic.guid.0,
            node_desc: format!("{hostname} {}", nic.config.name),
            gids: nic.gids.iter().map(|entry| Ipv6Addr::from(entry.gid.0)).collect(),
            ports: nic.config.ports,
            active: nic.port.active,
            width: nic.port.active_width,
            speed: nic.port.active_speed,
            numa_node: number(attribute("device/numa_node")).unwrap_or(-1),
            cpus: CpuList(cpus),
            peermem: nic.config.peermem,
            function: None,
            netdev: Netdev {
                name: netdev.clone(),
                index: nic.port.ifindex,
                mtu: number(attribute("mtu")).unwrap_or(1500),
                address: attribute("address").unwrap_or_else(|| "00:00:00:00:00:00".to_owned()),
            },
        }
    }
}

impl CpuList {
    /// The same set as a bit mask in groups of 32 bits, highest first (`ff,ffffffff`).
    pub(crate) fn mask(&self) -> String {
        let mut words = vec![0_u32];
        for range in self.0.split(',') {
            let (first, last) = range.split_once('-').unwrap_or((range, range));
            let (Ok(first), Ok(last)) = (first.parse::<usize>(), last.parse::<usize>()) else {
                continue;
            };
            for cpu in first..=last.min(1 << 16) {
                if words.len() <= cpu / 32 {
                    words.resize(cpu / 32 + 1, 0);
                }
                words[cpu / 32] |= 1 << (cpu % 32);
            }
        }
        let (top, rest) = words.split_last().expect("there is one word at least");
        rest.iter().rev().fold(format!("{top:x}"), |mask, word| format!("{mask},{word:08x}"))
    }
}

impl fmt::Display for CpuList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn read(path: &str) -> Option<String> {
    Some(fs::read_to_string(path).ok()?.trim().to_owned())
}

fn number<T: std::str::FromStr>(text: Option<String>) -> Option<T> {
    text?.parse().ok()
}

#[cfg(test)]
impl NicFacts {
    /// A NIC with one IPv4 and one IPv6 address, for tests.
    pub(crate) fn example() -> Self {
        Self {
            name: "peerdma0".into(),
            node_guid: 0x0211_22ff_fe33_4455,
            node_desc: "host peerdma0".into(),
            gids: vec![
                std::net::Ipv4Addr::new(10, 0, 0, 1).to_ipv6_mapped(),
                Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, 1),
            ],
            netdev: Netdev {
                name: "eth0".into(),
                index: 2,
                address: "00:11:22:33:44:55".into(),
                mtu: 1500,
            },
            ports: 1,
            active: true,
            width: 2,
            speed: 32,
            numa_node: -1,
            cpus: CpuList("0-3".into()),
            peermem: false,
            function: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_lists_become_masks() {
        let mask = |list: &str| CpuList(list.into()).mask();
        assert_eq!(mask("0-1"), "3");
        assert_eq!(mask("0,2-3"), "d");
        assert_eq!(mask("0-31"), "ffffffff");
        assert_eq!(mask("32-33"), "3,00000000");
    }
}
