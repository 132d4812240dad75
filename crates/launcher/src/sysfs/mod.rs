//! What a kernel RDMA driver would show under `/sys` and `/dev` for our NICs, as a tree of names
//! and contents.
//!
//! ```text
//! /sys/class/infiniband/peerdma0          -> ../../devices/virtual/peerdma/peerdma0/infiniband/peerdma0
//! /sys/class/infiniband_verbs/uverbs0     -> ../../devices/virtual/peerdma/peerdma0/infiniband_verbs/uverbs0
//! /dev/infiniband/uverbs0                 a name that everyone may use, and that nobody can open
//! /sys/devices/virtual/peerdma/peerdma0/  the device (with `--gpu=nvidia`: /sys/devices/pci...): vendor, class, numa_node, local_cpus, subsystem, net/
//!   infiniband/peerdma0/                  the HCA: node_guid, fw_ver, ports/1/{state, gids/, gid_attrs/, counters/}
//!   infiniband_verbs/uverbs0/             the character device that would be: ibdev, abi_version, dev
//! /proc/kallsyms, /proc/modules           the kernel's part in memory of devices, as programs look for it
//! /boot/config-6.1.0                      the same, with `--gpu=amdgpu`
//! ```
//!
//! A [`Tree`] is a snapshot: values are those of the moment it was made. Every symbolic link is
//! relative and stays inside the tree, so that the kernel can walk it below any directory. `door`
//! shows it to programs; `docs/SYSFS.md` describes all of it.

mod bus;
mod config_space;
mod counters;
mod device;
mod facts;
mod kernel;
mod nic;
mod pci;
mod tree;

pub(crate) use bus::Bus;
pub(crate) use counters::{hardware_counters, is_counted};
pub(crate) use device::Device;
pub(crate) use facts::NicFacts;
pub(crate) use pci::{Drivers, GpuFacts};
pub(crate) use tree::{DEVICES, LISTINGS, Tree};

use std::sync::OnceLock;

/// The directories this tree answers for; everything else under `/sys` and `/dev` is the kernel's.
/// Their contents hide what the kernel has under the same names.
pub(crate) const SERVED: [&str; 5] = [
    DEVICES,
    "/sys/class/infiniband",
    "/sys/class/infiniband_verbs",
    "/sys/devices/virtual/peerdma",
    "/sys/bus/peerdma",
];

/// The directories by which programs tell whether a NIC reaches GPU memory. They are ours as well:
/// whatever the machine has, they show only our GPUs. There is a peer memory client if a NIC has
/// `peermem` and the program has CUDA, and the driver xe if the program has GPUs of that driver.
const PEER_MEMORY: [&str; 4] = [
    "/sys/module/nvidia_peermem",
    "/sys/module/nv_peer_mem",
    "/sys/module/xe",
    "/sys/kernel/mm/memory_peers",
];

/// The source checksum of module xe; ours has none.
const XE_SRCVERSION: &str = "000000000000000000000000";

/// What this process's tree also answers for: PCI functions and their contents.
static FUNCTIONS: OnceLock<Vec<String>> = OnceLock::new();

/// All directories this tree answers for.
pub(crate) fn served() -> impl Iterator<Item = &'static str> {
    let functions = FUNCTIONS.get().into_iter().flatten().map(String::as_str);
    SERVED.into_iter().chain(PEER_MEMORY).chain(kernel::FILES).chain(functions)
}

impl Tree {
    /// The tree of these NICs, in their order.
    pub(crate) fn new(nics: &[NicFacts]) -> Self {
        let mut tree = Self::default();
        for served in SERVED {
            tree.dir(served);
        }
        tree.file("/sys/class/infiniband_verbs/abi_version", "6");
        for (index, facts) in nics.iter().enumerate() {
            nic::describe(&mut tree, index, facts);
        }
        tree
    }

    /// Adds the GPUs, the other functions of the bus, and the files that tell whether NICs reach
    /// memory of GPUs.
    pub(crate) fn add_functions(&mut self, gpus: &[GpuFacts], bus: &Bus, nics: &[NicFacts]) {
        for gpu in gpus {
            pci::describe(self, gpu);
        }
        bus.describe(self, gpus, nics);
        if gpus.iter().any(|gpu| gpu.is_of("xe")) {
            self.file("/sys/module/xe/srcversion", XE_SRCVERSION);
        }
        let has_peers =
            gpus.iter().any(|gpu| gpu.is_of("nvidia")) && nics.iter().any(|nic| nic.peermem);
        if has_peers {
            self.file("/sys/module/nvidia_peermem/version", cuda::DRIVER_VERSION);
            self.file("/sys/kernel/mm/memory_peers/nv_mem/version", cuda::DRIVER_VERSION);
        }
        kernel::describe(self, has_peers);
        let nics = nics.iter().filter_map(|nic| nic.function.as_ref());
        let mut functions: Vec<_> = nics.flat_map(pci::Function::served).collect();
        functions.extend(gpus.iter().flat_map(GpuFacts::served));
        functions.extend(bus.served());
        if gpus.iter().any(|gpu| gpu.is_of(pci::AMD)) {
            functions.push(kernel::describe_configuration(self));
        }
        functions.sort_unstable();
        functions.dedup();
        // A process has one tree.
        let _ = FUNCTIONS.set(functions);
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;

    use super::tree::Node;
    use super::*;

    fn tree() -> Tree {
        Tree::new(&[NicFacts::example()])
    }

    #[test]
    fn links_are_relative_and_lead_somewhere() {
        let tree = tree();
        for (path, node) in &tree.nodes {
            let Node::Link(target) = node else { continue };
            assert!(!target.starts_with('/'), "{path} -> {target}");
            let mut steps: Vec<&str> = path.split('/').collect();
            steps.pop();
            for step in target.split('/') {
                match step {
                    ".." => drop(steps.pop()),
                    step => steps.push(step),
                }
            }
            assert!(tree.nodes.contains_key(&steps.join("/")), "{path} -> {target}");
        }
    }

    #[test]
    fn a_link_is_written_as_the_kernel_writes_it() {
        assert_eq!(
            tree().nodes["/sys/class/infiniband/peerdma0"],
            Node::Link("../../devices/virtual/peerdma/peerdma0/infiniband/peerdma0".into())
        );
    }

    #[test]
    fn every_name_is_below_a_served_directory_or_leads_to_one() {
        for path in tree().nodes.keys() {
            let below = |served: &&str| path.starts_with(*served) || served.starts_with(path);
            assert!(SERVED.iter().chain(&kernel::FILES).any(below), "{path}");
        }
    }

    #[test]
    fn a_tree_can_be_made_real() {
        let root = std::env::temp_dir().join(format!("peerdma-tree-{}", std::process::id()));
        std::fs::create_dir(&root).unwrap();
        let fd = std::fs::File::open(&root).unwrap();
        let made = tree().materialise(fd.as_fd());
        let read = std::fs::read_to_string(
            root.join("sys/class/infiniband/peerdma0/device/infiniband/peerdma0/node_type"),
        );
        std::fs::remove_dir_all(&root).unwrap();
        made.unwrap();
        assert_eq!(read.unwrap(), "1: CA\n");
    }
}
