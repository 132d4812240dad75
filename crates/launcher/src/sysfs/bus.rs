//! All functions of the modelled machine on PCI: bridges and disks beside NICs and GPUs, with their
//! configuration space, so that programs find out what lies between two devices.

use std::collections::BTreeMap;
use std::sync::Arc;

use ::pci::{Bdf, FunctionKind, PciTree};

use super::config_space::{Below, Identity, Space, Window};
use super::facts::{CpuList, NicFacts};
use super::pci::{Function, GpuFacts};
use super::tree::Tree;

/// The first address of BARs that the tree gives none.
const FIRST: u64 = 1 << 40;
/// The smallest size that a BAR for memory is offered.
const LEAST: u64 = 256 << 20;
/// `IORESOURCE_MEM`, `_PREFETCH`, `_MEM_64`, `_SIZEALIGN`, and the low bits of the register.
const PREFETCHABLE: u64 = 0x14_220c;
/// The lines of a function's `resource`: six BARs and the ROM.
const RESOURCES: u8 = 7;

/// The functions of a machine that programs see.
#[derive(Debug, Default)]
pub(crate) struct Bus {
    tree: Arc<PciTree>,
    /// Those at whose address the machine has none of its own.
    shown: BTreeMap<Bdf, Function>,
    memory: BTreeMap<Bdf, GpuMemory>,
    /// Disks, and the bytes of their memory buffers.
    disks: BTreeMap<Bdf, u64>,
    /// The NUMA node and the CPUs of the first NIC.
    near: Option<(i32, CpuList)>,
}

#[derive(Clone, Copy, Debug)]
struct GpuMemory {
    visible: u64,
    vram: u64,
}

impl Bus {
    pub(super) fn new(machine: &gpu::Machine, nics: &[NicFacts]) -> Self {
        let tree = Arc::clone(machine.tree());
        let of = |bdf| Some((bdf, Function::of(&tree, bdf)?));
        let shown = tree.functions().filter_map(|function| of(function.bdf)).collect();
        let memory = machine.gpus().iter().filter_map(|gpu| {
            let memory = GpuMemory { visible: gpu.visible(), vram: gpu.vram };
            Some((tree.by_name(&gpu.name)?, memory))
        });
        let disks = machine.storage().iter();
        let disks = disks.filter_map(|disk| Some((tree.by_name(&disk.name)?, disk.cmb)));
        let (memory, disks) = (memory.collect(), disks.collect());
        let near = nics.first().map(|nic| (nic.numa_node, nic.cpus.clone()));
        Self { shown, memory, disks, near, tree }
    }

    /// The paths that are ours because of them.
    pub(super) fn served(&self) -> impl Iterator<Item = String> {
        self.shown.values().flat_map(Function::served)
    }

    /// Adds the functions that are neither NICs nor GPUs, and what all have in common.
    pub(super) fn describe(&self, tree: &mut Tree, gpus: &[GpuFacts], nics: &[NicFacts]) {
        let windows = self.windows();
        for (bdf, shown) in &self.shown {
            let gpu = gpus.iter().find(|gpu| gpu.function.bdf == *bdf);
            let is_nic = nics.iter().filter_map(|nic| nic.function.as_ref()).any(|f| f.bdf == *bdf);
            let identity = match gpu {
                Some(gpu) => gpu.identity(),
                // An Ethernet controller of no vendor.
                None if is_nic => Identity { class: 0x02_0000, ..Identity::default() },
                None => {
                    let identity = self.identity(*bdf);
                    shown.describe(tree);
                    self.attributes(tree, shown, &identity);
                    identity
                }
            };
            let own = windows.get(bdf).map_or(&[][..], Vec::as_slice);
            self.space(tree, shown, identity, own, &windows);
            tree.file(&format!("{}/resource", shown.path), resources(own));
        }
    }

    /// What a bridge, a disk, or a device without a driver is.
    fn identity(&self, bdf: Bdf) -> Identity {
        let function = self.tree.function(bdf).expect("it is shown");
        let class = match function.kind {
            FunctionKind::HostBridge => 0x06_0000,
            FunctionKind::Endpoint if self.disks.contains_key(&bdf) => 0x01_0802,
            // A 3D controller.
            FunctionKind::Endpoint if self.memory.contains_key(&bdf) => 0x03_0200,
            FunctionKind::Endpoint => 0xff_0000,
            _ => 0x06_0400,
        };
        // The IDs of a disk are those of QEMU's.
        let (vendor, device) = match self.disks.contains_key(&bdf) {
            true => (0x1b36, 0x0010),
            false => (function.ids.vendor, function.ids.device),
        };
        let (subsystem_vendor, subsystem_device) = (vendor, device);
        Identity { vendor, device, subsystem_vendor, subsystem_device, class, revision: 0 }
    }

    fn attributes(&self, tree: &mut Tree, shown: &Function, identity: &Identity) {
        let Identity { vendor, device, subsystem_vendor, subsystem_device, .. } = *identity;
        let mut attribute = |name: &str, text: String| {
            tree.file(&format!("{}/{name}", shown.path), text);
        };
        attribute("class", format!("{:#08x}", identity.class));
        attribute("vendor", format!("{vendor:#06x}"));
        attribute("device", format!("{device:#06x}"));
        attribute("subsystem_vendor", format!("{subsystem_vendor:#06x}"));
        attribute("subsystem_device", format!("{subsystem_device:#06x}"));
        attribute("revision", format!("{:#04x}", identity.revision));
        attribute("enable", "1".into());
        let slot = format!("PCI_SLOT_NAME={}", shown.bdf);
        let names = format!("PCI_ID={vendor:04X}:{device:04X}");
        attribute("uevent", format!("PCI_CLASS={:X}\n{names}\n{slot}", identity.class));
        attribute("numa_node", self.near.as_ref().map_or(-1, |(node, _)| *node).to_string());
        if let Some((_, cpus)) = &self.near {
            attribute("local_cpulist", cpus.to_string());
            attribute("local_cpus", cpus.mask());
        }
        if let Some(below) = self.below(shown.bdf, &BTreeMap::new()) {
            attribute("secondary_bus_number", below.buses.start().to_string());
            attribute("subordinate_bus_number", below.buses.end().to_string());
        }
        if let Some(cmb) = self.disks.get(&shown.bdf).filter(|cmb| **cmb > 0) {
            attribute("p2pmem/size", cmb.to_string());
            attribute("p2pmem/available", cmb.to_string());
            attribute("p2pmem/published", "1".into());
        }
        tree.link(&format!("{}/subsystem", shown.path), "/sys/bus/pci");
    }

    fn space(
        &self,
        tree: &mut Tree,
        shown: &Function,
        identity: Identity,
        own: &[Window],
        windows: &BTreeMap<Bdf, Vec<Window>>,
    ) {
        let bdf = shown.bdf;
        let function = self.tree.function(bdf).expect("it is shown");
        let is_next = |other: &::pci::Function| {
            let other = other.bdf;
            other != bdf
                && (other.domain(), other.bus(), other.device())
                    == (bdf.domain(), bdf.bus(), bdf.device())
        };
        let sizes = self.memory.get(&bdf).map_or(0, |memory| memory.sizes());
        let space = Space {
            kind: function.kind,
            identity,
            is_multifunction: self.tree.functions().any(is_next),
            windows: own,
            below: self.below(bdf, windows),
            acs: function.acs,
            sizes,
        };
        tree.bytes(&format!("{}/config", shown.path), space.bytes());
        if sizes != 0 {
            tree.file(&format!("{}/resource0_resize", shown.path), format!("{sizes:016x}"));
        }
    }

    /// The buses and the memory below a bridge.
    fn below(&self, bridge: Bdf, windows: &BTreeMap<Bdf, Vec<Window>>) -> Option<Below> {
        let is_below = |bdf: Bdf| self.tree.chain(bdf).skip(1).any(|above| above.bdf == bridge);
        let below = || self.tree.functions().map(|function| function.bdf).filter(|b| is_below(*b));
        let buses = || below().map(Bdf::bus);
        let all = || below().filter_map(|bdf| windows.get(&bdf)).flatten();
        let from = all().map(|window| window.addr).min();
        let to = all().map(|window| window.addr + window.size).max();
        let buses = buses().min()?..=buses().max()?;
        Some(Below { primary: bridge.bus(), buses, memory: from.zip(to) })
    }

    /// The BARs of each device. Each takes two registers, so that a function has three at most. A
    /// GPU that the tree gives none has one for the part of VRAM that others reach.
    fn windows(&self) -> BTreeMap<Bdf, Vec<Window>> {
        let functions = || self.tree.functions().filter(|f| self.shown.contains_key(&f.bdf));
        let ends = functions().flat_map(|f| &f.bars).map(|bar| bar.addr + bar.size);
        let mut next = ends.max().unwrap_or(FIRST).max(FIRST);
        let mut windows = BTreeMap::new();
        for function in functions() {
            let given = function.bars.iter().take(3).zip((0..).step_by(2));
            let mut own: Vec<_> = given
                .map(|(bar, register)| Window { register, addr: bar.addr, size: bar.size })
                .collect();
            if let Some(memory) = self.memory.get(&function.bdf).filter(|_| own.is_empty()) {
                let size = memory.visible.next_power_of_two();
                let addr = next.next_multiple_of(size);
                next = addr + size;
                own.push(Window { register: 0, addr, size });
            }
            windows.insert(function.bdf, own);
        }
        windows
    }
}

impl GpuMemory {
    /// The sizes that the BAR can have, a bit for each power of two from 1 MiB: up to all of VRAM.
    #[doc(alias = "pci_rebar_get_possible_sizes")]
    fn sizes(self) -> u64 {
        let bit = |size: u64| size.next_power_of_two().ilog2().saturating_sub(20);
        let (least, most) = (bit(self.visible.min(LEAST)), bit(self.vram));
        (least..=most).fold(0, |sizes, bit| sizes | 1 << bit)
    }
}

/// Without these lines, libpci terminates a program that asks it for resources, such as perftest.
fn resources(windows: &[Window]) -> String {
    let line = |register| match windows.iter().find(|window| window.register == register) {
        Some(Window { addr, size, .. }) => {
            format!("{addr:#018x} {:#018x} {PREFETCHABLE:#018x}", addr + size - 1)
        }
        None => format!("{:#018x} {0:#018x} {0:#018x}", 0),
    };
    (0..RESOURCES).map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::super::pci::Drivers;
    use super::*;

    const TEXT: &str = "[pci]\ndomain = 57005\n\
        [[pci.host_bridge]]\nname = \"r\"\nid = \"8086:2020\"\n\
        [[pci.switch]]\nname = \"s\"\nacs = [\"RR\", \"CR\"]\n\
        [[pci.device]]\nname = \"d\"\nunder = \"r\"\n\
        [[gpu]]\nname = \"a\"\npreset = \"xe\"\nvram = \"1G\"\nbar = \"256M\"\n\
        [[gpu]]\nname = \"b\"\npreset = \"amdgpu\"\n\
        [[storage]]\nname = \"d\"\ncmb = \"64M\"\n";

    #[test]
    fn every_function_of_the_model_is_shown_with_its_configuration_space() {
        let machine = gpu::Machine::parse(TEXT).expect("sound");
        let mut nics = [NicFacts::example()];
        let (gpus, bus) = super::super::pci::place(&machine, Drivers::Own, &mut nics);
        assert_eq!(gpus.len(), 2, "of two drivers");
        let mut tree = Tree::new(&nics);
        tree.add_functions(&gpus, &bus, &nics);
        for function in machine.tree().functions() {
            let path = &bus.shown[&function.bdf].path;
            let config = tree.contents(&format!("{path}/config")).expect("it has one");
            assert_eq!(config.len(), 4096, "{}", function.bdf);
            let class = tree.text(&format!("{path}/class")).expect("it has one").to_owned();
            let bytes = [config[11], config[10], config[9]].map(|byte| format!("{byte:02x}"));
            assert_eq!(class.trim(), format!("0x{}", bytes.concat()));
        }
        let at = |name| &bus.shown[&machine.tree().by_name(name).expect("named")].path;
        let text = |name, file: &str| tree.text(&format!("{}/{file}", at(name)));
        assert_eq!(text("a", "vendor"), Some("0x8086\n"));
        assert_eq!(text("b", "vendor"), Some("0x1002\n"));
        assert_eq!(text("d", "class"), Some("0x010802\n"));
        assert_eq!(text("d", "p2pmem/size"), Some("67108864\n"));
        // 256M, 512M and 1G.
        assert_eq!(text("a", "resource0_resize"), Some("0000000000000700\n"));
        let resource = text("a", "resource").expect("there").lines().next().expect("a BAR");
        let ends: Vec<_> = resource.split(' ').map(|word| word.trim_start_matches("0x")).collect();
        let end = |n: usize| u64::from_str_radix(ends[n], 16).expect("a number");
        assert_eq!(end(1) - end(0) + 1, 256 << 20);
    }
}
