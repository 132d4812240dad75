//! GPUs, the tree that they are in, and the IOMMU.

use pci::{DeviceKind, Memory, Topology};

use crate::fact::{Fact, fact, row, size};
use crate::files::Files;

/// The PCI tree.
#[derive(Debug)]
pub(crate) struct Tree {
    /// The topology, or why there is none.
    pub(crate) topology: Result<Topology, String>,
    pub(crate) gpus: Vec<Gpu>,
    pub(crate) pools: Vec<Pool>,
    /// IOMMUs that the kernel uses.
    iommus: Vec<String>,
    /// Functions whose ACS redirects; `None` if this user may not see it.
    pub(crate) redirecting: Option<Vec<String>>,
    /// Whether NVIDIA's driver is the open one; `None` without it.
    pub(crate) nvidia_is_open: Option<bool>,
}

/// A GPU.
#[derive(Debug)]
pub(crate) struct Gpu {
    pub(crate) label: String,
    pub(crate) bdf: String,
    pub(crate) driver: Option<String>,
    pub(crate) memory: Memory,
    /// Whether an IOMMU gives it addresses other than physical ones.
    pub(crate) is_translated: bool,
}

/// Memory that a driver lends by the kernel's p2pdma.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) bdf: String,
    pub(crate) size: u64,
    pub(crate) is_published: bool,
}

const DEVICES: &str = "/sys/bus/pci/devices";

impl Tree {
    pub(super) fn read(files: &Files) -> Self {
        let root = files.path("/sys");
        let topology = Topology::from_sysfs(&root).map_err(|error| error.to_string());
        let devices = topology.as_ref().map(Topology::devices).unwrap_or_default();
        let gpus = devices.iter().filter(|device| device.kind == DeviceKind::Gpu).map(|device| {
            let bdf = device.bdf.to_string();
            let kind = files.text(&format!("{DEVICES}/{bdf}/iommu_group/type"));
            Gpu {
                label: device.label.clone(),
                driver: device.driver.clone(),
                memory: device.memory,
                is_translated: kind.is_some_and(|kind| kind.starts_with("DMA")),
                bdf,
            }
        });
        let pools = files.list(DEVICES).into_iter().filter_map(|bdf| {
            let place = format!("{DEVICES}/{bdf}/p2pmem");
            let size = files.number(&format!("{place}/size")).filter(|size| *size > 0)?;
            let published = files.text(&format!("{place}/published"));
            Some(Pool { bdf, size, is_published: published.as_deref() == Some("1") })
        });
        let version = files.text("/proc/driver/nvidia/version");
        Self {
            gpus: gpus.collect(),
            pools: pools.collect(),
            iommus: files.list("/sys/class/iommu"),
            redirecting: topology
                .as_ref()
                .ok()
                .and_then(Topology::redirecting)
                .map(|bridges| bridges.iter().map(ToString::to_string).collect()),
            nvidia_is_open: version.map(|text| text.contains("Open Kernel Module")),
            topology,
        }
    }

    pub(super) fn facts(&self) -> Vec<Fact> {
        let gpu = |gpu: &Gpu| {
            let driver = gpu.driver.as_deref().unwrap_or("no driver");
            let window = match gpu.memory {
                Memory::Reachable { size: Some(bar), of: Some(of), .. } if bar < of => {
                    format!("BAR of {} for {}", size(bar), size(of))
                }
                Memory::Reachable { size: Some(bar), .. } => format!("BAR of {}", size(bar)),
                memory => memory.to_string(),
            };
            format!("{} ({driver}, {window})", gpu.bdf)
        };
        let gpus: Vec<_> = self.gpus.iter().map(gpu).collect();
        let pool = |pool: &Pool| {
            let published = if pool.is_published { "" } else { ", not published" };
            format!("{} ({}{published})", pool.bdf, size(pool.size))
        };
        let pools: Vec<_> = self.pools.iter().map(pool).collect();
        let nvidia = self.nvidia_is_open.map_or("not loaded", |open| match open {
            true => "open kernel modules",
            false => "proprietary kernel modules",
        });
        let translated = self.gpus.iter().any(|gpu| gpu.is_translated);
        let iommu = match (self.iommus.is_empty(), translated) {
            (true, _) => "off".to_owned(),
            (false, true) => format!("{}, translating for a GPU", row(&self.iommus)),
            (false, false) => row(&self.iommus),
        };
        let acs = self.redirecting.as_deref().map(|bridges| match bridges {
            [] => "redirects nowhere".to_owned(),
            bridges => format!("redirects at {}", bridges.join(" ")),
        });
        vec![
            fact("gpus", "GPUs", Some(row(&gpus))),
            fact("nvidia_driver", "NVIDIA's driver", Some(nvidia.to_owned())),
            fact("iommu", "IOMMU", Some(iommu)),
            fact("acs", "ACS", acs),
            fact("p2pmem", "p2pmem pools", Some(row(&pools))),
        ]
    }
}
