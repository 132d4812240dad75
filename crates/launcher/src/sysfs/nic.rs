//! One NIC: its attributes and their contents. Names and formats are those of the kernel's
//! `drivers/infiniband/core/sysfs.c` and `uverbs_main.c`.

use super::counters;
use super::device::{UVERBS_BASE_MINOR, UVERBS_MAJOR};
use super::facts::NicFacts;
use super::tree::{DEVICES, Tree};

/// The minimum number of rows of the GID table that exist as files; those past the GIDs in use read
/// as zero. The table itself is longer, but a launch should not pay for hundreds of empty files.
const GID_ROWS: usize = 16;

/// PCI vendor and device: 0 belongs to no vendor.
const NOBODY: &str = "0x0000";

/// `IB_PORT_CM_SUP | IB_PORT_IP_BASED_GIDS`, as for a RoCE port.
const CAP_MASK: u32 = 1 << 16 | 1 << 26;

impl NicFacts {
    /// The directory of the HCA.
    fn hca(&self) -> String {
        format!("{}/infiniband/{}", self.directory(), self.name)
    }

    /// The files of the counters of a port that something counts, and their names.
    pub(crate) fn counter_files(&self, port: u32) -> impl Iterator<Item = (String, &'static str)> {
        let port = format!("{}/ports/{port}", self.hca());
        let files = counters::PORT.into_iter().map(|name| ("counters", name));
        let files = files.chain(counters::hardware_counters().map(|name| ("hw_counters", name)));
        files
            .filter(|(_, name)| counters::is_counted(name))
            .map(move |(directory, name)| (format!("{port}/{directory}/{name}"), name))
    }
}

/// Adds the NIC with this index, and its uverbs device.
pub(super) fn describe(tree: &mut Tree, index: usize, nic: &NicFacts) {
    let name = &nic.name;
    let device = nic.directory();
    let hca = nic.hca();
    let uverbs = format!("{device}/infiniband_verbs/uverbs{index}");
    tree.link(&format!("/sys/class/infiniband/{name}"), &hca);
    tree.link(&format!("/sys/class/infiniband_verbs/uverbs{index}"), &uverbs);
    match &nic.function {
        Some(function) => function.describe(tree),
        None => tree.link(&format!("/sys/bus/peerdma/devices/{name}"), &device),
    }
    describe_device(tree, &device, nic);
    describe_hca(tree, &hca, &device, nic);
    for port in 1..=nic.ports {
        describe_port(tree, &format!("{hca}/ports/{port}"), nic);
    }

    let minor = UVERBS_BASE_MINOR as usize + index;
    tree.file(&format!("{uverbs}/abi_version"), 1);
    tree.file(&format!("{uverbs}/dev"), format_args!("{UVERBS_MAJOR}:{minor}"));
    tree.file(&format!("{uverbs}/ibdev"), name);
    let uevent = format!("MAJOR={UVERBS_MAJOR}\nMINOR={minor}\nDEVNAME=infiniband/uverbs{index}");
    tree.file(&format!("{uverbs}/uevent"), uevent);
    // UCX checks whether it may read and write it before it takes the device.
    tree.device(&format!("{DEVICES}/uverbs{index}"));
    tree.link(&format!("{uverbs}/device"), &device);
    tree.link(&format!("{uverbs}/subsystem"), "/sys/class/infiniband_verbs");
}

/// The parent device of the HCA. If it is not on PCI, its `subsystem` is not `pci`, which tells
/// NCCL and UCX not to look for it in the PCI tree.
fn describe_device(tree: &mut Tree, device: &str, nic: &NicFacts) {
    let mut attribute = |name: &str, text: String| tree.file(&format!("{device}/{name}"), text);
    // An Ethernet controller, as RoCE HCAs are.
    attribute("class", "0x020000".into());
    for id in ["vendor", "device", "subsystem_vendor", "subsystem_device"] {
        attribute(id, NOBODY.into());
    }
    attribute("revision", "0x00".into());
    attribute("numa_node", nic.numa_node.to_string());
    attribute("local_cpulist", nic.cpus.to_string());
    attribute("local_cpus", nic.cpus.mask());
    attribute("enable", "1".into());
    let slot = nic.function.as_ref().map(|function| format!("\nPCI_SLOT_NAME={}", function.bdf));
    attribute("uevent", format!("DRIVER=peerdma{}", slot.unwrap_or_default()));

    // Programs go from an HCA to its netdev through device/net.
    let netdev = format!("{device}/net/{}", nic.netdev.name);
    let mut attribute = |name: &str, text: String| tree.file(&format!("{netdev}/{name}"), text);
    attribute("address", nic.netdev.address.clone());
    attribute("dev_id", "0x0".into());
    attribute("dev_port", "0".into());
    attribute("ifindex", nic.netdev.index.to_string());
    attribute("mtu", nic.netdev.mtu.to_string());
    attribute("operstate", if nic.active { "up" } else { "down" }.into());
    tree.link(&format!("{netdev}/device"), device);
    let bus = if nic.function.is_some() { "/sys/bus/pci" } else { "/sys/bus/peerdma" };
    tree.link(&format!("{device}/subsystem"), bus);
}

fn describe_hca(tree: &mut Tree, hca: &str, device: &str, nic: &NicFacts) {
    let mut attribute = |name: &str, text: String| tree.file(&format!("{hca}/{name}"), text);
    attribute("node_type", "1: CA".into());
    attribute("node_guid", groups(&nic.node_guid.to_be_bytes()));
    attribute("sys_image_guid", groups(&nic.node_guid.to_be_bytes()));
    attribute("node_desc", nic.node_desc.clone());
    attribute("fw_ver", env!("CARGO_PKG_VERSION").into());
    attribute("hca_type", "peerdma".into());
    attribute("hw_rev", "1".into());
    attribute("board_id", "PEERDMA".into());
    attribute("uevent", format!("NAME={}", nic.name));
    tree.link(&format!("{hca}/device"), device);
    tree.link(&format!("{hca}/subsystem"), "/sys/class/infiniband");
}

fn describe_port(tree: &mut Tree, port: &str, nic: &NicFacts) {
    let mut attribute = |name: &str, text: String| tree.file(&format!("{port}/{name}"), text);
    attribute("state", if nic.active { "4: ACTIVE" } else { "1: DOWN" }.into());
    attribute("phys_state", if nic.active { "5: LinkUp" } else { "3: Disabled" }.into());
    attribute("rate", rate(nic.width, nic.speed));
    attribute("link_layer", "Ethernet".into());
    attribute("lid", "0x0".into());
    attribute("lid_mask_count", "0".into());
    attribute("sm_lid", "0x0".into());
    attribute("sm_sl", "0".into());
    attribute("cap_mask", format!("{CAP_MASK:#010x}"));
    // One partition, the default one, with full membership.
    attribute("pkeys/0", "0xffff".into());
    for row in 0..GID_ROWS.max(nic.gids.len()) {
        let gid = nic.gids.get(row).map_or([0; 16], |gid| gid.octets());
        attribute(&format!("gids/{row}"), groups(&gid));
        // Reading an unused row fails in the kernel (EINVAL); NCCL insists that the file can be
        // opened.
        let used = |text: &str| if row < nic.gids.len() { text.to_owned() } else { String::new() };
        attribute(&format!("gid_attrs/types/{row}"), used("RoCE v2"));
        attribute(&format!("gid_attrs/ndevs/{row}"), used(&nic.netdev.name));
    }
    for counter in counters::PORT {
        attribute(&format!("counters/{counter}"), "0".into());
    }
    for counter in counters::hardware_counters() {
        attribute(&format!("hw_counters/{counter}"), "0".into());
    }
    // Milliseconds for which hw_counters may be cached.
    attribute("hw_counters/lifespan", "10".into());
}

/// GUIDs and GIDs in groups of four digits.
fn groups(bytes: &[u8]) -> String {
    let pairs: Vec<String> =
        bytes.chunks_exact(2).map(|pair| format!("{:02x}{:02x}", pair[0], pair[1])).collect();
    pairs.join(":")
}

/// The rate of a port in words (`rate_show`): lanes times the speed of one.
fn rate(width: u8, speed: u8) -> String {
    let lanes = match width {
        2 => 4,
        4 => 8,
        8 => 12,
        16 => 2,
        _ => 1,
    };
    // In tenths of Gb/s.
    let (tenths, name) = match speed {
        2 => (50, "DDR"),
        4 => (100, "QDR"),
        8 => (100, "FDR10"),
        16 => (140, "FDR"),
        32 => (250, "EDR"),
        64 => (500, "HDR"),
        128 => (1000, "NDR"),
        _ => (25, "SDR"),
    };
    let half = if lanes * tenths % 10 == 0 { "" } else { ".5" };
    format!("{}{half} Gb/sec ({lanes}X {name})", lanes * tenths / 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn attributes_have_the_formats_of_the_kernel() {
        let tree = Tree::new(&[NicFacts::example()]);
        let hca = "/sys/devices/virtual/peerdma/peerdma0/infiniband/peerdma0";
        let text = |name: &str| tree.text(&format!("{hca}/{name}")).unwrap();
        assert_eq!(text("node_guid"), "0211:22ff:fe33:4455\n");
        assert_eq!(text("ports/1/gids/0"), "0000:0000:0000:0000:0000:ffff:0a00:0001\n");
        assert_eq!(text("ports/1/gids/15"), "0000:0000:0000:0000:0000:0000:0000:0000\n");
        assert_eq!(text("ports/1/gid_attrs/types/0"), "RoCE v2\n");
        assert_eq!(text("ports/1/gid_attrs/ndevs/1"), "eth0\n");
        assert_eq!(text("ports/1/gid_attrs/types/2"), "");
        assert_eq!(text("ports/1/cap_mask"), "0x04010000\n");
        assert_eq!(text("ports/1/rate"), "100 Gb/sec (4X EDR)\n");
    }

    #[test]
    fn rates_are_the_kernels() {
        assert_eq!(rate(1, 1), "2.5 Gb/sec (1X SDR)");
        assert_eq!(rate(1, 32), "25 Gb/sec (1X EDR)");
        assert_eq!(rate(2, 4), "40 Gb/sec (4X QDR)");
        assert_eq!(rate(16, 32), "50 Gb/sec (2X EDR)");
        assert_eq!(rate(2, 128), "400 Gb/sec (4X NDR)");
    }

    #[test]
    fn the_uverbs_device_names_its_hca() {
        let tree = Tree::new(&[NicFacts::example()]);
        let uverbs = "/sys/devices/virtual/peerdma/peerdma0/infiniband_verbs/uverbs0";
        assert_eq!(tree.text(&format!("{uverbs}/ibdev")), Some("peerdma0\n"));
        assert_eq!(tree.text(&format!("{uverbs}/dev")), Some("231:192\n"));
    }
}
