//! The software GPUs of the configuration, for the program that announces their nodes and for the
//! library that implements these.
//!
//! They are those of [`Machine`], except that a section of the file without a preset is an amdgpu:
//! most programs know how to allocate buffers from that driver.

use crate::machine::{Machine, Presets};
use crate::persona::Preset;

/// The variable by which `peerdma run` passes `--gpu`: the preset, or nothing.
pub const PRESET: &str = "PEERDMA_GPU";

/// The PCI id of a VFIO device, vendor in the low half: an id that exists for tests.
pub const VFIO_ID: u32 = 0x0005_1b36;

/// The class of a VFIO device: memory.
pub const VFIO_CLASS: u32 = 0x05_8000;

/// The machine of the file that `PEERDMA_CONFIG` names. `preset` overrides it; an empty one has no
/// effect.
///
/// # Errors
///
/// What is wrong with the file, or with a GPU that has no node.
pub fn machine(preset: &str) -> Result<Machine, String> {
    have_nodes(Machine::load_with(presets(preset)))
}

fn presets(preset: &str) -> Presets<'_> {
    Presets { default: Some("amdgpu"), all: Some(preset).filter(|preset| !preset.is_empty()) }
}

fn have_nodes(machine: crate::error::Result<Machine>) -> Result<Machine, String> {
    let machine = machine.map_err(|error| error.what)?;
    for gpu in machine.gpus() {
        if gpu.preset == Preset::Nvidia {
            return Err(format!(
                "gpu {:?}: {} has no node that programs open here: amdgpu, i915, xe, habanalabs or vfio",
                gpu.name,
                gpu.preset.name()
            ));
        }
    }
    Ok(machine)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str, preset: &str) -> Result<Machine, String> {
        have_nodes(Machine::parse_with(text, presets(preset)))
    }

    #[test]
    fn without_a_section_there_is_one_named_after_its_driver() {
        let machine = parse("", "").unwrap();
        assert_eq!((machine.gpus().len(), machine.gpus()[0].preset), (1, Preset::Amdgpu));
        let machine = parse("", "i915").unwrap();
        assert_eq!((&*machine.gpus()[0].name, machine.gpus()[0].preset), ("i915", Preset::I915));
        let tree = machine.tree();
        assert!(tree.by_name("i915").is_some() && tree.by_name("peerdma0").is_some());
    }

    #[test]
    fn the_option_stands_above_the_file() {
        let text = "[[gpu]]\nname = \"a\"\n[[gpu]]\nname = \"b\"\npreset = \"xe\"";
        let presets = |preset| {
            let machine = parse(text, preset).unwrap();
            machine.gpus().iter().map(|gpu| gpu.preset).collect::<Vec<_>>()
        };
        assert_eq!(presets(""), [Preset::Amdgpu, Preset::Xe]);
        assert_eq!(presets("i915"), [Preset::I915, Preset::I915]);
    }

    #[test]
    fn a_gpu_without_a_node_is_refused() {
        for preset in ["nvidia", "nouveau"] {
            assert!(parse("", preset).is_err(), "{preset}");
        }
    }
}
