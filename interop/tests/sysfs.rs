//! `/sys/class/infiniband` for programs that do not use libibverbs: by libc, by system calls,
//! statically linked.

use interop::need::Need;
use interop::{Artefacts, Output, Program, Scratch, needs};

const CLASS: &str = "/sys/class/infiniband";

/// The name of the device, as `ls` sees it.
#[track_caller]
fn device() -> String {
    let out = Program::new("ls").args([CLASS]).output();
    let name = out.success().stdout.lines().next().unwrap_or_default().to_owned();
    assert!(!name.is_empty(), "no device in {CLASS}\n{out}");
    name
}

#[track_caller]
fn cat(program: &[&str], path: &str) -> Output {
    let out = Program::new(program[0]).args(&program[1..]).args([path]).output();
    out.success();
    out
}

#[test]
fn cat_reads_the_attributes_that_libraries_read() {
    let dev = device();
    for (attribute, wanted) in [
        ("node_type", "1: CA"),
        ("ports/1/state", "4: ACTIVE"),
        ("ports/1/phys_state", "5: LinkUp"),
        ("ports/1/link_layer", "Ethernet"),
        ("ports/1/gid_attrs/types/0", "RoCE v2"),
    ] {
        let out = cat(&["cat"], &format!("{CLASS}/{dev}/{attribute}"));
        assert_eq!(out.stdout.trim_end(), wanted, "{attribute}");
    }
    let guid = cat(&["cat"], &format!("{CLASS}/{dev}/node_guid"));
    assert_eq!(guid.stdout.trim_end().len(), "0123:4567:89ab:cdef".len(), "{guid}");
}

#[test]
fn stat_and_ls_see_directories_and_files() {
    let dev = device();
    let out =
        Program::new("stat").args(["-L", "-c", "%F", &format!("{CLASS}/{dev}/ports/1")]).output();
    assert_eq!(out.success().stdout.trim_end(), "directory");
    let out = Program::new("stat").args(["-c", "%F", &format!("{CLASS}/{dev}/node_guid")]).output();
    assert_eq!(out.success().stdout.trim_end(), "regular file");
    let out = Program::new("ls").args([&format!("{CLASS}/{dev}/ports/1")]).output();
    out.success().says("gids").says("gid_attrs").says("state");
}

#[test]
fn a_shell_changes_into_the_directories_and_out_again() {
    needs!(Need::Program("dash"), Need::Program("bash"));
    let dev = device();
    let tree = format!("/sys/devices/virtual/peerdma/{dev}/infiniband/{dev}");
    // The shell keeps the name that it was given; `/bin/pwd -P` asks the kernel, by libc.
    let steps = [
        (format!("cd {CLASS} && pwd && /bin/pwd -P && ls"), format!("{CLASS}\n{CLASS}\n{dev}\n")),
        (format!("cd {dev} && pwd && /bin/pwd -P"), format!("{CLASS}/{dev}\n{tree}\n")),
        ("cd ports/1 && cat state ./link_layer".into(), "4: ACTIVE\nEthernet\n".into()),
        ("cd -P . && pwd && realpath gids/../..".into(), format!("{tree}/ports/1\n{tree}/ports\n")),
        ("cd counters && cat VL15_dropped".into(), "0\n".into()),
        (format!("cd -P ../../../.. && pwd && cat {dev}/node_type"), {
            format!("/sys/devices/virtual/peerdma/{dev}/infiniband\n1: CA\n")
        }),
        // Above the tree is the kernel's directory, with what is ours in its listing.
        (format!("cd {CLASS} && cd -P .. && pwd"), "/sys/class\n".into()),
        ("ls -d net infiniband && cd net && /bin/pwd".into(), {
            "infiniband\nnet\n/sys/class/net\n".into()
        }),
        ("cd ../infiniband && /bin/pwd && cd / && pwd".into(), format!("{CLASS}\n/\n")),
        (format!("cd {CLASS}/nobody 2> /dev/null || echo no"), "no\n".into()),
    ];
    let (script, wanted): (Vec<String>, Vec<String>) = steps.into_iter().unzip();
    for shell in ["dash", "bash"] {
        let out = Program::new(shell).args(["-c", &script.join("; ")]).output();
        assert_eq!(out.success().stdout, wanted.concat(), "{shell}\n{out}");
    }
}

#[test]
fn what_a_program_starts_is_where_the_program_is() {
    needs!(Need::Program("python3"), Need::Program("busybox"));
    let dev = device();
    // A static program, which our library does not reach.
    let code = format!(
        "import os, subprocess\n\
         os.chdir('{CLASS}/{dev}')\n\
         here = os.getcwd()\n\
         assert here.startswith('/sys/devices/') and here.endswith('{dev}'), here\n\
         print(open('node_type').read().strip(), os.path.realpath('ports') == here + '/ports')\n\
         print(subprocess.check_output(['busybox', 'cat', 'node_type'], text=True).strip())\n\
         subprocess.check_call(['busybox', 'cat', 'ports/1/link_layer'], cwd=here)\n\
         fd = os.open('{CLASS}', os.O_PATH | os.O_DIRECTORY)\n\
         os.fchdir(fd)\n\
         assert os.getcwd() == '{CLASS}', os.getcwd()\n\
         print(os.listdir('.'))\n"
    );
    let out = Program::new("/usr/bin/python3").args(["-c", &code]).output();
    let wanted = format!("1: CA True\n1: CA\nEthernet\n['{dev}']\n");
    let mut lines: Vec<&str> = out.success().stdout.lines().collect();
    let mut expected: Vec<&str> = wanted.lines().collect();
    lines.sort_unstable();
    expected.sort_unstable();
    assert_eq!(lines, expected, "{out}");
}

#[test]
fn a_shell_changes_into_the_directories_by_the_preload_library() {
    let script = format!("cd {CLASS} && /bin/pwd -P && cd peerdma0/ports/1 && cat state");
    let out = Program::new("sh").args(["-c", &script]).env("PEERDMA_DOOR", "preload").output();
    assert_eq!(out.success().stdout, format!("{CLASS}\n4: ACTIVE\n"), "{out}");
}

#[test]
fn python_lists_and_opens() {
    needs!(Need::Program("python3"));
    let code = "import os\n\
                root = '/sys/class/infiniband'\n\
                for dev in os.listdir(root):\n\
                \x20   assert os.path.isdir(f'{root}/{dev}/ports/1')\n\
                \x20   with open(f'{root}/{dev}/ports/1/gids/0') as f:\n\
                \x20       print(len(f.read().strip()))\n";
    let out = Program::new("/usr/bin/python3").args(["-c", code]).output();
    assert_eq!(out.success().stdout.trim_end(), "39", "one device, a GID of eight groups\n{out}");
}

#[test]
fn a_static_binary_sees_the_same_tree() {
    needs!(Need::Program("busybox"));
    let dev = device();
    let out = Program::new("busybox").args(["ls", CLASS]).output();
    assert_eq!(out.success().stdout.trim_end(), dev);
    let by_libc = cat(&["cat"], &format!("{CLASS}/{dev}/node_guid"));
    let direct = cat(&["busybox", "cat"], &format!("{CLASS}/{dev}/node_guid"));
    assert_eq!(by_libc.stdout, direct.stdout);
}

#[test]
fn missing_files_are_still_missing() {
    let out = Program::new("cat").args([format!("{CLASS}/no_such_device/node_guid")]).output();
    out.failure().says("No such file or directory");
    Program::new("cat").args(["/sys/kernel/mm/transparent_hugepage/enabled"]).output();
    let out = Program::new("ls").args(["/sys/class/net"]).output();
    out.success().says("lo");
}

#[test]
fn writing_is_refused() {
    let dev = device();
    let out =
        Program::new("sh").args(["-c", &format!("echo x > {CLASS}/{dev}/node_guid")]).output();
    out.failure();
}

#[test]
fn the_character_device_is_a_name() {
    let path = "/dev/infiniband/uverbs0";
    for door in ["auto", "preload"] {
        let program = |name: &str| Program::new(name).env("PEERDMA_DOOR", door);
        let out = program("stat").args(["-c", "%F %t:%T %a", path]).output();
        assert_eq!(out.success().stdout.trim_end(), "character special file e7:c0 666", "{door}");
        let code = format!("import os; print(os.access('{path}', os.R_OK | os.W_OK))");
        let out = program("/usr/bin/python3").args(["-c", &code]).output();
        assert_eq!(out.success().stdout.trim_end(), "True", "{door}");
        program("cat").args([path]).output().failure().says("No such device or address");
    }
}

/// The modelled GPUs, in the order of DRM's cards: address, vendor, device ID, and whether there is
/// a render node.
fn cards(gpu: &str) -> Vec<String> {
    let script = "for card in /sys/class/drm/card[0-9]*; do \
        function=$(realpath $card/device); \
        render=$(ls $function/drm | grep render); \
        node=none; test -c /dev/dri/$render && node=$(cat /sys/class/drm/$render/dev); \
        echo $(basename $function) $(cat $function/vendor) $(basename $card) $(cat $card/dev) $node; done";
    let out = Program::new("sh").gpu(gpu).args(["-c", script]).output();
    let lines = out.success().stdout.lines();
    // The machine's own GPUs are in other domains.
    lines.filter(|line| line.starts_with("0001:")).map(str::to_owned).collect()
}

#[test]
fn gpus_are_cards_of_drm_in_the_order_of_their_addresses() {
    for (gpu, vendor, has_node) in [("nvidia", "0x10de", false), ("xe", "0x8086", true)] {
        let cards = cards(gpu);
        assert_eq!(cards.len(), 2, "{cards:?}");
        assert!(cards.is_sorted(), "by address and by number: {cards:?}");
        for line in &cards {
            let [_, is_of, name, dev, node] = line.split(' ').collect::<Vec<_>>()[..] else {
                panic!("{line}")
            };
            assert_eq!(is_of, vendor);
            let minor = name.strip_prefix("card").expect("a card");
            assert_eq!(dev, format!("226:{minor}"));
            let render = minor.parse::<u32>().expect("a number") + 128;
            assert_eq!(node, if has_node { format!("226:{render}") } else { "none".to_owned() });
        }
    }
}

/// A machine with two host bridges, a switch with ACS, GPUs of two drivers, and disks.
const MACHINE: &str = r#"
[pci]
domain = 4097
[[pci.host_bridge]]
name = "root0"
id = "8086:2020"
[[pci.host_bridge]]
name = "root1"
[[pci.switch]]
name = "switch0"
under = "root0"
acs = ["RR", "CR"]
[[pci.device]]
name = "far"
under = "root1"
[[gpu]]
name = "one"
preset = "xe"
vram = "1G"
bar = "256M"
[[gpu]]
name = "two"
preset = "amdgpu"
[[storage]]
name = "near"
cmb = "64M"
[[storage]]
name = "far"
"#;

/// A program on that machine, which has its GPUs if `gpus`.
fn on_the_machine(program: &str, gpus: bool, scratch: &Scratch) -> Program {
    let config = scratch.file("peerdma.toml");
    std::fs::write(&config, MACHINE).expect("a scratch directory is writable");
    let program = Program::new(program).env("PEERDMA_CONFIG", &config);
    if gpus { program.gpu("") } else { program }
}

/// Bridges by their buses, devices by their classes: as lspci finds them in the configuration
/// space.
#[test]
fn lspci_draws_the_modelled_tree() {
    needs!(Need::Program("lspci"));
    let scratch = Scratch::new();
    let lspci = |args: &[&str]| {
        let out = on_the_machine("lspci", true, &scratch).args(args).output();
        out.success();
        out
    };
    let tree = lspci(&["-tn", "-s", "1001::"]);
    let lines: Vec<_> = tree.stdout.lines().filter(|line| !line.trim().is_empty()).collect();
    // The NIC, two GPUs and a disk below the switch; the other disk below the other host bridge.
    let drawing = lines.join("\n");
    for bus in ["[1001:00]", "[1001:07]"] {
        assert!(drawing.contains(bus), "{bus}\n{tree}");
    }
    assert!(drawing.contains("[01-06]----00.0-[02-06]--+-00.0-[03]----00.0"), "{tree}");
    let all = lspci(&["-D", "-n", "-s", "1001::"]);
    let count = |class: &str| all.stdout.lines().filter(|line| line.contains(class)).count();
    let counts = ["0600:", "0604:", "0200:", "0380:", "0108:"].map(count);
    // One host bridge has a function of its own; ports: two of root, five of the switch.
    assert_eq!(counts, [1, 7, 1, 2, 2], "{all}");
    let words = lspci(&["-vvv", "-s", "1001::"]);
    for text in [
        "Express (v2) Root Port",
        "Express (v2) Upstream Port",
        "Express (v2) Downstream Port",
        "Express (v2) Endpoint",
        "Speed 32GT/s, Width x16",
        "Access Control Services",
        "ReqRedir+ CmpltRedir+",
        "Non-Volatile memory controller",
        "[size=256M]",
        "[size=64M]",
        "Physical Resizable BAR",
        "BAR 0: current size: 256MB, supported: 256MB 512MB 1GB",
    ] {
        words.says(text);
    }
    // Four downstream ports.
    assert_eq!(words.stdout.matches("ACSCtl:").count(), 4, "{words}");
}

/// hwloc finds bridges and devices, with the names of the NIC.
#[test]
fn lstopo_finds_the_nic_and_the_disks_on_the_bus() {
    needs!(Need::Program("lstopo-no-graphics"));
    let scratch = Scratch::new();
    let lstopo = on_the_machine("lstopo-no-graphics", true, &scratch);
    let out = lstopo.args(["--of", "console", "--whole-io", "-v"]).output();
    let shown = out.success().stdout.clone();
    let device = shown.lines().filter(|line| line.contains("busid=1001:"));
    let classes: Vec<_> = device.map(str::trim).collect();
    let count = |class: &str| classes.iter().filter(|line| line.contains(class)).count();
    assert_eq!(["0200", "0380", "0108"].map(count), [1, 2, 2], "{out}");
    out.says("peerdma0");
}

/// What NCCL and UCX do: from a NIC's and a GPU's function upwards, by names and links alone.
#[test]
fn a_walk_from_two_devices_meets_at_their_switch() {
    let script = "nic=$(realpath /sys/class/infiniband/*/device); \
        for card in /sys/class/drm/card*; do \
        case $(realpath $card/device) in *1001:*) gpu=$(realpath $card/device);; esac; done; \
        walk() { while test -e $1/class; do basename $1; set -- $(dirname $1); done; }; \
        walk $nic > $1/nic; walk $gpu > $1/gpu; grep -x -f $1/nic $1/gpu; \
        for d in $nic $gpu; do \
        cat $d/class $d/numa_node $d/local_cpus $d/max_link_speed $d/max_link_width; done";
    let scratch = Scratch::new();
    let directory = scratch.file("");
    let directory = directory.to_str().expect("text");
    let out = on_the_machine("sh", true, &scratch).args(["-c", script, "sh", directory]).output();
    let lines: Vec<_> = out.success().stdout.lines().collect();
    // The switch's upstream port, and the root port.
    assert_eq!(lines[..2], ["1001:01:00.0", "1001:00:01.0"], "{out}");
    assert_eq!((lines[2], lines[7]), ("0x020000", "0x038000"), "{out}");
    for at in [5, 10] {
        assert_eq!((lines[at], lines[at + 1]), ("32.0 GT/s PCIe", "16"), "{out}");
    }
}

/// `peerdma topo` finds the same paths in the shown tree as in the model: by buses, ACS and BARs.
#[test]
fn the_shown_tree_has_the_paths_of_the_model() {
    let scratch = Scratch::new();
    let code = "import json, subprocess, sys\n\
                def paths(*args):\n\
                \x20   out = subprocess.run([sys.argv[1], 'topo', '--json', *args], capture_output=True)\n\
                \x20   topo = json.loads(out.stdout)\n\
                \x20   bdf = {d['label']: d['bdf'] for d in topo['devices'] if d['bdf'].startswith('1001:')}\n\
                \x20   return sorted((bdf[p['provider']], bdf[p['client']], p['distance'], p['redirected_by'])\n\
                \x20       for p in topo['peer_to_peer'] if p['provider'] in bdf and p['client'] in bdf)\n\
                model, shown = paths(), paths('--sysfs')\n\
                assert len(model) == 20 and model == shown, (model, shown)\n\
                print(sum(bool(p[3]) for p in shown), 'redirected')\n";
    let peerdma = Artefacts::find().peerdma();
    let python = on_the_machine("/usr/bin/python3", true, &scratch);
    let out = python.args(["-c", code, peerdma.to_str().expect("text")]).output();
    // Each pair of the NIC, the GPUs and the disk below the switch.
    out.success().says("12 redirected");
}

/// A configuration that describes the bus shows it to programs that have no GPU.
#[test]
fn the_bus_is_shown_without_gpus_too() {
    let scratch = Scratch::new();
    let script = "cat /sys/bus/pci/devices/1001:*/class | sort | uniq -c";
    let out = on_the_machine("sh", false, &scratch).args(["-c", script]).output();
    out.success().says("2 0x010802").says("1 0x020000").says("7 0x060400");
}

/// The sizes that a GPU's BAR can have are read as the kernel's; to choose another is the
/// configuration's affair.
#[test]
fn sizes_of_a_bar_are_a_bit_mask_that_cannot_be_written() {
    let scratch = Scratch::new();
    let script = "cd /; f=$(ls /sys/bus/pci/devices/1001:*/resource0_resize | head -1); \
        cat $f; cat ${f%_resize} 2>/dev/null; echo 10 > $f && echo written";
    let out = on_the_machine("sh", true, &scratch).args(["-c", script]).output();
    assert_eq!(out.stdout.trim(), "0000000000000700", "{out}");
}
