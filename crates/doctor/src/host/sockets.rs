//! What UDP needs.

use crate::fact::{Fact, fact, row, size};
use crate::files::Files;

/// The network as far as sockets go.
#[derive(Debug)]
pub(crate) struct Sockets {
    /// `net.core.rmem_max`.
    pub(crate) rmem_max: Option<u64>,
    /// `net.core.wmem_max`.
    pub(crate) wmem_max: Option<u64>,
    /// Users of sockets on RoCE's port.
    pub(crate) holders: Vec<u64>,
    /// Network interfaces, without loopback.
    pub(crate) interfaces: Vec<String>,
}

/// UDP port 4791, as `/proc/net/udp` writes it.
const PORT: &str = ":12B7";

impl Sockets {
    pub(super) fn read(files: &Files) -> Self {
        let mut holders = vec![];
        for table in ["/proc/net/udp", "/proc/net/udp6"] {
            for line in files.text(table).unwrap_or_default().lines() {
                let words: Vec<_> = line.split_whitespace().collect();
                if words.get(1).is_some_and(|local| local.ends_with(PORT)) {
                    holders.extend(words.get(7).and_then(|uid| uid.parse::<u64>().ok()));
                }
            }
        }
        holders.sort_unstable();
        holders.dedup();
        let mut interfaces = files.list("/sys/class/net");
        interfaces.retain(|name| name != "lo" && name != "bonding_masters");
        Self {
            rmem_max: files.number("/proc/sys/net/core/rmem_max"),
            wmem_max: files.number("/proc/sys/net/core/wmem_max"),
            holders,
            interfaces,
        }
    }

    pub(super) fn facts(&self) -> Vec<Fact> {
        vec![
            fact("interfaces", "network interfaces", Some(row(&self.interfaces))),
            fact("rmem_max", "net.core.rmem_max", self.rmem_max.map(size)),
            fact("wmem_max", "net.core.wmem_max", self.wmem_max.map(size)),
        ]
    }
}
