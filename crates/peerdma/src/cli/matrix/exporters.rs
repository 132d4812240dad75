//! The exporters, and the machine that contains them.

use std::sync::Arc;

use dmabuf::{DeviceAddr, DmaBuf};
use gpu::{Bo, Domain, Gpu, GpuConfig, Place, Preset};
use pci::{DeviceConfig, HostBridgeConfig, PciConfig, PciTree, SwitchConfig};
use verbs::soft::{self, NicConfig};
use verbs::{Context, Dm};

use super::table::{Cell, Row};
use crate::cli::outcome::Outcome;

/// Bytes of each buffer.
pub(super) const SIZE: u64 = 64 << 10;

/// A GPU, a NIC and one whose memory is exported behind one switch, and another NIC below a root
/// that does not route between its ports.
pub(super) struct Machine {
    tree: Arc<PciTree>,
    nic: Context,
}

impl Machine {
    pub(super) fn new() -> Outcome<Self> {
        let bridge = |name: &str| HostBridgeConfig { name: name.to_owned(), ..Default::default() };
        let under = |name: &str, under: &str| DeviceConfig {
            name: name.to_owned(),
            under: Some(under.to_owned()),
            ..Default::default()
        };
        let switch = SwitchConfig {
            name: "switch".to_owned(),
            under: Some("here".to_owned()),
            ..Default::default()
        };
        let config = PciConfig {
            host_bridges: vec![bridge("here"), bridge("elsewhere")],
            switches: vec![switch],
            devices: vec![
                under("near", "switch"),
                under("gpu0", "switch"),
                under("memory", "switch"),
                under("far", "elsewhere"),
            ],
            ..PciConfig::default()
        };
        let tree = Arc::new(config.build(&[])?);
        let config = NicConfig {
            name: format!("matrix{}-memory", std::process::id()),
            address: tree.by_name("memory").map(|bdf| DeviceAddr(bdf.to_bits())),
            tree: Some(Arc::clone(&tree)),
            ..NicConfig::default()
        };
        let nic = soft::device(config)?.open()?;
        Ok(Self { tree, nic })
    }

    /// The address of a NIC that reaches the exporters, or of one that does not.
    pub(super) fn nic(&self, reaches: bool) -> Option<DeviceAddr> {
        let name = if reaches { "near" } else { "far" };
        self.tree.by_name(name).map(|bdf| DeviceAddr(bdf.to_bits()))
    }
}

/// An exporter.
#[derive(Clone, Copy)]
pub(super) enum Exporter {
    /// Plain memory: by udmabuf where the kernel has it.
    Memory,
    /// A GPU that follows the rules of a driver.
    Gpu(Preset),
    /// A NIC: its device memory.
    Nic,
}

impl Exporter {
    /// The rows of the table, with nothing measured yet.
    pub(super) fn rows() -> Vec<(Row, Self)> {
        let row = |exporter: &str, reaches| Row {
            exporter: exporter.to_owned(),
            reaches,
            cells: Default::default(),
        };
        let mut rows = vec![(row("memory", None), Self::Memory)];
        let presets = [
            Preset::Amdgpu,
            Preset::Xe,
            Preset::I915,
            Preset::Habanalabs,
            Preset::Vfio,
            Preset::Nvidia,
        ];
        for preset in presets {
            for reaches in [true, false] {
                rows.push((row(preset.name(), Some(reaches)), Self::Gpu(preset)));
            }
        }
        for reaches in [true, false] {
            rows.push((row("uverbs", Some(reaches)), Self::Nic));
        }
        rows
    }
}

/// A buffer, and how its owner reads it.
pub(super) struct Buffer {
    exported: DmaBuf,
    owner: Owner,
}

enum Owner {
    Memory,
    Gpu(Bo),
    Nic(Dm),
}

impl Buffer {
    pub(super) fn new(exporter: Exporter, machine: &Machine) -> Outcome<Self> {
        let (exported, owner) = match exporter {
            Exporter::Memory => (DmaBuf::export(SIZE, "matrix")?, Owner::Memory),
            Exporter::Gpu(preset) => {
                let config = GpuConfig {
                    preset,
                    vram: 1 << 20,
                    gtt: 1 << 20,
                    shared: false,
                    ..GpuConfig::default()
                };
                let gpu = Gpu::open_in(&config, Arc::clone(&machine.tree))?;
                let bo = gpu.alloc(SIZE, Place::VRAM)?;
                (bo.export()?, Owner::Gpu(bo))
            }
            Exporter::Nic => {
                let dm = machine.nic.alloc_dm(SIZE)?;
                let exported = dm.export()?;
                (exported, Owner::Nic(dm))
            }
        };
        Ok(Self { exported, owner })
    }

    pub(super) fn exported(&self) -> &DmaBuf {
        &self.exported
    }

    /// The cell for a registration that worked.
    pub(super) fn place(&self) -> Outcome<Cell> {
        Ok(match &self.owner {
            Owner::Memory => "ok system",
            Owner::Nic(_) => "ok NIC",
            Owner::Gpu(bo) => match bo.domain()? {
                Domain::Vram => "ok VRAM",
                Domain::Gtt => "ok system",
            },
        }
        .to_owned())
    }

    /// Reads bytes from its beginning, as its owner does.
    pub(super) fn read(&self, bytes: &mut [u8]) -> Outcome<()> {
        match &self.owner {
            Owner::Gpu(bo) => bo.read(0, bytes)?,
            Owner::Nic(dm) => dm.read(0, bytes)?,
            Owner::Memory => {
                let mapping = self.exported.map(0, self.exported.size())?;
                umem::Umem::dmabuf(mapping, 0, self.exported.size())?.read(0, bytes)?;
            }
        }
        Ok(())
    }
}
