//! `--gpu`: which render nodes the program finds, and that it finds CUDA, HSA or Level Zero.

use std::path::Path;
use std::process::Command;

use crate::gpus::{self, PRESET};

/// The variable that lists the paths of the render nodes, in the order of the GPUs, separated by
/// commas.
const NODES: &str = "PEERDMA_DRM_NODE";

/// The first render node's minor number.
const FIRST_RENDER: usize = 128;

/// The preset whose GPUs programs reach by CUDA, and not by render nodes.
pub(super) const NVIDIA: &str = "nvidia";

/// The presets whose GPUs programs reach by Level Zero, beside their render nodes.
const INTEL: [&str; 2] = ["xe", "i915"];

/// The preset whose GPUs programs reach by HSA, beside their render nodes.
pub(super) const AMD: &str = "amdgpu";

/// What the loader of Level Zero loads instead of the drivers that it knows by name.
const LEVEL_ZERO: &str = "ZE_ENABLE_ALT_DRIVERS";

/// Tells the program's libraries that the GPUs are NVIDIA's. Returns the machine that they are in.
pub(super) fn announce_cuda(command: &mut Command) -> Result<gpu::Machine, String> {
    environment::choose_gpu(NVIDIA);
    let machine = cuda::machine()?;
    for gpu in machine.gpus() {
        let (name, driver) = (&gpu.name, gpu.preset.name());
        let at = machine.tree().by_name(name).map(|bdf| format!(" at {bdf}")).unwrap_or_default();
        tracing::info!(target: "peerdma::cuda", "{name} ({driver}){at}: {} bytes", gpu.vram);
    }
    command.env(PRESET, NVIDIA);
    Ok(machine)
}

/// Chooses a node for each GPU of the configuration, and tells the program's libraries. A node that
/// exists is a real GPU's and stays so: ours get the next numbers that are free. Those of Intel
/// have a driver of Level Zero, those of AMD HSA, and both are on PCI: returns the machine that
/// they are in.
pub(super) fn announce(
    command: &mut Command,
    preset: &str,
    level_zero: Option<&Path>,
) -> Result<Option<(gpu::Machine, &'static str)>, String> {
    environment::choose_gpu(preset);
    let machine = gpus::machine(preset)?;
    let free = (0..).filter(|unit| {
        let [render, card] = paths(*unit);
        !Path::new(&render).exists() && !Path::new(&card).exists()
    });
    let mut nodes = Vec::new();
    for (gpu, unit) in machine.gpus().iter().zip(free) {
        let [render, card] = paths(unit);
        let (name, driver) = (&gpu.name, gpu.preset.name());
        let at = machine.tree().by_name(name).map(|bdf| format!(" at {bdf}")).unwrap_or_default();
        tracing::info!(target: "peerdma::drm", "{name} ({driver}){at} is {render} and {card}");
        nodes.push(render);
    }
    command.env(PRESET, preset).env(NODES, nodes.join(","));
    if preset == AMD {
        return Ok(Some((machine, AMD)));
    }
    let Some(intel) = INTEL.into_iter().find(|intel| *intel == preset) else { return Ok(None) };
    let driver = level_zero.ok_or("--gpu needs libpeerdma-ze.so beside the library")?;
    tracing::info!(target: "peerdma::level-zero", "the driver is {}", driver.display());
    command.env(LEVEL_ZERO, driver);
    Ok(Some((machine, intel)))
}

fn paths(unit: usize) -> [String; 2] {
    [format!("/dev/dri/renderD{}", unit + FIRST_RENDER), format!("/dev/dri/card{unit}")]
}
