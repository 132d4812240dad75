//! What bug reports contain first: `ibv_devices`, `ibv_devinfo -v`; and how libraries find
//! libibverbs.

use interop::need::Need;
use interop::{Mode, Output, Program, Scratch, Veth, compile, needs};

const MODES: [Mode; 3] = [Mode::Run, Mode::Library, Mode::Preload];

/// The number after `KEY:` in the output of `ibv_devinfo`, hexadecimal or decimal, with any unit.
#[track_caller]
fn number(out: &Output, key: &str) -> u64 {
    let text = out.field(key).unwrap_or_else(|| panic!("no line {key} in:\n{out}"));
    let (digits, radix) = text.strip_prefix("0x").map_or((text, 10), |hex| (hex, 16));
    let end = digits.find(|c: char| !c.is_digit(radix)).unwrap_or(digits.len());
    let parsed = u64::from_str_radix(&digits[..end], radix);
    parsed.unwrap_or_else(|_| panic!("{key}: {text:?} is no number"))
}

#[test]
fn ibv_devices_lists_one_device_with_a_guid() {
    needs!(Need::Program("ibv_devices"));
    for mode in MODES {
        let out = Program::new("ibv_devices").mode(mode).output();
        let line = out.success().stdout.lines().nth(2).unwrap_or_default();
        let words: Vec<_> = line.split_whitespace().collect();
        assert_eq!(words.len(), 2, "{mode:?}: name and GUID in {line:?}\n{out}");
        assert_eq!(words[1].len(), 16, "{mode:?}: a GUID of 64 bits\n{out}");
        assert_ne!(words[1], "0000000000000000", "{mode:?}\n{out}");
    }
}

/// Python's verbs count 300 ports, and query those that fit into eight bits.
#[test]
fn pyverbs_sees_300_ports_of_one_device() {
    needs!(Need::Python("pyverbs.device"));
    let scratch = Scratch::new();
    let config = scratch.file("peerdma.toml");
    std::fs::write(&config, "[[nic]]\nports = 300\n").expect("a scratch directory is writable");
    let code = "import pyverbs.device as d\n\
                ctx = d.Context(name=d.get_device_list()[0].name.decode())\n\
                attr = ctx.query_device_ex()\n\
                print(attr.phys_port_cnt_ex, attr.orig_attr.phys_port_cnt)\n\
                print(set(ctx.query_port(port).state for port in range(1, 256)))\n\
                try:\n\
                \x20   ctx.query_port(0)\n\
                except Exception as error:\n\
                \x20   print(error.error_code)\n";
    let python = Program::new("/usr/bin/python3").env("PEERDMA_CONFIG", &config);
    let out = python.args(["-c", code]).output();
    assert_eq!(out.success().stdout, "300 255\n{4}\n22\n", "{out}");
    // Where ports are directories, all are there.
    let count = Program::new("sh").env("PEERDMA_CONFIG", &config);
    let out = count.args(["-c", "ls /sys/class/infiniband/*/ports | wc -l"]).output();
    assert_eq!(out.success().stdout.trim(), "300", "{out}");
}

#[test]
fn ibv_devinfo_shows_an_active_roce_port() {
    needs!(Need::Program("ibv_devinfo"));
    for mode in MODES {
        let out = Program::new("ibv_devinfo").mode(mode).output();
        out.success().says("PORT_ACTIVE (4)").says("InfiniBand (0)");
        assert_eq!(out.field("link_layer"), Some("Ethernet"), "{mode:?}\n{out}");
        assert_eq!(number(&out, "phys_port_cnt"), 1, "{mode:?}\n{out}");
        for key in ["hca_id", "fw_ver", "node_guid", "sys_image_guid", "board_id"] {
            assert!(out.field(key).is_some_and(|v| !v.is_empty()), "{mode:?}: {key}\n{out}");
        }
    }
}

#[test]
fn ibv_devinfo_v_has_plausible_limits() {
    needs!(Need::Program("ibv_devinfo"));
    let out = Program::new("ibv_devinfo").args(["-v"]).output();
    out.success();
    let at_least = [
        ("max_mr_size", 1 << 30),
        ("page_size_cap", 4096),
        ("max_qp", 10_000),
        ("max_qp_wr", 1024),
        ("max_sge", 4),
        ("max_sge_rd", 1),
        ("max_cq", 1024),
        ("max_cqe", 4096),
        ("max_mr", 10_000),
        ("max_pd", 1024),
        ("max_qp_rd_atom", 1),
        ("max_res_rd_atom", 1),
        ("max_qp_init_rd_atom", 1),
        ("max_ah", 1024),
        ("max_srq", 1024),
        ("max_srq_wr", 1024),
        ("max_srq_sge", 1),
        ("max_pkeys", 1),
    ];
    for (key, least) in at_least {
        let value = number(&out, key);
        assert!(value >= least, "{key} is {value}, wanted at least {least}\n{out}");
    }
    assert_eq!(number(&out, "page_size_cap") & 4096, 4096, "4 KiB pages\n{out}");
    // A queue pair can have every resource the device has; a device has at least one QP's worth.
    assert!(number(&out, "max_res_rd_atom") >= number(&out, "max_qp_rd_atom"), "{out}");
    out.says("ATOMIC_HCA");
}

#[test]
fn ibv_devinfo_v_shows_the_port_and_its_gids() {
    needs!(Need::Program("ibv_devinfo"));
    let out = Program::new("ibv_devinfo").args(["-v"]).output();
    out.success();
    for (key, value) in [("sm_lid", "0"), ("port_lid", "0"), ("port_lmc", "0x00")] {
        assert_eq!(out.field(key), Some(value), "RoCE has no subnet manager: {key}\n{out}");
    }
    assert!(out.field("max_mtu").is_some_and(|v| v.contains("4096")), "{out}");
    assert!(out.field("phys_state").is_some_and(|v| v.contains("LINK_UP")), "{out}");
    assert!(number(&out, "gid_tbl_len") >= 1, "{out}");
    let first = out.field("GID[  0]").unwrap_or_else(|| panic!("no GID 0 in:\n{out}"));
    assert!(first.ends_with("RoCE v2"), "only RoCE v2 GIDs: {first:?}");
    assert!(first.starts_with("::ffff:"), "IPv4 first: {first:?}");
    for line in out.stdout.lines().filter(|line| line.trim_start().starts_with("GID[")) {
        assert!(line.ends_with("RoCE v2"), "only RoCE v2 GIDs: {line:?}");
    }
}

#[test]
fn ibv_devinfo_v_shows_the_extensions() {
    needs!(Need::Program("ibv_devinfo"));
    let out = Program::new("ibv_devinfo").args(["-v"]).output();
    out.success()
        .says("general_odp_caps")
        .says("device_cap_flags")
        .says("completion timestamp_mask");
    assert!(number(&out, "hca_core_clock") > 0, "timestamps have a clock\n{out}");
    assert!(number(&out, "maximum available device memory") > 0, "device memory\n{out}");
}

#[test]
fn an_unknown_device_is_refused_in_words() {
    needs!(Need::Program("ibv_devinfo"));
    let out = Program::new("ibv_devinfo").args(["-d", "mlx5_0"]).output();
    out.failure().says("IB device 'mlx5_0' wasn't found");
}

#[test]
fn dlvsym_finds_each_function_at_its_exact_version() {
    needs!(Need::Header("infiniband/verbs.h"));
    let scratch = Scratch::new();
    let program = compile("dlvsym", &scratch);
    for mode in MODES {
        Program::new(&program).mode(mode).output().success().says("ok");
    }
}

#[test]
fn vendor_libraries_load_and_find_no_device_of_their_own() {
    needs!(
        Need::Header("infiniband/verbs.h"),
        Need::Library("libmlx5.so.1"),
        Need::Library("libefa.so.1")
    );
    let scratch = Scratch::new();
    let program = compile("vendors", &scratch);
    for mode in MODES {
        Program::new(&program).mode(mode).output().success().says("ok");
    }
}

#[test]
fn a_device_does_not_need_privileges() {
    needs!(Need::Root, Need::Program("setpriv"), Need::Program("ibv_devinfo"));
    let out = Program::new("ibv_devinfo").as_nobody().output();
    out.success().says("PORT_ACTIVE (4)");
}

/// The port follows the netdev that the NIC was opened on, even when that has no default route any
/// more.
#[test]
fn ibv_asyncwatch_reports_a_port_that_goes_down_and_comes_back() {
    needs!(
        Need::Root,
        Need::Namespaces,
        Need::Program("ibv_asyncwatch"),
        Need::Program("stdbuf"),
        Need::Program("ip")
    );
    // It buffers its output to a pipe, and never flushes.
    Veth::new().goes_down_and_up(Program::new("stdbuf").args(["-oL", "ibv_asyncwatch"]));
}
