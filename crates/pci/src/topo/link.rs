//! How far two devices are from each other, in the letters of `nvidia-smi topo -m`.

use crate::topo::device::Device;
use crate::tree::PciTree;

/// What lies between two devices. The first applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Link {
    /// `X`: it is the same device.
    Same,
    /// `PIX`: at most one switch.
    Switch,
    /// `PXB`: several switches, but no host bridge.
    Switches,
    /// `PHB`: a host bridge.
    HostBridge,
    /// `NODE`: several host bridges of one NUMA node.
    Node,
    /// `SYS`: what connects NUMA nodes.
    System,
}

impl Link {
    /// All but NVLink, which PCI does not show, in the order of the legend.
    pub const ALL: [Self; 6] =
        [Self::Same, Self::System, Self::Node, Self::HostBridge, Self::Switches, Self::Switch];

    /// The letters.
    pub fn letters(self) -> &'static str {
        match self {
            Self::Same => "X",
            Self::Switch => "PIX",
            Self::Switches => "PXB",
            Self::HostBridge => "PHB",
            Self::Node => "NODE",
            Self::System => "SYS",
        }
    }

    /// The legend of the letters.
    pub fn legend(self) -> &'static str {
        match self {
            Self::Same => "Self",
            Self::System => {
                "Connection traversing PCIe as well as the SMP interconnect between NUMA nodes \
                 (e.g., QPI/UPI)"
            }
            Self::Node => {
                "Connection traversing PCIe as well as the interconnect between PCIe Host Bridges \
                 within a NUMA node"
            }
            Self::HostBridge => {
                "Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)"
            }
            Self::Switches => {
                "Connection traversing multiple PCIe bridges (without traversing the PCIe Host \
                 Bridge)"
            }
            Self::Switch => "Connection traversing at most a single PCIe bridge",
        }
    }

    /// What lies between these two. `many_nodes`: whether a device of which no NUMA node is known
    /// may be at another one.
    pub(super) fn between(tree: &PciTree, one: &Device, other: &Device, many_nodes: bool) -> Self {
        if one.bdf == other.bdf {
            return Self::Same;
        }
        if let Some((a, b)) = tree.meeting(one.bdf, other.bdf) {
            // A port, then the switch's upstream port: two steps. Who may not read configuration
            // space cannot tell ports from other bridges, so the steps are counted.
            return if a.max(b) <= 2 { Self::Switch } else { Self::Switches };
        }
        let root = |device: &Device| tree.function(device.bdf).map(|function| function.root);
        let same_node = match (one.numa, other.numa) {
            (Some(one), Some(other)) => one == other,
            _ => !many_nodes,
        };
        match same_node {
            _ if root(one) == root(other) => Self::HostBridge,
            true => Self::Node,
            false => Self::System,
        }
    }
}
