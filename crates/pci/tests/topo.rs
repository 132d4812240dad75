//! What `peerdma topo` says of real machines.

mod machines;

use std::path::Path;

use machines::Machine;
use pci::{MapType, Topology};

/// Compares with a file beside the machine's; `PEERDMA_BLESS=1` writes it.
fn assert_shown(name: &str, machine: &str, expected: &str) {
    let machine = Machine::new(name, machine);
    let shown = Topology::from_sysfs(machine.root()).expect("a machine with devices").to_string();
    if std::env::var_os("PEERDMA_BLESS").is_some() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/machines");
        std::fs::write(path.join(format!("{name}.shown")), shown).expect("writable");
        return;
    }
    assert_eq!(shown, expected, "\n{shown}");
}

macro_rules! shown {
    ($test:ident, $name:literal) => {
        #[test]
        fn $test() {
            let machine = include_str!(concat!("machines/", $name, ".txt"));
            assert_shown($name, machine, include_str!(concat!("machines/", $name, ".shown")));
        }
    };
}

shown!(behind_a_switch_devices_reach_each_other_and_by_the_cpu_they_do_not, "dgx");
shown!(listed_host_bridges_forward_from_one_to_another, "xeon");
shown!(amd_forwards_what_acs_redirects, "epyc");
shown!(a_desktop_refuses_and_says_why, "desktop");

#[test]
fn a_refusal_says_what_is_wrong_with_a_bar_or_a_host_bridge() {
    let machine = Machine::new(
        "refusals",
        "cpu ven0000fam0006\n\
         host 0000:00\n\
         \x20 00.0 8086:2f00 0600\n\
         \x20 01.0 8086:2f02 0604 root\n\
         \x20   01:00.0 10de:0001 0302 bar0=256M,pref\n\
         \x20 02.0 8086:2f04 0604 root\n\
         \x20   02:00.0 15b3:1013 0200\n\
         host 0000:80\n\
         \x20 00.0 8086:2f01 0600\n\
         \x20 01.0 8086:2f02 0604 root\n\
         \x20   81:00.0 10de:0001 0302 bar0=2K\n\
         host 0000:c0\n\
         \x20 02.0 10de:0001 0302\n",
    );
    let topology = Topology::from_sysfs(machine.root()).expect("a machine with devices");
    let at = |label: &str| {
        let device = topology.devices().iter().find(|device| device.label == label);
        device.expect("a device of this label")
    };
    let refusal = |provider, client| {
        let verdict = topology.peer_to_peer(at(provider), at(client));
        assert_eq!(verdict.map_type(), MapType::NotSupported);
        verdict.refusal.expect("refused").to_string()
    };
    let below = topology.peer_to_peer(at("GPU0"), at("NIC0"));
    assert_eq!((below.map_type(), below.refusal), (MapType::ThruHostBridge, None));
    assert_eq!(
        refusal("GPU0", "GPU1"),
        "no PCI bridge in common, and host bridge 0000:00 (8086:2f00) is on the allowlist only for \
         traffic that stays below it; host bridge 0000:80 (8086:2f01) is on the allowlist only for \
         traffic that stays below it"
    );
    assert_eq!(
        refusal("GPU0", "GPU2"),
        "no PCI bridge in common, and host bridge 0000:00 (8086:2f00) is on the allowlist only for \
         traffic that stays below it; host bridge 0000:c0 is unknown: neither function 00.0 nor a \
         root port is first"
    );
    assert_eq!(refusal("GPU1", "NIC0"), "BAR 0 is too small: 2 KiB, less than a page");
    assert_eq!(refusal("GPU2", "NIC0"), "no BAR leads to its memory");
    assert_eq!(refusal("NIC0", "GPU0"), "its driver has no memory for other devices");
}

#[test]
fn where_there_is_nothing_to_see_the_error_says_what_was_looked_for() {
    let error = Topology::from_sysfs(Path::new("/nonexistent")).unwrap_err().to_string();
    assert_eq!(
        error,
        "no PCI bus to read: /nonexistent/bus/pci/devices: No such file or directory (os error 2)"
    );
    let bare = Machine::new("bare", "host 0000:00\n  00.0 8086:1237 0600\n");
    assert_eq!(
        Topology::from_sysfs(bare.root()).unwrap_err().to_string(),
        "no GPU, NIC or NVMe controller is among the 1 PCI functions (classes 0x03, 0x12, 0x02, \
         0x0108)"
    );
}
