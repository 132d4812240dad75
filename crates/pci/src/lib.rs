//! The PCI tree, and peer-to-peer DMA between its devices.
//!
//! A device can access the memory of another one if the bridges between them allow it. That depends
//! on the tree alone: on the first common bridge, on bridges on the path that redirect everything
//! to the root (ACS), and on whether that root complex is known to forward peer-to-peer traffic
//! (`docs/semantics.md` 4.2).
//!
//! ```text
//!                 CPU, host bridge 0000:00                      0000:80
//!                    /           \                                 |
//!              root port       root port                       root port
//!                  |               |                               |
//!              switch up        gpu1  <- no common bridge ->     nic1
//!               /      \                 distance: both chains
//!          port          port            only if the host bridge is on the list
//!           |             |
//!         nic0          gpu0         distance 4, straight, unless a port redirects (ACS)
//! ```
//!
//! * [`PciTree`] is the tree: read from `/sys` or from a copy of it ([`PciTree::from_sysfs`]), or
//!   modelled from the `[pci]` section of the configuration ([`PciConfig`]). It is immutable.
//! * [`PciTree::path`] gives the path between two functions, with the text of a refusal.
//! * [`P2pdma`] is the bookkeeping on top: providers of memory in a BAR, pools with allocation by
//!   pages, and the orchestrator's queries (`distance_many`, `find_many`).
//! * [`Topology`] is the tree from the user's side: GPUs, NICs and disks, how far they are from
//!   each other, which of them reach whose memory, and why the others do not.
//!
//! No device is touched: this crate has no unsafe code, and no I/O except reading sysfs. It does
//! not depend on dma-buf, RDMA or GPUs.
//!
//! ```
//! use pci::{MapType, PciConfig};
//!
//! let tree = PciConfig::default().build(&["peerdma0", "gpu0"]).expect("the default is sound");
//! let (nic, gpu) = (tree.by_name("peerdma0").unwrap(), tree.by_name("gpu0").unwrap());
//! let path = tree.path(gpu, nic);
//! assert_eq!((path.distance, path.map_type), (4, MapType::BusAddr));
//! ```
#![forbid(unsafe_code)]

mod bdf;
mod config;
mod enable;
mod host_bridge;
mod p2pdma;
mod path;
mod pool;
mod resource;
mod sysfs;
mod topo;
mod tree;

pub use bdf::{Bdf, BdfError};
pub use config::{
    ConfigError, CpuVendor, DeviceConfig, HostBridgeConfig, PciConfig, StorageConfig, SwitchConfig,
    parse_size,
};
pub use enable::{Enable, EnableError};
pub use host_bridge::{Cpu, HostBridgeRefusal, Unlisted};
pub use p2pdma::{AddResourceError, InitError, P2pdma, P2pmemView, Provider};
pub use path::{MapType, Path, Route};
pub use pool::{P2pmem, SglEntry};
pub use sysfs::SysfsError;
pub use topo::{Device, DeviceKind, Link, Memory, PeerToPeer, Refusal, Topology, TopologyError};
pub use tree::{Acs, Bar, BarKind, Function, FunctionKind, Ids, PciTree, RootBus, TreeError};
