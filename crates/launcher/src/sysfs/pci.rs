//! GPUs and NICs as PCI functions, for programs that check which of these are near each other.
//!
//! ```text
//! /sys/bus/pci/devices/0001:04:00.0 -> ../../../devices/pci0001:00/0001:00:01.0/.../0001:04:00.0
//! /sys/devices/pci0001:00/0001:00:01.0/0001:01:00.0/0001:02:01.0/0001:04:00.0/
//!     vendor device class numa_node local_cpulist ..., subsystem -> /sys/bus/pci
//! ```
//!
//! The functions are those of the `[pci]` section. If the machine has a function at the same
//! address, that one stays.

use std::collections::BTreeMap;
use std::path::Path;

use ::pci::{Bdf, PciTree};

use super::bus::Bus;
use super::config_space::Identity;
use super::facts::{CpuList, NicFacts};
use super::tree::{ACCEL, DRM, PCI_FUNCTIONS, Tree, VFIO};
use gpu::nodes::{VFIO_CLASS, VFIO_ID};

/// Where a device is.
#[derive(Clone, Debug)]
pub(crate) struct Function {
    /// Its address.
    pub(crate) bdf: Bdf,
    /// Its directory.
    pub(crate) path: String,
    /// The first directory on the path to it that the machine does not have.
    ours: String,
}

/// What a [`Tree`] needs to know of a GPU.
#[derive(Clone, Debug)]
pub(crate) struct GpuFacts {
    /// Where it is.
    pub(crate) function: Function,
    /// The NUMA node and the CPUs of the nearest NIC.
    near: Option<(i32, CpuList)>,
    /// The driver that programs see for it.
    driver: &'static str,
    /// Its number among the DRM cards or among the accelerators.
    card: u32,
}

const FIRST_RENDER: u32 = 128;

/// A kind of character device.
struct DeviceClass {
    /// Where such devices are listed.
    path: &'static str,
    /// Their directory in that of the PCI function.
    name: &'static str,
    /// Their directory in `/dev`.
    dev: &'static str,
    major: u32,
    devtype: Option<&'static str>,
}

/// DRM devices.
const DRM_MINORS: DeviceClass =
    DeviceClass { path: DRM, name: "drm", dev: "dri", major: 226, devtype: Some("drm_minor") };
/// Accelerators.
const ACCEL_MINORS: DeviceClass = DeviceClass {
    path: ACCEL,
    name: "accel",
    dev: "accel",
    major: 261,
    devtype: Some("accel_minor"),
};
/// VFIO devices. Their major number is assigned when the driver loads; this is the number that
/// the preload library uses.
const VFIO_DEVICES: DeviceClass =
    DeviceClass { path: VFIO, name: "vfio-dev", dev: "vfio/devices", major: 386, devtype: None };

impl Function {
    /// Where this function of a tree is; `None` if the machine has one at that address.
    pub(super) fn of(tree: &PciTree, bdf: Bdf) -> Option<Self> {
        let mut chain: Vec<_> = tree.chain(bdf).collect();
        chain.reverse();
        let root = chain.first()?.root;
        let mut path = format!("/sys/devices/pci{root}");
        // The kernel has this file for each bus and function, and a tree of ours does not.
        let mut ours = (!has(&path, "uevent")).then(|| path.clone());
        for function in chain {
            path = format!("{path}/{}", function.bdf);
            if ours.is_none() && !has(&path, "config") {
                ours = Some(path.clone());
            }
        }
        Some(Self { bdf, path, ours: ours? })
    }

    /// The paths that are ours because of it.
    pub(super) fn served(&self) -> [String; 2] {
        [self.ours.clone(), self.link()]
    }

    fn link(&self) -> String {
        format!("{PCI_FUNCTIONS}/{}", self.bdf)
    }

    /// Adds what functions of every kind have.
    pub(super) fn describe(&self, tree: &mut Tree) {
        tree.link(&self.link(), &self.path);
        for (name, text) in [
            ("current_link_speed", "32.0 GT/s PCIe"),
            ("max_link_speed", "32.0 GT/s PCIe"),
            ("current_link_width", "16"),
            ("max_link_width", "16"),
            ("irq", "0"),
        ] {
            tree.file(&format!("{}/{name}", self.path), text);
        }
    }
}

impl GpuFacts {
    /// The paths that are ours because of it.
    pub(super) fn served(&self) -> Vec<String> {
        let class = self.class().path;
        let devices = self.devices().into_iter().map(|(name, _)| format!("{class}/{name}"));
        self.function.served().into_iter().chain(devices).collect()
    }

    fn class(&self) -> &'static DeviceClass {
        class_of(self.driver)
    }

    /// Its character devices, by name and minor number.
    fn devices(&self) -> Vec<(String, u32)> {
        devices(self.driver, self.card)
    }
}

fn class_of(driver: &str) -> &'static DeviceClass {
    match driver {
        HABANALABS => &ACCEL_MINORS,
        VFIO_PCI => &VFIO_DEVICES,
        _ => &DRM_MINORS,
    }
}

/// The character devices of the GPU with this driver and number.
fn devices(driver: &str, card: u32) -> Vec<(String, u32)> {
    match driver {
        HABANALABS => return vec![(format!("accel{card}"), card)],
        VFIO_PCI => return vec![(format!("vfio{card}"), card)],
        _ => {}
    }
    let render = FIRST_RENDER + card;
    vec![(format!("card{card}"), card), (format!("renderD{render}"), render)]
}

fn has(path: &str, name: &str) -> bool {
    Path::new(path).join(name).exists()
}

/// The drivers that programs see for the GPUs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Drivers {
    /// None: GPUs are functions of the bus, and no more.
    None,
    /// For each that of its preset.
    Own,
    /// For all this one.
    All(&'static str),
}

/// The GPUs of a machine that have drivers, and the bus that all of it is on. Also sets where the
/// machine's NICs are.
pub(super) fn place(
    machine: &gpu::Machine,
    drivers: Drivers,
    nics: &mut [NicFacts],
) -> (Vec<GpuFacts>, Bus) {
    let tree = machine.tree();
    let at = |name: &str| Function::of(tree, tree.by_name(name)?);
    for nic in &mut *nics {
        nic.function = at(&nic.name);
    }
    let mut gpus: Vec<_> = machine.gpus().iter().collect();
    let has_nodes =
        |driver| INTEL.contains(&driver) || [AMD, HABANALABS, VFIO_PCI].contains(&driver);
    if matches!(drivers, Drivers::All(driver) if !has_nodes(driver)) {
        // In the order in which CUDA numbers them and a kernel enumerates them.
        gpus.sort_by_key(|gpu| tree.by_name(&gpu.name));
    }
    // The numbers of nodes are chosen in the same way (`gpus::announce`).
    let is_free = |driver, card: u32| {
        let directory = match driver {
            HABANALABS => "/dev/accel",
            VFIO_PCI => "/dev/vfio/devices",
            _ => "/dev/dri",
        };
        let is_taken = |name: &str| has(directory, name) || !has_nodes(driver) && has(DRM, name);
        !devices(driver, card).iter().any(|(name, _)| is_taken(name))
    };
    let mut next = BTreeMap::new();
    let gpus = gpus.into_iter().filter_map(|gpu| {
        let driver = match drivers {
            Drivers::None => return None,
            Drivers::Own => gpu.preset.name(),
            Drivers::All(driver) => driver,
        };
        // Each class of devices has its own numbers.
        let next = next.entry(class_of(driver).path).or_insert(0);
        let card = (*next..FIRST_RENDER / 2).find(|card| is_free(driver, *card))?;
        *next = card + 1;
        let function = at(&gpu.name);
        if function.is_none() {
            tracing::info!(target: "peerdma::cuda", "{}: /sys shows another device there", gpu.name);
        }
        let function = function?;
        let distance = |nic: &&NicFacts| {
            tree.by_name(&nic.name).map_or(u32::MAX, |nic| tree.path(function.bdf, nic).distance)
        };
        let near = nics.iter().min_by_key(distance).map(|nic| (nic.numa_node, nic.cpus.clone()));
        Some(GpuFacts { function, near, driver, card })
    });
    let gpus = gpus.collect();
    (gpus, Bus::new(machine, nics))
}

/// The ids that a GPU reports.
struct Ids {
    driver: &'static str,
    /// Vendor in the low half, device in the high half.
    device: u32,
    board: u32,
    class: u32,
    revision: u32,
}

/// The drivers of Intel GPUs.
const INTEL: [&str; 2] = ["xe", "i915"];

/// The driver of AMD GPUs.
pub(super) const AMD: &str = "amdgpu";

/// The driver of accelerators.
const HABANALABS: &str = "habanalabs";
/// The driver of devices that programs drive.
const VFIO_PCI: &str = "vfio-pci";
/// Gaudi2, vendor in the low half.
const HABANALABS_ID: u32 = 0x1020_1da3;

impl GpuFacts {
    fn ids(&self) -> Ids {
        if INTEL.contains(&self.driver) {
            let (device, board) = (levelzero::PCI_ID, levelzero::PCI_SUBSYSTEM);
            // A display controller.
            return Ids { driver: self.driver, device, board, class: 0x03_8000, revision: 0x2f };
        }
        if self.driver == AMD {
            let (device, board) = (hsa::PCI_ID, hsa::PCI_SUBSYSTEM);
            return Ids { driver: self.driver, device, board, class: 0x03_8000, revision: 0x02 };
        }
        if self.driver == HABANALABS {
            let (device, board) = (HABANALABS_ID, HABANALABS_ID);
            // A processing accelerator.
            return Ids { driver: self.driver, device, board, class: 0x12_0000, revision: 0x01 };
        }
        if self.driver == VFIO_PCI {
            let (device, board) = (VFIO_ID, VFIO_ID);
            return Ids { driver: self.driver, device, board, class: VFIO_CLASS, revision: 0 };
        }
        let (device, board) = (cuda::PCI_ID, cuda::PCI_SUBSYSTEM);
        // A 3D controller.
        Ids { driver: self.driver, device, board, class: 0x03_0200, revision: 0xa1 }
    }

    /// The same for its configuration space.
    pub(super) fn identity(&self) -> Identity {
        let ids = self.ids();
        // CAST: two halves.
        let halves = |id: u32| ((id & 0xffff) as u16, (id >> 16) as u16);
        let ((vendor, device), board) = (halves(ids.device), halves(ids.board));
        let (class, revision) = (ids.class, ids.revision as u8);
        let (subsystem_vendor, subsystem_device) = board;
        Identity { vendor, device, subsystem_vendor, subsystem_device, class, revision }
    }

    /// Whether this is the driver that programs see for it.
    pub(super) fn is_of(&self, driver: &str) -> bool {
        self.driver == driver
    }
}

/// Adds one GPU.
pub(super) fn describe(tree: &mut Tree, gpu: &GpuFacts) {
    let function = &gpu.function;
    function.describe(tree);
    let mut attribute = |name: &str, text: String| {
        tree.file(&format!("{}/{name}", function.path), text);
    };
    let ids = gpu.ids();
    let [id, board] = [ids.device, ids.board].map(|id| [id & 0xffff, id >> 16]);
    attribute("class", format!("{:#08x}", ids.class));
    attribute("vendor", format!("{:#06x}", id[0]));
    attribute("device", format!("{:#06x}", id[1]));
    attribute("subsystem_vendor", format!("{:#06x}", board[0]));
    attribute("subsystem_device", format!("{:#06x}", board[1]));
    attribute("revision", format!("{:#04x}", ids.revision));
    attribute("enable", "1".into());
    let names = format!("PCI_ID={:04X}:{:04X}", id[0], id[1]);
    let slot = format!("PCI_SLOT_NAME={}", function.bdf);
    attribute(
        "uevent",
        format!("DRIVER={}\nPCI_CLASS={:X}\n{names}\n{slot}", ids.driver, ids.class),
    );
    let near = gpu.near.as_ref();
    attribute("numa_node", near.map_or(-1, |(node, _)| *node).to_string());
    if let Some((_, cpus)) = near {
        attribute("local_cpulist", cpus.to_string());
        attribute("local_cpus", cpus.mask());
    }
    tree.link(&format!("{}/subsystem", function.path), "/sys/bus/pci");
    // A name for programs that ask which card is which function. The GPUs of CUDA have no node to
    // open.
    let DeviceClass { path: class, name: below, dev, major, devtype } = *gpu.class();
    for (name, minor) in gpu.devices() {
        let path = format!("{}/{below}/{name}", function.path);
        tree.file(&format!("{path}/dev"), format!("{major}:{minor}"));
        let devtype = devtype.map(|devtype| format!("\nDEVTYPE={devtype}")).unwrap_or_default();
        let uevent = format!("MAJOR={major}\nMINOR={minor}\nDEVNAME={dev}/{name}{devtype}");
        tree.file(&format!("{path}/uevent"), uevent);
        tree.link(&format!("{path}/device"), &function.path);
        tree.link(&format!("{path}/subsystem"), class);
        tree.link(&format!("{class}/{name}"), &path);
        if gpu.driver == HABANALABS {
            // Programs use these to choose one of several.
            tree.file(&format!("{path}/pci_addr"), function.bdf.to_string());
            tree.file(&format!("{path}/device_type"), "GAUDI2");
            tree.file(&format!("{path}/status"), "Operational");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> gpu::Machine {
        let text = "[pci]\ndomain = 57005\n[[nic]]\nname = \"peerdma0\"\npeermem = true\n\
                    [[gpu]]\nname = \"g\"\npreset = \"nvidia\"\n";
        gpu::Machine::parse(text).unwrap()
    }

    fn tree(peermem: bool) -> Tree {
        let mut nics = [NicFacts { peermem, ..NicFacts::example() }];
        let (gpus, bus) = place(&machine(), Drivers::All("nvidia"), &mut nics);
        let mut tree = Tree::new(&nics);
        tree.add_functions(&gpus, &bus, &nics);
        tree
    }

    #[test]
    fn gpu_and_nic_are_below_one_switch() {
        let mut nics = [NicFacts::example()];
        let (gpus, _) = place(&machine(), Drivers::All("nvidia"), &mut nics);
        let [gpu, nic] = [gpus[0].function.path.clone(), nics[0].directory()];
        let switch = |path: &str| path.rsplitn(3, '/').last().unwrap().to_owned();
        assert!(gpu.starts_with("/sys/devices/pcidead:00/dead:00:01.0/") && gpu != nic);
        assert_eq!(switch(&gpu), switch(&nic));
        let tree = tree(false);
        assert_eq!(tree.text(&format!("{gpu}/vendor")), Some("0x10de\n"));
        assert_eq!(tree.text(&format!("{gpu}/device")), Some("0x2335\n"));
        assert_eq!(tree.text(&format!("{nic}/infiniband/peerdma0/node_type")), Some("1: CA\n"));
        assert_eq!(gpus[0].function.served()[0], "/sys/devices/pcidead:00");
    }

    #[test]
    fn a_gpu_is_a_card_of_drm_in_the_order_of_addresses() {
        let text = "[pci]\ndomain = 57005\n[[gpu]]\nname = \"a\"\npreset = \"nvidia\"\n\
                    [[gpu]]\nname = \"b\"\npreset = \"nvidia\"\n";
        let machine = gpu::Machine::parse(text).unwrap();
        let (gpus, bus) = place(&machine, Drivers::All("nvidia"), &mut []);
        assert!(gpus[0].function.bdf < gpus[1].function.bdf && gpus[0].card < gpus[1].card);
        let mut tree = Tree::new(&[]);
        tree.add_functions(&gpus, &bus, &[]);
        for gpu in &gpus {
            let [(card, _), (render, minor)] = gpu.devices().try_into().expect("two");
            for name in [&card, &render] {
                let path = format!("{}/drm/{name}", gpu.function.path);
                let link = super::super::tree::relative(&format!("{DRM}/{name}"), &path);
                assert_eq!(
                    tree.nodes[&format!("{DRM}/{name}")],
                    super::super::tree::Node::Link(link)
                );
                assert!(gpu.served().contains(&format!("{DRM}/{name}")));
            }
            let dev = tree.text(&format!("{}/drm/{render}/dev", gpu.function.path));
            assert_eq!(dev, Some(&*format!("226:{minor}\n")));
        }
    }

    #[test]
    fn an_accelerator_is_of_its_own_class() {
        let text = "[pci]\ndomain = 57005\n[[gpu]]\nname = \"a\"\npreset = \"habanalabs\"\n";
        let machine = gpu::Machine::parse(text).unwrap();
        let (gpus, bus) = place(&machine, Drivers::All(HABANALABS), &mut []);
        let mut tree = Tree::new(&[]);
        tree.add_functions(&gpus, &bus, &[]);
        let accel = format!("accel{}", gpus[0].card);
        let path = format!("{}/accel/{accel}", gpus[0].function.path);
        assert_eq!(tree.text(&format!("{path}/dev")), Some(&*format!("261:{}\n", gpus[0].card)));
        assert_eq!(tree.text(&format!("{}/device", gpus[0].function.path)), Some("0x1020\n"));
        assert!(tree.nodes.contains_key(&format!("{ACCEL}/{accel}")));
        assert!(gpus[0].served().contains(&format!("{ACCEL}/{accel}")));
    }

    #[test]
    fn the_module_is_there_if_a_nic_has_peermem() {
        let version = "/sys/module/nvidia_peermem/version";
        assert!(tree(true).text(version).is_some() && tree(false).text(version).is_none());
        let served: Vec<_> = super::super::served().collect();
        assert!(served.contains(&"/sys/module/nvidia_peermem"));
        assert!(served.iter().any(|path| path.starts_with("/sys/bus/pci/devices/dead:")));
    }
}
