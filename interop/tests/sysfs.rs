//! `/sys/class/infiniband` for programs that do not use libibverbs: by libc, by system calls,
//! statically linked.

use interop::need::Need;
use interop::{Output, Program, needs};

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
