//! The machine that a target runs on: a NIC, a disk and a GPU below one switch, and the memory that
//! data pass through.

use std::sync::Arc;

use dmabuf::DeviceAddr;
use gpu::{Gpu, GpuConfig, Place};
use orchestrator::{Allocation, Client, Cmb, MemoryProvider, Orchestrator, Published};
use pci::{Bdf, PciConfig, PciTree};
use verbs::NicConfig;

/// Bytes of the disk's memory buffer, and of the GPU's memory.
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
#[expect(clippy::exhaustive_enums, reason = "the providers of the machine")]
pub enum Kind {
    /// The host's.
    #[default]
    System,
    /// The memory buffer of the disk's controller.
    Cmb,
    /// A software GPU's.
    Gpu,
}

/// The devices, and who brings them together.
#[derive(Clone, Debug)]
pub struct Machine {
    tree: Arc<PciTree>,
    orchestrator: Orchestrator,
}

/// A GPU lends VRAM that stays there.
struct Lent(Gpu, Bdf);

impl MemoryProvider for Lent {
    fn name(&self) -> &str {
        &self.0.config().name
    }

    fn bdf(&self) -> Bdf {
        self.1
    }

    fn allocate(&self, len: u64) -> Result<Allocation, String> {
        let bo = self.0.alloc(len, Place::ONLY_VRAM).map_err(|error| error.to_string())?;
        let buffer = bo.export().map_err(|error| error.to_string())?;
        Ok(Allocation { buffer, hold: Box::new(bo) })
    }

    fn revoke_all(&self, _held: Vec<Allocation>, _why: &str) {
        self.0.remove();
    }
}

impl Default for Machine {
    fn default() -> Self {
        Self::new()
    }
}

impl Machine {
    /// The machine of the module's first words.
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
        NicConfig { address, tree: Some(Arc::clone(&self.tree)), ..NicConfig::default() }
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

    /// Who finds memory near both.
    pub fn orchestrator(&self) -> &Orchestrator {
        &self.orchestrator
    }

    /// Those who use that memory.
    pub fn clients(&self) -> Vec<Client> {
        let client = |name: &str| Client { name: name.to_owned(), bdf: self.at(name) };
        vec![client("nic0"), client("nvme0")]
    }

    /// Publishes the provider of this kind. `None`: the host's memory needs none.
    ///
    /// # Errors
    ///
    /// In words: the device does not come up.
    pub fn publish(&self, kind: Kind) -> Result<Option<Published>, String> {
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
                Arc::new(Lent(gpu.map_err(|error| error.to_string())?, self.at("gpu0")))
            }
        };
        self.orchestrator.publish(provider).map(Some).map_err(|error| error.to_string())
    }
}
