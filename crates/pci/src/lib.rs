//! Who can reach whom: the PCI tree, and peer-to-peer DMA on it.
//!
//! A device may read and write the memory of another one when the bridges between them let it.
//! Which pairs that are is decided by the tree alone: how far up the two meet, whether a bridge on
//! the way sends everything to the root (ACS redirect), and whether that root is known to turn it
//! round (`docs/semantics.md` 4.2).
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
//!   modelled from the `[pci]` section of the configuration ([`PciConfig`]). It does not change.
//! * [`PciTree::path`] answers for two functions, with the words of a refusal.
//! * [`P2pdma`] is the bookkeeping on top: providers of memory in a BAR, pools that are handed out
//!   by pages, and the orchestrator's questions (`distance_many`, `find_many`).
//!
//! No device is touched: this crate has neither unsafe code nor I/O, but for reading sysfs. It
//! knows nothing of dma-buf, RDMA or GPUs.
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
mod sysfs;
mod tree;

pub use bdf::{Bdf, BdfError};
pub use config::{
    ConfigError, CpuVendor, DeviceConfig, HostBridgeConfig, PciConfig, SwitchConfig, parse_size,
};
pub use enable::{Enable, EnableError};
pub use host_bridge::Cpu;
pub use p2pdma::{AddResourceError, InitError, P2pdma, P2pmemView, Provider};
pub use path::{MapType, Path, Route};
pub use pool::{P2pmem, SglEntry};
pub use sysfs::SysfsError;
pub use tree::{Acs, Bar, BarKind, Function, FunctionKind, Ids, PciTree, RootBus, TreeError};
