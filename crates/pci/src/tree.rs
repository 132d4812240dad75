//! The tree: host bridges, bridges, endpoints.

use std::collections::BTreeMap;
use std::fmt;

use crate::Bdf;
use crate::host_bridge::Cpu;

bitflags::bitflags! {
    /// Access Control Services that a function has enabled, as in its ACS control register.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Acs: u16 {
        /// Source validation.
        const SV = 0x01;
        /// Translation blocking.
        const TB = 0x02;
        /// Request redirect: peer-to-peer requests go up to the root.
        const RR = 0x04;
        /// Completion redirect: completions of peer-to-peer requests go up to the root.
        const CR = 0x08;
        /// Upstream forwarding.
        const UF = 0x10;
        /// Egress control: peer-to-peer requests are looked up in a vector.
        const EC = 0x20;
        /// Direct translated peer-to-peer.
        const DT = 0x40;
    }
}

impl Acs {
    /// The services that take peer-to-peer traffic off the direct path.
    pub const REDIRECT: Self = Self::RR.union(Self::CR).union(Self::EC);

    /// Whether peer-to-peer traffic is redirected upstream.
    #[doc(alias = "pci_bridge_has_acs_redir")]
    pub const fn redirects(self) -> bool {
        self.intersects(Self::REDIRECT)
    }
}

/// Vendor and device id of a function, `8086:2030`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "an identity has two numbers")]
pub struct Ids {
    /// The vendor ID.
    pub vendor: u16,
    /// The device ID.
    pub device: u16,
}

/// The bus directly below a host bridge, which identifies that host bridge.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(clippy::exhaustive_structs, reason = "a bus number in a domain")]
pub struct RootBus {
    /// The domain.
    pub domain: u32,
    /// The bus in it.
    pub bus: u8,
}

/// The kind of a function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FunctionKind {
    /// The function through which software sees a host bridge. Nothing lies below it.
    HostBridge,
    /// A root port.
    RootPort,
    /// A switch's port towards the root.
    UpstreamPort,
    /// A switch's port towards a device.
    DownstreamPort,
    /// Any other bridge.
    Bridge,
    /// A device.
    Endpoint,
}

/// The kind of a base address register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "PCI has these")]
pub enum BarKind {
    /// Memory that the CPU can map.
    Memory,
    /// Memory that it cannot (an architecture without mappable BARs).
    Unmappable,
    /// I/O ports.
    Io,
}

/// One base address register in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "callers describe devices with it")]
pub struct Bar {
    /// Its number, 0 to 5.
    pub index: u8,
    /// The CPU address.
    pub addr: u64,
    /// Its size in bytes.
    pub size: u64,
    /// The difference between the bus address and the CPU address.
    pub bus_offset: i64,
    /// Its kind.
    pub kind: BarKind,
}

/// One function of the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "callers build trees of it")]
pub struct Function {
    /// Its address.
    pub bdf: Bdf,
    /// Its kind.
    pub kind: FunctionKind,
    /// The bridge above it; none on a root bus.
    pub upstream: Option<Bdf>,
    /// The host bridge above everything.
    pub root: RootBus,
    /// Vendor and device.
    pub ids: Ids,
    /// Its Access Control Services.
    pub acs: Acs,
    /// Its memory.
    pub bars: Vec<Bar>,
}

/// All functions of a machine, and the names that a configuration gives to some of them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PciTree {
    cpu: Cpu,
    functions: BTreeMap<Bdf, Function>,
    names: BTreeMap<String, Bdf>,
}

/// Why functions do not form a tree.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TreeError {
    /// Two functions with one address.
    #[error("PCI function {bdf} is there twice")]
    Twice {
        /// The address.
        bdf: Bdf,
    },
    /// The function above does not exist.
    #[error("PCI function {bdf} lies below {upstream}, which does not exist")]
    NoUpstream {
        /// The function.
        bdf: Bdf,
        /// What it names.
        upstream: Bdf,
    },
    /// The function above is not a bridge.
    #[error("PCI function {bdf} lies below {upstream}, which is no bridge")]
    NotABridge {
        /// The function.
        bdf: Bdf,
        /// What it names.
        upstream: Bdf,
    },
    /// The chain of bridges upwards has a loop, or ends at another host bridge.
    #[error("the bridges above PCI function {bdf} do not lead to its root bus {root}")]
    NoRoot {
        /// The function.
        bdf: Bdf,
        /// The expected host bridge.
        root: RootBus,
    },
    /// A name for a function that does not exist.
    #[error("{name:?} is to be PCI function {bdf}, which does not exist")]
    NoFunction {
        /// The name.
        name: String,
        /// What it names.
        bdf: Bdf,
    },
}

impl PciTree {
    /// Checks that the functions are a tree.
    ///
    /// # Errors
    ///
    /// [`TreeError`].
    pub fn new(cpu: Cpu, functions: impl IntoIterator<Item = Function>) -> Result<Self, TreeError> {
        let mut tree = Self { cpu, ..Self::default() };
        for function in functions {
            let bdf = function.bdf;
            if tree.functions.insert(bdf, function).is_some() {
                return Err(TreeError::Twice { bdf });
            }
        }
        for function in tree.functions.values() {
            tree.check(function)?;
        }
        Ok(tree)
    }

    /// Names a function, for the GPU or NIC of that name in the configuration.
    ///
    /// # Errors
    ///
    /// [`TreeError::NoFunction`].
    pub fn set_name(&mut self, name: &str, bdf: Bdf) -> Result<(), TreeError> {
        if !self.functions.contains_key(&bdf) {
            return Err(TreeError::NoFunction { name: name.to_owned(), bdf });
        }
        self.names.insert(name.to_owned(), bdf);
        Ok(())
    }

    /// The function with this name.
    pub fn by_name(&self, name: &str) -> Option<Bdf> {
        self.names.get(name).copied()
    }

    /// The name of a function, if it has one.
    pub fn name(&self, bdf: Bdf) -> Option<&str> {
        self.names.iter().find(|(_, named)| **named == bdf).map(|(name, _)| name.as_str())
    }

    /// The function at an address.
    pub fn function(&self, bdf: Bdf) -> Option<&Function> {
        self.functions.get(&bdf)
    }

    /// All functions, by address.
    pub fn functions(&self) -> impl Iterator<Item = &Function> {
        self.functions.values()
    }

    /// The machine's processor.
    pub fn cpu(&self) -> Cpu {
        self.cpu
    }

    /// The function and the bridges above it, up to the root port. Empty for an address without a
    /// function.
    #[doc(alias = "pci_upstream_bridge")]
    pub fn chain(&self, bdf: Bdf) -> impl Iterator<Item = &Function> {
        let up = |function: &&Function| self.function(function.upstream?);
        std::iter::successors(self.function(bdf), up)
    }

    fn check(&self, function: &Function) -> Result<(), TreeError> {
        let (bdf, root) = (function.bdf, function.root);
        if let Some(upstream) = function.upstream {
            match self.function(upstream).map(|above| above.kind) {
                None => return Err(TreeError::NoUpstream { bdf, upstream }),
                Some(FunctionKind::Endpoint | FunctionKind::HostBridge) => {
                    return Err(TreeError::NotABridge { bdf, upstream });
                }
                Some(_) => {}
            }
        }
        // A chain that is longer than the number of functions has a loop.
        let chain = self.chain(bdf).take(self.functions.len() + 1);
        let (count, same) =
            chain.fold((0, true), |(n, same), above| (n + 1, same && above.root == root));
        if count > self.functions.len() || !same {
            return Err(TreeError::NoRoot { bdf, root });
        }
        Ok(())
    }
}

impl fmt::Display for Ids {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:04x}", self.vendor, self.device)
    }
}

impl fmt::Display for RootBus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:04x}:{:02x}", self.domain, self.bus)
    }
}
