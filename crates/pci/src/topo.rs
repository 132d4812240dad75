//! The tree from the user's side: which devices there are, how far from each other, and which of
//! them reach whose memory.
//!
//! [`Topology`] displays itself as two matrices with their legends: the letters of `nvidia-smi topo
//! -m`, and peer-to-peer DMA with the reason of each refusal.

mod device;
mod link;
mod scan;
mod text;
mod verdict;

use std::path::Path;
use std::sync::Arc;

pub use device::{Device, DeviceKind, Memory};
pub use link::Link;
pub use verdict::{PeerToPeer, Refusal};

use crate::bdf::Bdf;
use crate::sysfs::SysfsError;
use crate::topo::scan::Scan;
use crate::tree::PciTree;

/// GPUs, NICs and NVMe controllers in a tree.
#[derive(Clone, Debug)]
pub struct Topology {
    tree: Arc<PciTree>,
    devices: Vec<Device>,
    many_nodes: bool,
    hidden: bool,
    remarks: Vec<String>,
}

/// Why there is nothing to show.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TopologyError {
    /// The tree cannot be read.
    #[error("no PCI bus to read: {0}")]
    Sysfs(#[from] SysfsError),
    /// The tree has none of the devices.
    #[error(
        "no GPU, NIC or NVMe controller is among the {functions} PCI functions (classes 0x03, 0x12, \
         0x02, 0x0108)"
    )]
    Empty {
        /// How many functions there are.
        functions: usize,
    },
}

impl Topology {
    /// Puts devices of a tree in order: GPUs, NICs, NVMe controllers, each kind by address, and
    /// numbers them.
    ///
    /// # Errors
    ///
    /// [`TopologyError::Empty`] without devices.
    pub fn new(
        tree: Arc<PciTree>,
        devices: impl IntoIterator<Item = Device>,
    ) -> Result<Self, TopologyError> {
        let mut devices: Vec<_> = devices.into_iter().collect();
        if devices.is_empty() {
            return Err(TopologyError::Empty { functions: tree.functions().count() });
        }
        devices.sort_by_key(|device| (device.kind, device.bdf));
        let mut numbers = std::collections::BTreeMap::new();
        for device in &mut devices {
            let number = numbers.entry(device.kind).or_insert(0);
            device.label = format!("{}{number}", device.kind.label());
            *number += 1;
        }
        Ok(Self { tree, devices, many_nodes: false, hidden: false, remarks: vec![] })
    }

    /// Reads the machine whose sysfs is mounted at `root`, or a copy of it.
    ///
    /// # Errors
    ///
    /// [`TopologyError`].
    pub fn from_sysfs(root: &Path) -> Result<Self, TopologyError> {
        let tree = PciTree::from_sysfs(root, scan::cpu(root))?;
        let scan = Scan::new(root, &tree);
        let mut topology = Self::new(Arc::new(tree), scan.devices)?;
        (topology.many_nodes, topology.hidden) = (scan.many_nodes, scan.hidden);
        if scan.virtual_functions > 0 {
            let many = scan.virtual_functions;
            topology.remarks.push(format!("Left out: {many} virtual functions."));
        }
        if scan.hidden {
            topology.remarks.push(
                "This user may not read the configuration space of bridges, so ACS is assumed to \
                 redirect at each one in an IOMMU group. Root sees what is set."
                    .to_owned(),
            );
        }
        Ok(topology)
    }

    /// The devices in order.
    pub fn devices(&self) -> &[Device] {
        &self.devices
    }

    /// What this view of the machine leaves out or assumes, in sentences.
    pub fn remarks(&self) -> &[String] {
        &self.remarks
    }

    /// Bridges whose ACS redirects. `None` if this user may not see it, and it is only assumed.
    pub fn redirecting(&self) -> Option<Vec<Bdf>> {
        let bridges = self.tree.functions().filter(|function| function.acs.redirects());
        (!self.hidden).then(|| bridges.map(|function| function.bdf).collect())
    }

    /// What lies between two devices.
    pub fn link(&self, one: &Device, other: &Device) -> Link {
        Link::between(&self.tree, one, other, self.many_nodes)
    }

    /// Whether `client` reaches the memory of `provider`.
    pub fn peer_to_peer(&self, provider: &Device, client: &Device) -> PeerToPeer {
        PeerToPeer::new(&self.tree, provider, client)
    }
}
