//! The devices of a machine, from sysfs.

use std::fs;
use std::path::Path;

use crate::host_bridge::Cpu;
use crate::resource::{self, Resource};
use crate::sysfs::HIDDEN;
use crate::topo::device::{Device, DeviceKind, Memory};
use crate::tree::{Function, PciTree};

/// What sysfs shows besides the tree.
#[derive(Debug, Default)]
pub(super) struct Scan {
    pub(super) devices: Vec<Device>,
    /// Virtual functions, which are left out: there may be hundreds.
    pub(super) virtual_functions: usize,
    /// Whether this user may not read the configuration space of bridges.
    pub(super) hidden: bool,
    /// Whether there are several NUMA nodes.
    pub(super) many_nodes: bool,
}

/// The smallest unit in which memory is mapped.
const PAGE: u64 = 4096;

/// The processor of the machine whose sysfs this is.
pub(super) fn cpu(root: &Path) -> Cpu {
    let modalias = fs::read_to_string(root.join("devices/system/cpu/modalias"));
    let known = modalias.ok().and_then(|text| Cpu::from_modalias(&text));
    known.unwrap_or_else(|| {
        let own = root == Path::new("/sys");
        let text = own.then(|| fs::read_to_string("/proc/cpuinfo").unwrap_or_default());
        Cpu::from_cpuinfo(&text.unwrap_or_default())
    })
}

impl Scan {
    pub(super) fn new(root: &Path, tree: &PciTree) -> Self {
        let nodes = read(&root.join("devices/system/node/online"));
        let many_nodes = nodes.is_some_and(|nodes| nodes.contains(['-', ',']));
        let mut scan = Self { many_nodes, ..Self::default() };
        for function in tree.functions() {
            let place = root.join("bus/pci/devices").join(function.bdf.to_string());
            scan.add(function, &place);
        }
        scan
    }

    fn add(&mut self, function: &Function, place: &Path) {
        const BRIDGE: u16 = 0x0604;
        // CAST: a class has 24 bits.
        let class = hex(&place.join("class")).map_or(0, |class| (class >> 8) as u16);
        if class == BRIDGE {
            let config = fs::read(place.join("config")).unwrap_or_default();
            self.hidden |= config.len() <= HIDDEN;
        }
        let Some(kind) = DeviceKind::of_class(class) else { return };
        if place.join("physfn").exists() {
            self.virtual_functions += 1;
            return;
        }
        let driver = fs::canonicalize(place.join("driver")).ok();
        self.devices.push(Device {
            ids: function.ids,
            names: names(place),
            driver: driver
                .and_then(|driver| Some(driver.file_name()?.to_string_lossy().into_owned())),
            // -1 stands for none.
            numa: read(&place.join("numa_node")).and_then(|node| node.parse().ok()),
            cpus: read(&place.join("local_cpulist")),
            memory: memory(kind, place),
            ..Device::new(kind, function.bdf)
        });
    }
}

/// What RDMA, the network and the NVMe driver call it.
fn names(place: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        ["infiniband", "net", "nvme"].iter().flat_map(|kind| list(&place.join(kind))).collect();
    // A virtio device is below its PCI function.
    let virtio = list(place).into_iter().filter(|name| name.starts_with("virtio"));
    names.extend(virtio.flat_map(|name| list(&place.join(name).join("net"))));
    names
}

fn list(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<_> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names
}

fn memory(kind: DeviceKind, place: &Path) -> Memory {
    let number = |name: &str| read(&place.join(name))?.parse::<u64>().ok();
    // A pool says that the driver lends memory, whatever the device is.
    if let Some(size) = number("p2pmem/size").filter(|size| *size > 0) {
        return Memory::Reachable { size: Some(size), of: None, resizable_to: None };
    }
    if kind != DeviceKind::Gpu {
        return Memory::None;
    }
    let text = read(&place.join("resource")).unwrap_or_default();
    let bars = resource::parse(&text).unwrap_or_default();
    let largest = |of: fn(&Resource) -> bool| {
        bars.iter().filter(|bar| of(bar)).max_by_key(|bar| bar.size).copied()
    };
    // Registers are not prefetchable, memory usually is.
    let window = largest(Resource::is_prefetchable).or_else(|| largest(Resource::is_memory));
    match window {
        None => Memory::NoBar,
        Some(bar) if !bar.is_placed() => Memory::NoAddress { bar: bar.index, size: bar.size },
        Some(bar) if bar.size < PAGE => Memory::TooSmall { bar: bar.index, size: bar.size },
        Some(bar) => {
            let sizes = hex(&place.join(format!("resource{}_resize", bar.index)));
            let largest = sizes.and_then(u64::checked_ilog2);
            let largest = largest.and_then(|bit| (1_u64 << 20).checked_shl(bit));
            Memory::Reachable {
                size: Some(bar.size),
                of: number("mem_info_vram_total"),
                resizable_to: largest.filter(|largest| *largest > bar.size),
            }
        }
    }
}

fn read(path: &Path) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let text = text.trim();
    (!text.is_empty()).then(|| text.to_owned())
}

fn hex(path: &Path) -> Option<u64> {
    u64::from_str_radix(read(path)?.trim_start_matches("0x"), 16).ok()
}
