//! Whether a device reaches another one's memory, and if not, why.

use std::collections::BTreeSet;
use std::fmt;

use crate::bdf::Bdf;
use crate::host_bridge::HostBridgeRefusal;
use crate::path::{MapType, Path, Route};
use crate::topo::device::{Device, Memory};
use crate::tree::PciTree;

/// The verdict on one provider and one client (`docs/semantics.md` 4.2).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerToPeer {
    /// The path between them, whether or not there is memory at its end.
    pub path: Path,
    /// Why the client cannot reach the memory.
    pub refusal: Option<Refusal>,
}

/// Why a client cannot reach a provider's memory.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// The provider has no memory that others reach.
    Memory(Memory),
    /// One of them is not a PCI function.
    NotPci,
    /// The traffic goes through host bridges that are not known to forward it.
    HostBridges {
        /// The bridges that redirect it there by ACS; empty if no bridge is common.
        redirected_by: Vec<Bdf>,
        /// The host bridges in the way.
        refusals: Vec<HostBridgeRefusal>,
    },
}

impl PeerToPeer {
    pub(super) fn new(tree: &PciTree, provider: &Device, client: &Device) -> Self {
        let path = tree.path(provider.bdf, client.bdf);
        let refusal = match &path.route {
            Route::NotPci => Some(Refusal::NotPci),
            _ if !provider.memory.is_reachable() => Some(Refusal::Memory(provider.memory)),
            _ if path.is_possible() => None,
            Route::Root { provider, client } => Some(Refusal::HostBridges {
                redirected_by: vec![],
                refusals: tree.host_bridge_refusals(provider.0, client.0),
            }),
            Route::Redirected { by, root } => Some(Refusal::HostBridges {
                redirected_by: by.clone(),
                refusals: tree.host_bridge_refusals(root.0, root.0),
            }),
            Route::Same | Route::Across(_) => None,
        };
        Self { path, refusal }
    }

    /// How the client reaches the memory.
    pub fn map_type(&self) -> MapType {
        if self.refusal.is_some() { MapType::NotSupported } else { self.path.map_type }
    }

    /// The bridges whose ACS keeps the traffic off the direct path.
    pub fn redirected_by(&self) -> &[Bdf] {
        match &self.path.route {
            Route::Redirected { by, .. } => by,
            _ => &[],
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory(memory) => memory.fmt(f),
            Self::NotPci => write!(f, "one of them is not a PCI device"),
            Self::HostBridges { redirected_by, refusals } => {
                match redirected_by.as_slice() {
                    [] => write!(f, "no PCI bridge in common, and ")?,
                    by => write!(f, "{}, and ", Redirect(by))?,
                }
                for (i, refusal) in refusals.iter().enumerate() {
                    write!(f, "{}{refusal}", if i == 0 { "" } else { "; " })?;
                }
                Ok(())
            }
        }
    }
}

/// What ACS does to a path, and the kernel's parameter that undoes it.
pub(super) struct Redirect<'a>(pub(super) &'a [Bdf]);

impl fmt::Display for Redirect<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Sorted, so that the two directions of a pair have one text.
        let bridges: BTreeSet<_> = self.0.iter().collect();
        let join = |by: &str| bridges.iter().map(ToString::to_string).collect::<Vec<_>>().join(by);
        write!(
            f,
            "ACS redirects to the host bridge at {} (Linux: pci=disable_acs_redir={})",
            join(" "),
            join(";")
        )
    }
}
