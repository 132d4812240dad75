//! A NIC, a disk and a GPU below one switch, and the memory that data pass through.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use dmabuf::DeviceAddr;
use gpu::{Gpu, GpuConfig};
use orchestrator::{Client, Cmb, MemoryProvider, Orchestrator, Published};
use pci::{Bdf, PciConfig, PciTree};
use verbs::Context;
use verbs::soft::NicConfig;

use crate::{GpuMemory, NicMemory};

/// Bytes of the disk's memory buffer, of the GPU's memory and of the NIC's.
const LENT: u64 = 32 << 20;

const TREE: &str = r#"
[[host_bridge]]
name = "root0"
[[switch]]
name = "switch0"
under = "root0"
[[device]]
name = "nic0"
under = "switch0"
bars = ["32M"]
[[device]]
name = "nvme0"
under = "switch0"
bars = ["32M"]
[[device]]
name = "gpu0"
under = "switch0"
bars = ["32M"]
"#;

/// Whose memory data pass through.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "the providers of the machine")]
pub enum Kind {
    /// The host's.
    #[default]
    System,
    /// The memory buffer of the disk's controller.
    Cmb,
    /// A software GPU's.
    Gpu,
    /// Device memory of the NIC.
    Nic,
}

/// A NIC `nic0`, a disk `nvme0` and a GPU `gpu0` below one switch, and the orchestrator that brings
/// them together.
#[derive(Clone, Debug)]
pub struct Machine {
    tree: Arc<PciTree>,
    orchestrator: Orchestrator,
}

impl Kind {
    /// All of them, the host's first.
    pub const ALL: [Self; 4] = [Self::System, Self::Cmb, Self::Gpu, Self::Nic];

    /// Its name on a command line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::Cmb => "cmb",
            Self::Gpu => "gpu",
            Self::Nic => "nic",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|kind| kind.name() == name);
        found.ok_or_else(|| format!("{name:?} is none of system, cmb, gpu and nic"))
    }
}

impl Default for Machine {
    fn default() -> Self {
        Self::new()
    }
}

impl Machine {
    /// The machine, of which no device is open yet.
    pub fn new() -> Self {
        let config: PciConfig = toml::from_str(TREE).expect("the text above");
        let tree = config.build(&["nic0", "nvme0", "gpu0"]).expect("the tree above");
        let tree = Arc::new(tree);
        Self { orchestrator: Orchestrator::new(Arc::clone(&tree)), tree }
    }

    fn at(&self, name: &str) -> Bdf {
        self.tree.by_name(name).expect("in the tree above")
    }

    /// How its NIC differs from any other.
    pub fn nic(&self) -> NicConfig {
        let address = Some(DeviceAddr(self.at("nic0").to_bits()));
        let tree = Some(Arc::clone(&self.tree));
        NicConfig { address, tree, max_dm_size: LENT, ..NicConfig::default() }
    }

    /// Its disk.
    ///
    /// # Errors
    ///
    /// As [`storage::Client::new`].
    pub fn disk(&self) -> storage::Result<storage::Client> {
        let addr = Some(DeviceAddr(self.at("nvme0").to_bits()));
        let name = "nvme0".to_owned();
        storage::Client::new(&storage::ClientConfig {
            name,
            addr,
            depth: 1024,
            ..storage::ClientConfig::default()
        })
    }

    /// The orchestrator, which finds memory near both clients.
    pub fn orchestrator(&self) -> &Orchestrator {
        &self.orchestrator
    }

    /// The clients: the NIC and the disk.
    pub fn clients(&self) -> Vec<Client> {
        let client = |name: &str| Client { name: name.to_owned(), bdf: self.at(name) };
        vec![client("nic0"), client("nvme0")]
    }

    /// Publishes the provider of this kind; `nic` is the open NIC. `None`: the host's memory needs
    /// none.
    ///
    /// # Errors
    ///
    /// In words: the device does not come up.
    pub fn publish(&self, kind: Kind, nic: &Context) -> Result<Option<Published>, String> {
        let provider: Arc<dyn MemoryProvider> = match kind {
            Kind::System => return Ok(None),
            Kind::Cmb => {
                let at = self.at("nvme0");
                let cmb = Cmb::new(self.orchestrator.p2pdma(), "nvme0", at, 0, LENT);
                Arc::new(cmb.map_err(|error| error.to_string())?)
            }
            Kind::Gpu => {
                let config = GpuConfig {
                    name: "gpu0".to_owned(),
                    vram: LENT,
                    gtt: LENT,
                    shared: false,
                    ..GpuConfig::default()
                };
                let gpu = Gpu::open_in(&config, Arc::clone(&self.tree));
                let gpu = gpu.map_err(|error| error.to_string())?;
                Arc::new(GpuMemory::new(gpu).ok_or("gpu0 is not in the tree")?)
            }
            Kind::Nic => {
                let addr = DeviceAddr(self.at("nic0").to_bits());
                Arc::new(NicMemory::new(nic, "nic0", addr).ok_or("nic0 is not in the tree")?)
            }
        };
        self.orchestrator.publish(provider).map(Some).map_err(|error| error.to_string())
    }
}
