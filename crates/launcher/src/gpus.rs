//! `--gpu`: which nodes the program finds, and whether it finds CUDA, HSA or Level Zero.

use std::path::Path;
use std::process::Command;

use gpu::Preset;
use gpu::nodes::{self, PRESET};

use crate::sysfs::Drivers;

/// The variable that lists the paths of the nodes, one per GPU, in the order of the GPUs, separated
/// by commas.
const NODES: &str = "PEERDMA_DRM_NODE";

/// The first render node's minor number.
const FIRST_RENDER: usize = 128;

/// The preset for GPUs that programs reach by CUDA, and not by render nodes.
pub(super) const NVIDIA: &str = "nvidia";

/// The presets for GPUs that programs reach by Level Zero as well as by their render nodes.
const INTEL: [&str; 2] = ["xe", "i915"];

/// The preset for GPUs that programs reach by HSA as well as by their render nodes.
pub(super) const AMD: &str = "amdgpu";

/// The preset for GPUs that are accelerators, which `/sys` shows as well.
const HABANALABS: &str = "habanalabs";

/// The preset for GPUs that are VFIO devices, and the name of their driver.
const VFIO: &str = "vfio";
const VFIO_PCI: &str = "vfio-pci";

/// The variable that lists the drivers for Level Zero's loader to load, instead of those that it
/// knows by name.
const LEVEL_ZERO: &str = "ZE_ENABLE_ALT_DRIVERS";

/// Tells the program's libraries that the GPUs are from NVIDIA. Returns the machine they are in.
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
/// exists belongs to a real GPU and is left alone: ours get the next free numbers. Intel GPUs get a
/// Level Zero driver, AMD GPUs get HSA. Returns the machine that `/sys` shows on PCI, and the
/// drivers of its GPUs.
pub(super) fn announce(
    command: &mut Command,
    preset: &str,
    level_zero: Option<&Path>,
) -> Result<(gpu::Machine, Drivers), String> {
    environment::choose_gpu(preset);
    let machine = nodes::machine(preset)?;
    let is_free = |paths: &[String; 2]| !paths.iter().any(|path| Path::new(path).exists());
    let mut render_nodes = (0..).map(render_nodes).filter(is_free);
    let mut accelerators = (0..).map(accelerators).filter(is_free);
    let mut vfio_devices =
        (0..).map(vfio_devices).filter(|[device, _]| !Path::new(device).exists());
    let mut nodes = Vec::new();
    for gpu in machine.gpus() {
        let paths = match gpu.preset {
            Preset::Habanalabs => accelerators.next(),
            Preset::Vfio => vfio_devices.next(),
            _ => render_nodes.next(),
        };
        let [node, other] = paths.ok_or("there are no more numbers for nodes")?;
        let (name, driver) = (&gpu.name, gpu.preset.name());
        let at = machine.tree().by_name(name).map(|bdf| format!(" at {bdf}")).unwrap_or_default();
        tracing::info!(target: "peerdma::drm", "{name} ({driver}){at} is {node} and {other}");
        nodes.push(node);
    }
    command.env(PRESET, preset).env(NODES, nodes.join(","));
    if let Some(preset) = [AMD, HABANALABS].into_iter().find(|known| *known == preset) {
        return Ok((machine, Drivers::All(preset)));
    }
    if preset == VFIO {
        return Ok((machine, Drivers::All(VFIO_PCI)));
    }
    let Some(intel) = INTEL.into_iter().find(|intel| *intel == preset) else {
        return Ok((machine, Drivers::Own));
    };
    let driver = level_zero.ok_or("--gpu needs libpeerdma-ze.so next to the library")?;
    tracing::info!(target: "peerdma::level-zero", "the driver is {}", driver.display());
    command.env(LEVEL_ZERO, driver);
    Ok((machine, Drivers::All(intel)))
}

fn render_nodes(unit: usize) -> [String; 2] {
    [format!("/dev/dri/renderD{}", unit + FIRST_RENDER), format!("/dev/dri/card{unit}")]
}

fn accelerators(unit: usize) -> [String; 2] {
    [format!("/dev/accel/accel{unit}"), format!("/dev/accel/accel_controlD{unit}")]
}

/// All of them are bound to one iommufd, which is ours even where the machine has one.
fn vfio_devices(unit: usize) -> [String; 2] {
    [format!("/dev/vfio/devices/vfio{unit}"), "/dev/iommu".to_owned()]
}
