//! The path of an importer's accesses to memory of a PCI device (`docs/semantics.md` 4.2).

use pci::{Bdf, PciTree};

use crate::{DeviceAddr, Reach};

/// A device with memory of its own, as importers find it in the PCI tree.
#[doc(alias = "p2pdma_provider")]
#[derive(Clone, Copy, Debug)]
#[expect(clippy::exhaustive_structs, reason = "exporters build it")]
pub struct Provider<'a> {
    /// The tree.
    pub tree: &'a PciTree,
    /// The name of the device.
    pub name: &'a str,
    /// Its address, if it is in the tree.
    pub bdf: Option<Bdf>,
}

impl Provider<'_> {
    /// The path from an importer at `from`.
    ///
    /// # Errors
    /// Why there is no path, in words. An importer that is on no bus has none, as on Linux.
    #[doc(alias = "pci_p2pdma_map_type")]
    pub fn reach(&self, from: Option<DeviceAddr>) -> Result<Reach, String> {
        let name = self.name;
        let Some(owner) = self.bdf else {
            return Err(format!("{name} is nowhere in the PCI tree"));
        };
        let Some(client) = from.and_then(|addr| Bdf::from_bits(addr.0)) else {
            return Err(format!(
                "the importer is not a PCI device, and cannot reach {name} at {owner}"
            ));
        };
        let path = self.tree.path(owner, client);
        match path.map_type {
            pci::MapType::BusAddr => Ok(Reach::BusAddress),
            pci::MapType::ThruHostBridge => Ok(Reach::ThroughHostBridge),
            pci::MapType::None | pci::MapType::NotSupported => Err(path.to_string()),
        }
    }
}
