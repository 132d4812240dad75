//! `peerdma topo`: how near devices are to each other, and which of them reach whose memory.

mod json;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use ::gpu::Machine;
use pci::{Device, DeviceKind, Memory, Topology};

use super::outcome::Outcome;

/// What `peerdma topo` takes.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Show this machine, from its sysfs or a copy of one, instead of the model in PEERDMA_CONFIG
    #[arg(long, value_name = "PATH", num_args = 0..=1, default_missing_value = "/sys")]
    sysfs: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn main(args: Args) -> ExitCode {
    let topology = match &args.sysfs {
        Some(root) => Topology::from_sysfs(root).map_err(Into::into),
        None => modelled(),
    };
    match topology {
        Ok(topology) if args.json => println!("{:#}", json::of(&topology)),
        Ok(topology) => print!("{topology}"),
        Err(error) => {
            eprintln!("peerdma topo: {error}");
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

/// The machine of the configuration.
fn modelled() -> Outcome<Topology> {
    let machine = Machine::load()?;
    let tree = machine.tree();
    let gpus = machine.gpus().iter().map(|gpu| {
        let (size, of) = (Some(gpu.visible()), Some(gpu.vram));
        let memory = Memory::Reachable { size, of, resizable_to: None };
        (DeviceKind::Gpu, &gpu.name, memory)
    });
    // `ibv_alloc_dm`, and dma-bufs of it.
    let lent = Memory::Reachable { size: None, of: None, resizable_to: None };
    let nics = machine.nics().iter().map(|name| (DeviceKind::Nic, name, lent));
    let disks = machine.storage().iter().map(|disk| {
        let buffer =
            Memory::Reachable { size: Some(disk.cmb), of: Some(disk.cmb), resizable_to: None };
        (DeviceKind::Nvme, &disk.name, if disk.cmb == 0 { Memory::None } else { buffer })
    });
    let device = |(kind, name, memory): (_, &String, _)| {
        let function = tree.function(tree.by_name(name)?)?;
        let mut device = Device::new(kind, function.bdf);
        (device.ids, device.memory) = (function.ids, memory);
        device.names.push(name.clone());
        Some(device)
    };
    Ok(Topology::new(Arc::clone(tree), gpus.chain(nics).chain(disks).filter_map(device))?)
}
