//! The software GPUs of the configuration, for the program that announces them and the library that has them.
//!
//! They are the `[[gpu]]` sections of the file that `PEERDMA_CONFIG` names, or one GPU if it has none. A section that
//! names no preset is an amdgpu: the driver whose way of making buffers most programs know.

use std::path::Path;

use gpu::{GpuConfig, Preset};
use serde::Deserialize;

/// The variable by which `peerdma run` passes `--gpu`: the preset it names, or nothing.
pub(crate) const PRESET: &str = "PEERDMA_GPU";

/// The parts of the file that say what GPUs there are, and where.
#[derive(Deserialize)]
struct File {
    #[serde(default)]
    nic: Vec<Named>,
    #[serde(default)]
    gpu: Vec<toml::Table>,
    #[serde(default)]
    pci: pci::PciConfig,
}

#[derive(Deserialize)]
struct Named {
    #[serde(default = "first_nic")]
    name: String,
}

/// The name that a NIC has if the file gives it none.
fn first_nic() -> String {
    "peerdma0".to_owned()
}

/// What there is.
pub(crate) struct Machine {
    /// The GPUs, in the order of their render nodes.
    pub(crate) gpus: Vec<GpuConfig>,
    /// The PCI tree, in which the NICs have the addresses that the engine gives them.
    pub(crate) tree: pci::PciTree,
}

impl Machine {
    /// Reads the file that `PEERDMA_CONFIG` names. `preset` stands above what it says; an empty one says nothing.
    pub(crate) fn load(preset: &str) -> Result<Self, String> {
        let path = std::env::var_os("PEERDMA_CONFIG").filter(|path| !path.is_empty());
        let Some(path) = path else { return Self::parse("", preset) };
        let path = Path::new(&path);
        let named = |error: String| format!("PEERDMA_CONFIG: {}: {error}", path.display());
        let text = std::fs::read_to_string(path).map_err(|error| named(error.to_string()))?;
        Self::parse(&text, preset).map_err(named)
    }

    fn parse(text: &str, preset: &str) -> Result<Self, String> {
        let mut file: File = toml::from_str(text).map_err(|error| error.to_string())?;
        if file.nic.is_empty() {
            file.nic.push(Named { name: first_nic() });
        }
        if file.gpu.is_empty() {
            // Named after its driver: GPUs of one name are one GPU, and it has one driver.
            let name = if preset.is_empty() { "amdgpu" } else { preset };
            file.gpu.push(toml::Table::from_iter([("name".to_owned(), name.into())]));
        }
        let gpus = file.gpu.into_iter().map(|section| one(section, preset));
        let gpus = gpus.collect::<Result<Vec<_>, _>>()?;
        let nics = file.nic.iter().map(|nic| nic.name.as_str());
        let names: Vec<&str> = nics.chain(gpus.iter().map(|gpu| gpu.name.as_str())).collect();
        let tree = file.pci.build(&names).map_err(|error| error.to_string())?;
        Ok(Self { gpus, tree })
    }
}

fn one(mut section: toml::Table, preset: &str) -> Result<GpuConfig, String> {
    if !preset.is_empty() {
        section.insert("preset".to_owned(), preset.into());
    } else if !section.contains_key("preset") {
        section.insert("preset".to_owned(), "amdgpu".into());
    }
    let config: GpuConfig = section.try_into().map_err(|error| error.to_string())?;
    match config.preset {
        Preset::Amdgpu | Preset::I915 | Preset::Xe => Ok(config),
        other => Err(format!(
            "gpu {:?}: {} is no DRM driver and has no render node: amdgpu, i915 or xe",
            config.name,
            other.name()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_section_there_is_one_named_after_its_driver() {
        let machine = Machine::parse("", "").unwrap();
        assert_eq!((machine.gpus.len(), machine.gpus[0].preset), (1, Preset::Amdgpu));
        let machine = Machine::parse("", "i915").unwrap();
        assert_eq!((&*machine.gpus[0].name, machine.gpus[0].preset), ("i915", Preset::I915));
        assert!(
            machine.tree.by_name("i915").is_some() && machine.tree.by_name("peerdma0").is_some()
        );
    }

    #[test]
    fn the_option_stands_above_the_file() {
        let text = "[[gpu]]\nname = \"a\"\n[[gpu]]\nname = \"b\"\npreset = \"xe\"";
        let presets = |preset| {
            let machine = Machine::parse(text, preset).unwrap();
            machine.gpus.iter().map(|gpu| gpu.preset).collect::<Vec<_>>()
        };
        assert_eq!(presets(""), [Preset::Amdgpu, Preset::Xe]);
        assert_eq!(presets("i915"), [Preset::I915, Preset::I915]);
    }

    #[test]
    fn what_has_no_render_node_is_refused() {
        for preset in ["vfio", "habanalabs", "nouveau"] {
            assert!(Machine::parse("", preset).is_err(), "{preset}");
        }
    }
}
