//! The tree read from a copy of `/sys`.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use pci::{Acs, BarKind, Cpu, FunctionKind, MapType, PciConfig, PciTree};

/// A directory that looks like `/sys`; removed when dropped.
struct FakeSys(PathBuf);

impl FakeSys {
    fn new(name: &str) -> Self {
        let root = std::env::temp_dir().join(format!("peerdma-pci-{name}-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        fs::create_dir_all(root.join("bus/pci/devices")).expect("a temporary directory");
        Self(root)
    }

    /// Adds a function at `place` below `devices/`.
    fn add(&self, place: &str, ids: (&str, &str), class: &str, config: Option<Vec<u8>>) -> PathBuf {
        let dir = self.0.join("devices").join(place);
        fs::create_dir_all(&dir).expect("writable");
        let write = |name: &str, text: &str| fs::write(dir.join(name), text).expect("writable");
        write("vendor", &format!("{}\n", ids.0));
        write("device", &format!("{}\n", ids.1));
        write("class", &format!("{class}\n"));
        let mut resource = "0x000000e000000000 0x000000e00fffffff 0x000000000014220c\n".to_owned();
        resource += "0x0000000000000000 0x0000000000000000 0x0000000000000000\n";
        resource += "0x000000000000e000 0x000000000000e07f 0x0000000000040101\n";
        write("resource", &resource);
        if let Some(config) = config {
            fs::write(dir.join("config"), config).expect("writable");
        }
        let name = Path::new(place).file_name().expect("a function");
        symlink(&dir, self.0.join("bus/pci/devices").join(name)).expect("writable");
        dir
    }
}

impl Drop for FakeSys {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Configuration space of a port: its type, and its ACS control register.
fn port(kind: u8, acs: u16) -> Vec<u8> {
    let mut config = vec![0; 4096];
    config[0x34] = 0x40;
    // Power management first, then PCI Express.
    config[0x40..0x44].copy_from_slice(&[0x01, 0x60, 0, 0]);
    config[0x60..0x64].copy_from_slice(&[0x10, 0, kind << 4 | 2, 0]);
    // AER first, then ACS.
    config[0x100..0x104].copy_from_slice(&(0x1500_0000 | 0x1_0001_u32).to_le_bytes());
    config[0x150..0x154].copy_from_slice(&0x1_000d_u32.to_le_bytes());
    config[0x156..0x158].copy_from_slice(&acs.to_le_bytes());
    config
}

const BRIDGE: &str = "0x060400";

#[test]
fn ports_acs_and_bars_are_read() {
    let sys = FakeSys::new("ports");
    let root = "pci0000:00/0000:00:01.0";
    sys.add("pci0000:00/0000:00:00.0", ("0x8086", "0x2020"), "0x060000", None);
    sys.add(root, ("0x8086", "0x2030"), BRIDGE, Some(port(4, 0)));
    let up = format!("{root}/0000:01:00.0");
    sys.add(&up, ("0x10b5", "0x8747"), BRIDGE, Some(port(5, 0)));
    for (slot, acs) in [(0, 0), (1, 0), (2, 0x1d)] {
        let down = format!("{up}/0000:02:{slot:02x}.0");
        sys.add(&down, ("0x10b5", "0x8747"), BRIDGE, Some(port(6, acs)));
        let bus = slot + 3;
        sys.add(&format!("{down}/0000:{bus:02x}:00.0"), ("0x10de", "0x1"), "0x030200", None);
    }
    let mut config = PciConfig { sysfs: Some(sys.0.clone()), ..PciConfig::default() };
    for (name, bdf) in
        [("nic", "0000:03:00.0"), ("gpu", "0000:04:00.0"), ("walled", "0000:05:00.0")]
    {
        let (name, bdf) = (name.to_owned(), Some(bdf.to_owned()));
        config.devices.push(pci::DeviceConfig { name, bdf, ..pci::DeviceConfig::default() });
    }
    config.cpu = Some(pci::CpuVendor::Intel);
    let tree = config.build(&[]).expect("a tree");
    let at = |name| tree.by_name(name).expect("named above");
    let gpu = tree.function(at("gpu")).expect("read");
    assert_eq!(gpu.kind, FunctionKind::Endpoint);
    assert_eq!((gpu.bars[0].addr, gpu.bars[0].size), (0xe0_0000_0000, 256 << 20));
    assert_eq!((gpu.bars[1].index, gpu.bars[1].kind), (2, BarKind::Io));
    let port = tree.function(gpu.upstream.expect("a port")).expect("read");
    assert_eq!(
        (port.kind, port.ids.to_string().as_str()),
        (FunctionKind::DownstreamPort, "10b5:8747")
    );

    let straight = tree.path(at("gpu"), at("nic"));
    assert_eq!((straight.distance, straight.map_type), (4, MapType::BusAddr));
    let walled = tree.path(at("gpu"), at("walled"));
    assert_eq!(walled.map_type, MapType::ThruHostBridge, "{walled}");
    let port = tree.function("0000:02:02.0".parse().unwrap()).expect("read");
    assert_eq!(port.acs, Acs::SV | Acs::RR | Acs::CR | Acs::UF);

    config.devices[0].bdf = Some("0000:09:00.0".to_owned());
    assert!(config.build(&[]).unwrap_err().to_string().contains("0000:09:00.0"));
    config.devices[0].bdf = None;
    assert!(config.build(&[]).unwrap_err().to_string().contains("has a bdf"));
}

#[test]
fn without_permission_acs_is_assumed_to_redirect_if_there_is_an_iommu() {
    let sys = FakeSys::new("hidden");
    let root = "pci0000:00/0000:00:1c.0";
    let dir = sys.add(root, ("0x8086", "0xa110"), BRIDGE, Some(vec![0; 64]));
    for function in 0..2 {
        sys.add(
            &format!("{root}/0000:01:00.{function}"),
            ("0x1", "0x2"),
            "0x020000",
            Some(vec![0; 64]),
        );
    }
    let read = || PciTree::from_sysfs(&sys.0, Cpu::Other).expect("a tree");
    let (one, other) = ("0000:01:00.0".parse().unwrap(), "0000:01:00.1".parse().unwrap());
    assert_eq!(read().path(one, other).map_type, MapType::BusAddr);
    fs::create_dir(dir.join("iommu_group")).expect("writable");
    assert_eq!(read().path(one, other).map_type, MapType::NotSupported);
    let kind = || {
        let tree = read();
        tree.function("0000:00:1c.0".parse().unwrap()).expect("read").kind
    };
    assert_eq!(kind(), FunctionKind::Bridge, "it may be one to conventional PCI");
    fs::write(dir.join("max_link_speed"), "16.0 GT/s PCIe\n").expect("writable");
    assert_eq!(kind(), FunctionKind::RootPort, "a bridge of PCI Express on a root bus");
}

/// Such a bridge may be the first function of a root bus, and says nothing of the host bridge.
#[test]
fn a_bridge_to_conventional_pci_on_a_root_bus_is_no_root_port() {
    let sys = FakeSys::new("conventional");
    let mut config = port(0, 0);
    config.truncate(256);
    // Power management is its only capability.
    config[0x41] = 0;
    let dir = sys.add("pci0000:00/0000:00:1e.0", ("0x8086", "0x2030"), BRIDGE, Some(config));
    fs::create_dir(dir.join("iommu_group")).expect("writable");
    let tree = PciTree::from_sysfs(&sys.0, Cpu::Other).expect("a tree");
    let bridge = tree.function("0000:00:1e.0".parse().unwrap()).expect("read");
    assert_eq!(bridge.kind, FunctionKind::Bridge);
    assert_eq!(tree.host_bridge_ids(bridge.root), None);
    // It has no room for ACS, and nothing of it is hidden.
    assert_eq!(bridge.acs, Acs::empty());
}

#[test]
fn a_malformed_tree_is_refused_with_the_name_of_the_file() {
    let sys = FakeSys::new("broken");
    let dir = sys.add("pci0000:00/0000:00:00.0", ("0x8086", "0x1"), "0x060000", None);
    fs::write(dir.join("class"), "xyz").expect("writable");
    let error = PciTree::from_sysfs(&sys.0, Cpu::Other).unwrap_err().to_string();
    assert!(error.contains("class") && error.contains("hexadecimal"), "{error}");
    let error = PciTree::from_sysfs(Path::new("/nonexistent"), Cpu::Other).unwrap_err().to_string();
    assert!(error.contains("/nonexistent/bus/pci/devices"), "{error}");
}

/// The PCI functions of this machine form a tree, or it has no PCI.
#[test]
fn this_machine_is_a_tree() {
    let root = Path::new("/sys");
    if !root.join("bus/pci/devices").exists() {
        eprintln!("not tested: this machine shows no PCI bus");
        return;
    }
    let tree = PciTree::from_sysfs(root, Cpu::Other).expect("a tree");
    for function in tree.functions() {
        assert_eq!(tree.path(function.bdf, function.bdf).distance, 0);
    }
}
