//! Each rule of `docs/semantics.md` 4, on trees made for it.

use std::sync::Arc;

use pci::{
    Acs, AddResourceError, Bar, BarKind, Bdf, Cpu, Enable, EnableError, Function, FunctionKind,
    Ids, InitError, MapType, P2pdma, PciConfig, PciTree, RootBus, Route,
};

/// A machine with all kinds of topology: two host bridges, two switches, two functions of one
/// device.
const MACHINE: &str = r#"
    [[host_bridge]]
    name = "left"
    id = "LEFT"
    acs = ["SV"]
    [[host_bridge]]
    name = "right"
    id = "RIGHT"
    bus_offset = -4096
    [[switch]]
    name = "outer"
    under = "left"
    acs = OUTER
    [[switch]]
    name = "inner"
    under = "outer"
    acs = INNER
    [[device]]
    name = "nic0"
    under = "outer"
    [[device]]
    name = "gpu0"
    under = "outer"
    bars = ["256M", 65536]
    [[device]]
    name = "gpu0.1"
    function_of = "gpu0"
    [[device]]
    name = "deep"
    under = "inner"
    bars = ["1M"]
    [[device]]
    name = "alone"
    under = "left"
    [[device]]
    name = "far"
    under = "right"
    bars = ["1M"]
"#;

/// On the list; on the list only for traffic below the same host bridge; not on the list.
const LISTED: &str = "8086:2030";
const ITSELF: &str = "8086:3c00";
const UNKNOWN: &str = "1022:1480";

fn machine(left: &str, right: &str, outer: &str, inner: &str) -> PciConfig {
    let text = MACHINE
        .replace("LEFT", left)
        .replace("RIGHT", right)
        .replace("OUTER", outer)
        .replace("INNER", inner);
    toml::from_str(&text).expect("the test's own text")
}

fn plain() -> PciTree {
    machine(LISTED, LISTED, "[]", "[]").build(&[]).expect("sound")
}

fn path(tree: &PciTree, provider: &str, client: &str) -> pci::Path {
    tree.path(named(tree, provider), named(tree, client))
}

fn named(tree: &PciTree, name: &str) -> Bdf {
    tree.by_name(name).expect("a device of the test's machine")
}

#[test]
fn the_distance_is_the_number_of_steps_over_the_common_bridge() {
    let tree = plain();
    let table = [
        ("gpu0", "gpu0", 0, MapType::BusAddr),
        ("gpu0", "gpu0.1", 2, MapType::BusAddr),
        ("gpu0", "nic0", 4, MapType::BusAddr),
        // From deep over port, up and the port below outer to outer's up: four; from nic0: two.
        ("deep", "nic0", 6, MapType::BusAddr),
        // Chains of five (deep's own root port on top: 6) and two.
        ("deep", "alone", 8, MapType::ThruHostBridge),
        ("gpu0", "alone", 6, MapType::ThruHostBridge),
        ("alone", "far", 4, MapType::ThruHostBridge),
    ];
    for (provider, client, distance, map_type) in table {
        let there = path(&tree, provider, client);
        assert_eq!((there.distance, there.map_type), (distance, map_type), "{there}");
        let back = path(&tree, client, provider);
        assert_eq!((back.distance, back.map_type), (distance, map_type), "{back}");
    }
}

#[test]
fn a_redirecting_bridge_on_either_side_sends_traffic_to_the_root() {
    for (bits, redirects) in [
        (r#"["RR"]"#, true),
        (r#"["CR"]"#, true),
        (r#"["EC"]"#, true),
        (r#"["SV", "TB", "UF", "DT"]"#, false),
    ] {
        let tree = machine(LISTED, LISTED, "[]", bits).build(&[]).expect("sound");
        for (provider, client) in [("deep", "nic0"), ("nic0", "deep")] {
            let path = path(&tree, provider, client);
            let expected = if redirects { MapType::ThruHostBridge } else { MapType::BusAddr };
            assert_eq!(path.map_type, expected, "{bits}: {path}");
            assert_eq!(path.distance, 6, "a redirect does not change the distance");
        }
        // The inner switch is not between these two.
        assert_eq!(path(&tree, "gpu0", "nic0").map_type, MapType::BusAddr);
    }
}

#[test]
fn the_common_bridge_counts_once_and_a_function_reaches_itself() {
    let tree = machine(UNKNOWN, LISTED, r#"["RR"]"#, "[]").build(&[]).expect("sound");
    // Two functions behind one port meet at that port, which redirects.
    let path = path(&tree, "gpu0", "gpu0.1");
    let port = tree.function(named(&tree, "gpu0")).and_then(|f| f.upstream).expect("a port");
    assert!(matches!(&path.route, Route::Redirected { by, .. } if *by == [port]));
    assert_eq!(path.map_type, MapType::NotSupported);
    assert_eq!(self::path(&tree, "gpu0", "gpu0").map_type, MapType::BusAddr);
}

/// `calc_map_type_and_dist` looks at the ACS of the provider before it compares it with the client.
#[test]
fn a_function_that_redirects_does_not_reach_itself_directly() {
    let of = |id: &str| {
        let text = format!(
            "[[host_bridge]]\nname = \"root\"\nid = \"{id}\"\n\
             [[device]]\nname = \"gpu0\"\nacs = [\"RR\"]\n"
        );
        let tree = toml::from_str::<PciConfig>(&text).expect("sound").build(&[]).expect("sound");
        let path = path(&tree, "gpu0", "gpu0");
        assert!(matches!(&path.route, Route::Redirected { by, .. } if *by == [path.provider]));
        (path.distance, path.map_type)
    };
    assert_eq!(of(LISTED), (0, MapType::ThruHostBridge));
    assert_eq!(of(UNKNOWN), (0, MapType::NotSupported));
}

#[test]
fn traffic_through_a_host_bridge_depends_on_the_allowlist() {
    let table = [
        (LISTED, LISTED, true, true),
        (ITSELF, LISTED, true, false),
        (ITSELF, ITSELF, true, false),
        (LISTED, ITSELF, true, false),
        (UNKNOWN, LISTED, false, false),
        (LISTED, UNKNOWN, true, false),
        // Any device of Google; some of Nvidia; an accelerator.
        ("1ae0:1234", "10de:2f96", true, true),
        ("10de:2f99", "8086:0b25", false, false),
    ];
    for (left, right, within, between) in table {
        let tree = machine(left, right, "[]", "[]").build(&[]).expect("sound");
        assert_eq!(path(&tree, "gpu0", "alone").is_possible(), within, "{left} within");
        assert_eq!(path(&tree, "gpu0", "far").is_possible(), between, "{left} to {right}");
        assert!(path(&tree, "gpu0", "nic0").is_possible(), "no host bridge takes part");
    }
}

#[test]
fn amd_permits_all_from_zen_on() {
    let mut config = machine(UNKNOWN, UNKNOWN, r#"["RR"]"#, "[]");
    for (family, possible) in [(Some(0x16), false), (Some(0x17), true), (None, true)] {
        config.cpu = Some(pci::CpuVendor::Amd);
        config.cpu_family = family;
        let tree = config.build(&[]).expect("sound");
        assert_eq!(path(&tree, "gpu0", "far").is_possible(), possible);
        assert_eq!(path(&tree, "gpu0", "nic0").is_possible(), possible, "redirected");
    }
}

#[test]
fn a_host_bridge_is_identified_by_function_zero_or_by_a_first_root_port() {
    let text = "[[host_bridge]]\nname = \"r\"\n[[device]]\nname = \"a\"\n[[device]]\nname = \"b\"";
    let tree = toml::from_str::<PciConfig>(text).unwrap().build(&[]).unwrap();
    let root = tree.functions().next().expect("not empty").root;
    let ids = tree.host_bridge_ids(root).expect("its first root port speaks for it");
    assert_eq!(ids.to_string(), "1b36:000c");
    // That port is not on the list.
    let refusal = path(&tree, "a", "b");
    assert!(!refusal.is_possible());
    assert_eq!(
        refusal.to_string(),
        "0000:02:00.0 and 0000:01:00.0 have no PCI bridge in common, so peer-to-peer goes through the host bridge \
         0000:00 (1b36:000c), which the allowlist does not have for this"
    );
}

#[test]
fn a_refusal_names_the_bridges_and_the_remedy() {
    let tree = machine(UNKNOWN, LISTED, r#"["RR", "CR"]"#, "[]").build(&[]).expect("sound");
    let words = path(&tree, "gpu0", "nic0").to_string();
    for port in ["gpu0", "nic0"] {
        let port = tree.function(named(&tree, port)).and_then(|f| f.upstream).expect("a port");
        assert_eq!(words.matches(&port.to_string()).count(), 2, "{words}");
    }
    assert!(words.contains("disable_acs_redir") && words.contains(UNKNOWN), "{words}");
    let nowhere = tree.path(named(&tree, "gpu0"), Bdf::new(9, 9, 9, 0));
    assert!(matches!(nowhere.route, Route::NotPci) && !nowhere.is_possible());
}

#[test]
fn in_the_default_machine_all_devices_reach_each_other() {
    let tree = PciConfig::default().build(&["peerdma0", "gpu0", "gpu1"]).expect("sound");
    for (a, b) in [("peerdma0", "gpu0"), ("gpu1", "gpu0"), ("peerdma0", "gpu1")] {
        assert_eq!((path(&tree, a, b).distance, path(&tree, a, b).map_type), (4, MapType::BusAddr));
    }
}

#[test]
fn invalid_sections_are_refused_in_words() {
    let error = |text: &str| {
        toml::from_str::<PciConfig>(text).expect("it parses").build(&[]).unwrap_err().to_string()
    };
    assert!(error("[[device]]\nname = \"x\"\nunder = \"nowhere\"").contains("nowhere"));
    assert!(error("[[device]]\nname = \"x\"\n[[device]]\nname = \"x\"").contains("unique"));
    assert!(error("[[device]]\nname = \"x\"\nfunction_of = \"x\"").contains("function of"));
    assert!(error("[[device]]\nname = \"x\"\nbdf = \"0000:00:00.0\"").contains("sysfs"));
    assert!(error("[[device]]\nname = \"x\"\nbars = [3]").contains("0x3"));
    let circle = "[[host_bridge]]\nname = \"r\"\n[[switch]]\nname = \"a\"\nunder = \"b\"\n\
                  [[switch]]\nname = \"b\"\nunder = \"a\"";
    assert!(error(circle).contains("lies under"));
    let many: String = (0..40).map(|n| format!("[[device]]\nname = \"d{n}\"\n")).collect();
    assert!(error(&many).contains("number is left"));
    let many: String =
        (0..9).map(|n| format!("[[device]]\nname = \"d{n}\"\nfunction_of = \"d\"\n")).collect();
    assert!(error(&format!("[[device]]\nname = \"d\"\n{many}")).contains("eight"));
}

#[test]
fn distance_many_is_a_sum_or_a_refusal() {
    let tree = Arc::new(machine(UNKNOWN, LISTED, "[]", "[]").build(&[]).expect("sound"));
    let p2p = P2pdma::new(Arc::clone(&tree));
    let at = |name| named(&tree, name);
    assert_eq!(p2p.distance_many(at("gpu0"), &[]), None);
    assert_eq!(p2p.distance_many(at("gpu0"), &[at("gpu0")]), Some(0));
    assert_eq!(p2p.distance_many(at("gpu0"), &[at("nic0"), at("gpu0.1")]), Some(6));
    assert_eq!(p2p.distance_many(at("gpu0"), &[at("nic0"), Bdf::new(1, 0, 0, 0)]), None);
    assert_eq!(p2p.distance_many(at("gpu0"), &[at("nic0"), at("alone")]), None, "not supported");
}

#[test]
fn find_many_takes_the_nearest_published_provider_and_picks_among_equals() {
    let config = "[[switch]]\nname = \"s\"\n[[switch]]\nname = \"t\"\n[[host_bridge]]\nname = \"r\"\nid = \"8086:2020\"\n\
                  [[device]]\nname = \"client\"\n[[device]]\nname = \"a\"\nbars = [4096]\n\
                  [[device]]\nname = \"b\"\nbars = [4096]\n[[device]]\nname = \"c\"\nunder = \"t\"\nbars = [4096]";
    let tree = Arc::new(toml::from_str::<PciConfig>(config).unwrap().build(&[]).unwrap());
    let p2p = P2pdma::new(Arc::clone(&tree));
    let at = |name| named(&tree, name);
    let clients = [at("client")];
    for device in ["a", "b", "c"] {
        p2p.add_resource(at(device), 0, 0, 0).expect("a BAR");
        assert_eq!(p2p.find_many(&clients, |_| unreachable!()), None, "nothing is published");
    }
    p2p.publish(at("c"), true);
    assert_eq!(p2p.find_many(&clients, |_| 0), Some(at("c")));
    p2p.publish(at("a"), true);
    p2p.publish(at("b"), true);
    let choose = |which| {
        p2p.find_many(&clients, |count| {
            assert_eq!(count, 2, "c is further away");
            which
        })
    };
    assert_eq!([choose(0), choose(1)], [Some(at("a")), Some(at("b"))]);
    p2p.publish(at("a"), false);
    assert_eq!(p2p.find_many(&clients, |_| 0), Some(at("b")));
    assert_eq!(p2p.find_many(&[], |_| 0), None);
}

#[test]
fn providers_and_pools() {
    let tree = Arc::new(plain());
    let p2p = P2pdma::new(Arc::clone(&tree));
    let (gpu, far) = (named(&tree, "gpu0"), named(&tree, "far"));
    assert_eq!(p2p.provider(gpu, 0), None, "not initialised");
    assert_eq!(p2p.map_type(gpu, named(&tree, "nic0")), MapType::NotSupported);
    assert_eq!(p2p.view(gpu), None);
    p2p.init(gpu).expect("it has memory");
    assert_eq!(p2p.map_type(gpu, named(&tree, "nic0")), MapType::BusAddr);
    assert_eq!(p2p.map_type(gpu, Bdf::new(1, 0, 0, 0)), MapType::NotSupported);
    assert_eq!(p2p.provider(gpu, 0).expect("a memory BAR").bar.size, 256 << 20);
    assert_eq!(p2p.provider(gpu, 5), None);
    assert!(p2p.alloc(gpu, 1).is_none(), "no pool");
    let none = p2p.view(gpu).expect("a provider");
    assert_eq!((none.size, none.available, none.published), (0, 0, false));

    use AddResourceError::{NotMemory, OutOfRange};
    assert!(matches!(p2p.add_resource(gpu, 3, 0, 0), Err(NotMemory { bar: 3, .. })));
    assert!(matches!(p2p.add_resource(gpu, 1, 0, 65536), Err(OutOfRange { .. })));
    assert!(matches!(p2p.add_resource(gpu, 1, 4097, 61440), Err(OutOfRange { .. })));
    assert!(matches!(p2p.add_resource(gpu, 1, u64::MAX, 4096), Err(OutOfRange { .. })));
    let nobody = Bdf::new(1, 0, 0, 0);
    assert_eq!(p2p.init(nobody), Err(InitError::NoDevice { bdf: nobody }));
    p2p.add_resource(gpu, 1, 0, 4096).expect("the rest");
    let memory = p2p.alloc(gpu, 5000).expect("room");
    let view = p2p.view(gpu).expect("a provider");
    assert_eq!((view.size, view.available), (61440, 61440 - 8192));
    drop(memory);
    assert_eq!(p2p.view(gpu).expect("a provider").available, 61440);

    p2p.add_resource(far, 0, 0, 0).expect("a BAR");
    let provider = p2p.provider(far, 0).expect("a memory BAR");
    let memory = p2p.alloc(far, 1).expect("room");
    assert_eq!(memory.bus_addr(), memory.addr() - 4096, "its host bridge translates");
    assert_eq!(provider.bus_addr(memory.addr()), memory.bus_addr());
    p2p.remove(far);
    assert!(p2p.alloc(far, 1).is_none() && p2p.provider(far, 0).is_none());
}

/// As on architectures whose CPU cannot access BARs.
#[test]
fn a_device_whose_memory_cannot_be_mapped_is_not_a_provider() {
    let bdf = Bdf::new(0, 1, 0, 0);
    let kind = BarKind::Unmappable;
    let device = Function {
        bdf,
        kind: FunctionKind::Endpoint,
        upstream: None,
        root: RootBus { domain: 0, bus: 0 },
        ids: Ids { vendor: 0x8086, device: 0x2020 },
        acs: Acs::empty(),
        bars: vec![Bar { index: 2, addr: 1 << 32, size: 4096, bus_offset: 0, kind }],
    };
    let p2p = P2pdma::new(Arc::new(PciTree::new(Cpu::Other, vec![device]).expect("sound")));
    assert_eq!(p2p.init(bdf), Err(InitError::NotMappable { bdf, bar: 2 }));
    assert_eq!((p2p.provider(bdf, 2), p2p.view(bdf)), (None, None));
}

#[test]
fn the_enable_attribute_takes_a_device_or_a_boolean() {
    let tree = Arc::new(plain());
    let p2p = P2pdma::new(Arc::clone(&tree));
    let gpu = named(&tree, "gpu0");
    for (text, enable) in [
        ("1\n", Enable::Any),
        ("y", Enable::Any),
        ("on\n", Enable::Any),
        ("true", Enable::Any),
        ("0", Enable::No),
        ("off", Enable::No),
        ("No", Enable::No),
    ] {
        assert_eq!(p2p.enable_store(text), Ok(enable), "{text:?}");
    }
    for text in ["", "01", "10", "0000:99:00.0", "maybe", "o"] {
        assert!(matches!(p2p.enable_store(text), Err(EnableError::NoDevice { .. })), "{text:?}");
    }
    let text = format!("{gpu}\n");
    assert_eq!(p2p.enable_store(&text), Err(EnableError::NoMemory { bdf: gpu }));
    p2p.add_resource(gpu, 0, 0, 0).expect("a BAR");
    p2p.publish(gpu, true);
    let enable = p2p.enable_store(&text).expect("published");
    assert_eq!((enable, enable.to_string()), (Enable::Device(gpu), gpu.to_string()));
}
