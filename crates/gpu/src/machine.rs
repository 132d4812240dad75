//! The machine that the configuration file describes: its GPUs, and the PCI tree that they share
//! with the NICs.

use std::sync::Arc;

use pci::{PciConfig, PciTree, StorageConfig};
use serde::Deserialize;

use crate::config::GpuConfig;
use crate::error::{Result, invalid, no_device};
use crate::gpu::Gpu;

/// The GPUs of the file that `PEERDMA_CONFIG` names, in the same tree as the NICs of that file:
/// NICs and GPUs get the same addresses in it, whichever program reads the file.
///
/// A file without `[[gpu]]` has the default one, `gpu0`.
#[derive(Clone, Debug)]
pub struct Machine {
    nics: Vec<String>,
    gpus: Vec<GpuConfig>,
    storage: Vec<StorageConfig>,
    describes_bus: bool,
    tree: Arc<PciTree>,
}

#[derive(Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct File {
    /// Only the name of a NIC matters here.
    #[serde(rename = "nic")]
    nics: Vec<Named>,
    #[serde(rename = "gpu")]
    gpus: Vec<toml::Table>,
    storage: Vec<StorageConfig>,
    pci: PciConfig,
}

/// Settings besides the file.
#[derive(Clone, Copy, Debug, Default)]
#[expect(clippy::exhaustive_structs, reason = "callers fill in what they know")]
pub struct Presets<'a> {
    /// The preset for sections that name none, and for a machine whose file has no section; that
    /// machine's GPU is named after it. Without a preset, a section means [`GpuConfig::default`].
    pub default: Option<&'a str>,
    /// The preset of every GPU, overriding the file.
    pub all: Option<&'a str>,
}

#[derive(Deserialize)]
struct Named {
    #[serde(default = "first_nic")]
    name: String,
}

fn first_nic() -> String {
    "peerdma0".to_owned()
}

impl Machine {
    /// Reads the file that `PEERDMA_CONFIG` names; without one, the machine is one NIC and one GPU
    /// that reach each other.
    ///
    /// # Errors
    ///
    /// ENODEV when the file cannot be read, otherwise as [`parse`](Self::parse).
    pub fn load() -> Result<Self> {
        Self::load_with(Presets::default())
    }

    /// The same with presets from elsewhere.
    ///
    /// # Errors
    ///
    /// As [`load`](Self::load); EINVAL also for presets that do not exist.
    pub fn load_with(presets: Presets<'_>) -> Result<Self> {
        let Some(file) = environment::configuration().map_err(no_device)? else {
            return Self::parse_with("", presets);
        };
        let named = |mut error: dmabuf::ExporterError| {
            error.what = format!("PEERDMA_CONFIG: {}", file.blame(&error.what));
            error
        };
        Self::parse_with(file.text(), presets).map_err(named)
    }

    /// Reads the text of such a file.
    ///
    /// # Errors
    ///
    /// EINVAL for an invalid configuration.
    pub fn parse(text: &str) -> Result<Self> {
        Self::parse_with(text, Presets::default())
    }

    /// The same with presets from elsewhere.
    ///
    /// # Errors
    ///
    /// EINVAL for an invalid configuration, and for presets that do not exist.
    pub fn parse_with(text: &str, presets: Presets<'_>) -> Result<Self> {
        let mut file: File = toml::from_str(text).map_err(|error| invalid(error.to_string()))?;
        if file.nics.is_empty() {
            file.nics.push(Named { name: first_nic() });
        }
        if file.gpus.is_empty() {
            // The GPU is named after its driver: a name means one GPU, and a GPU has one driver.
            let name = presets.all.or(presets.default).map(|name| ("name".to_owned(), name.into()));
            file.gpus.push(name.into_iter().collect());
        }
        let gpu = |mut section: toml::Table| -> Result<GpuConfig> {
            if let Some(all) = presets.all {
                section.insert("preset".to_owned(), all.into());
            } else if let Some(default) = presets.default {
                section.entry("preset").or_insert_with(|| default.into());
            }
            let config: GpuConfig =
                section.try_into().map_err(|error: toml::de::Error| invalid(error.to_string()))?;
            config.check()?;
            Ok(config)
        };
        let gpus = file.gpus.into_iter().map(gpu).collect::<Result<Vec<_>>>()?;
        let nics = file.nics.iter().map(|nic| nic.name.as_str());
        let names: Vec<&str> = nics.chain(gpus.iter().map(|gpu| gpu.name.as_str())).collect();
        let tree = file
            .pci
            .build_with(&names, &file.storage)
            .map_err(|error| invalid(error.to_string()))?;
        let nics = file.nics.into_iter().map(|nic| nic.name).collect();
        let (storage, pci) = (file.storage, file.pci);
        let describes_bus = pci != PciConfig::default() || !storage.is_empty();
        Ok(Self { nics, gpus, storage, describes_bus, tree: Arc::new(tree) })
    }

    /// The names of the NICs, in the order of the file.
    pub fn nics(&self) -> &[String] {
        &self.nics
    }

    /// The GPUs, in the order of the file.
    pub fn gpus(&self) -> &[GpuConfig] {
        &self.gpus
    }

    /// The NVMe controllers, in the order of the file.
    pub fn storage(&self) -> &[StorageConfig] {
        &self.storage
    }

    /// Whether the file says what is on the bus beside NICs and GPUs, or where they are.
    pub fn describes_bus(&self) -> bool {
        self.describes_bus
    }

    /// Where everything is.
    pub fn tree(&self) -> &Arc<PciTree> {
        &self.tree
    }

    /// Opens the first GPU.
    ///
    /// # Errors
    ///
    /// As [`Gpu::open`].
    pub fn open_first(&self) -> Result<Gpu> {
        Gpu::open_in(&self.gpus[0], Arc::clone(&self.tree))
    }

    /// Opens the GPU of this name.
    ///
    /// # Errors
    ///
    /// ENODEV when there is none; otherwise as [`Gpu::open`].
    pub fn open(&self, name: &str) -> Result<Gpu> {
        let found = self.gpus.iter().find(|gpu| gpu.name == name);
        let config = found.ok_or_else(|| no_device(format!("there is no GPU {name:?}")))?;
        Gpu::open_in(config, Arc::clone(&self.tree))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_a_file_has_one_gpu_that_the_nic_reaches() {
        let machine = Machine::parse("").expect("the default");
        let (nic, gpu) = (machine.tree().by_name("peerdma0"), machine.tree().by_name("gpu0"));
        let path = machine.tree().path(gpu.expect("there"), nic.expect("there"));
        assert_eq!(path.map_type, pci::MapType::BusAddr);
        assert_eq!(machine.gpus(), [GpuConfig::default()]);
        assert!(machine.open("gpu1").unwrap_err().what.contains("gpu1"));
    }

    #[test]
    fn nics_come_first_and_mistakes_are_named() {
        let text = "[[gpu]]\nname = \"a\"\nshared = false\n[[nic]]\nname = \"n\"\npreset = \"efa\"";
        let machine = Machine::parse(text).expect("sound");
        assert!(machine.tree().by_name("n") < machine.tree().by_name("a"));
        assert_eq!(machine.open("a").expect("it opens").bdf(), machine.tree().by_name("a"));
        let what = |text: &str| Machine::parse(text).unwrap_err().what;
        assert!(what("[[gpus]]").contains("gpus"));
        assert!(what("[[gpu]]\nvram = 1").contains("whole pages"));
        assert!(what("[[pci.switch]]\nname = \"s\"\nunder = \"nobody\"").contains("nobody"));
    }
}
