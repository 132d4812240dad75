//! Paths between functions: the distance and the map type.

use std::fmt;

use crate::Bdf;
use crate::tree::{Function, Ids, PciTree, RootBus};

/// How a client reaches a provider's memory.
#[doc(alias = "pci_p2pdma_map_type")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[expect(
    clippy::exhaustive_enums,
    reason = "the kernel's, except UNKNOWN, which is never returned"
)]
pub enum MapType {
    /// The memory does not belong to a device.
    None,
    /// The client cannot reach it.
    NotSupported,
    /// Directly through switches, by its bus address, without an IOMMU.
    BusAddr,
    /// Up to the host bridge and down again, by the address that the IOMMU assigns.
    ThruHostBridge,
}

/// The path from one function to another.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Path {
    /// The device that has the memory.
    pub provider: Bdf,
    /// The device that accesses it.
    pub client: Bdf,
    /// Steps from the provider up to the common bridge, plus those from the client: 0 for the same
    /// function, 2 for two functions behind one port, 4 for two ports of one switch. Without a
    /// common bridge, the length of both chains.
    pub distance: u32,
    /// How the memory is to be mapped.
    pub map_type: MapType,
    /// The route of the traffic.
    pub route: Route,
}

/// The route of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Route {
    /// No route: there is no PCI function at one of the addresses.
    NotPci,
    /// Both are the same function.
    Same,
    /// Up to this bridge and down again.
    Across(Bdf),
    /// Through the CPU, because the two have no bridge in common.
    Root {
        /// The provider's host bridge, and its IDs if it has any.
        provider: (RootBus, Option<Ids>),
        /// The client's.
        client: (RootBus, Option<Ids>),
    },
    /// Through the CPU, because bridges on the path redirect everything there.
    Redirected {
        /// Those bridges: on the provider's side up to the common bridge, then on the client's.
        by: Vec<Bdf>,
        /// The host bridge, and its IDs if it has any.
        root: (RootBus, Option<Ids>),
    },
}

impl PciTree {
    /// How `client` reaches memory of `provider`.
    #[doc(alias = "calc_map_type_and_dist")]
    pub fn path(&self, provider: Bdf, client: Bdf) -> Path {
        let path = |distance, map_type, route| Path { provider, client, distance, map_type, route };
        let (up, down): (Vec<_>, Vec<_>) =
            (self.chain(provider).collect(), self.chain(client).collect());
        let (Some(owner), Some(user)) = (up.first(), down.first()) else {
            return path(u32::MAX, MapType::NotSupported, Route::NotPci);
        };
        let through_root = |route, distance| {
            let allowed =
                self.cpu().supports_p2pdma() || self.host_bridges_allowed(owner.root, user.root);
            let map_type = if allowed { MapType::ThruHostBridge } else { MapType::NotSupported };
            path(distance, map_type, route)
        };
        let named = |root| (root, self.host_bridge_ids(root));
        let Some((a, b)) = meeting(&up, &down) else {
            let route = Route::Root { provider: named(owner.root), client: named(user.root) };
            return through_root(route, length(up.len() + down.len()));
        };
        let redirects: Vec<_> = up[..=a]
            .iter()
            .chain(&down[..b])
            .filter(|function| function.acs.redirects())
            .map(|function| function.bdf)
            .collect();
        if redirects.is_empty() {
            let route = if provider == client { Route::Same } else { Route::Across(up[a].bdf) };
            return path(length(a + b), MapType::BusAddr, route);
        }
        let route = Route::Redirected { by: redirects, root: named(owner.root) };
        through_root(route, length(a + b))
    }

    /// The steps from each of the two up to their first common bridge, if they have one.
    pub(crate) fn meeting(&self, one: Bdf, other: Bdf) -> Option<(usize, usize)> {
        let (one, other): (Vec<_>, Vec<_>) =
            (self.chain(one).collect(), self.chain(other).collect());
        meeting(&one, &other)
    }
}

impl Path {
    /// Whether the client reaches the memory at all.
    pub fn is_possible(&self) -> bool {
        matches!(self.map_type, MapType::BusAddr | MapType::ThruHostBridge)
    }
}

/// The first common bridge of two chains: the steps along each.
fn meeting(up: &[&Function], down: &[&Function]) -> Option<(usize, usize)> {
    up.iter().enumerate().find_map(|(a, above)| {
        let b = down.iter().position(|other| other.bdf == above.bdf)?;
        Some((a, b))
    })
}

fn length(steps: usize) -> u32 {
    u32::try_from(steps).unwrap_or(u32::MAX)
}

/// The text of a path: for the log if it is possible, for a refusal if not.
impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (provider, client) = (self.provider, self.client);
        match &self.route {
            Route::NotPci => {
                return write!(
                    f,
                    "{client} cannot reach {provider}: one of them is not a PCI device"
                );
            }
            Route::Same => return write!(f, "{client} reaches its own memory"),
            Route::Across(bridge) => {
                return write!(f, "{client} reaches {provider} across {bridge}");
            }
            Route::Root { .. } => {
                write!(f, "{client} and {provider} have no PCI bridge in common")?
            }
            Route::Redirected { by, .. } => {
                write!(f, "ACS redirect is on between {client} and {provider} (at")?;
                for bridge in by {
                    write!(f, " {bridge}")?;
                }
                write!(f, "; Linux: pci=disable_acs_redir=")?;
                for (i, bridge) in by.iter().enumerate() {
                    write!(f, "{}{bridge}", if i == 0 { "" } else { ";" })?;
                }
                write!(f, ")")?;
            }
        }
        let possible = self.is_possible();
        write!(f, ", so peer-to-peer goes through the host bridge")?;
        match &self.route {
            Route::Root { provider, client } if provider.0 != client.0 => {
                write!(f, "s {} and {}", Root(*client), Root(*provider))?;
            }
            Route::Root { provider: root, .. } | Route::Redirected { root, .. } => {
                write!(f, " {}", Root(*root))?;
            }
            _ => {}
        }
        match possible {
            true => Ok(()),
            false => write!(f, ", which the allowlist does not have for this"),
        }
    }
}

struct Root((RootBus, Option<Ids>));

impl fmt::Display for Root {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            (root, Some(ids)) => write!(f, "{root} ({ids})"),
            (root, None) => write!(f, "{root} (unknown)"),
        }
    }
}
