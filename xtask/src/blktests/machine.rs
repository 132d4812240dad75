//! The virtual machine (`interop/vm`): a Debian kernel with the programs of this machine's Debian,
//! which `interop/vm/guest/blktests.sh` finds by 9p.

use std::fs;
use std::path::{Path, PathBuf};

use crate::sh::{Outcome, check, root, target_dir, tool};

/// The length of the disk that the target serves, small enough for an emulated processor.
pub(crate) const SIZE: &str = "64M";
/// That of tests which ask for more.
pub(crate) const LARGE: &str = "350M";
const ROOMY: [&str; 1] = ["nvme/012"];
/// Seconds for which a test that is limited by time reads and writes.
pub(crate) const TIMEOUT: &str = "10";
/// Of the machine: the disk is in it, in a tmpfs, and may be as long as `LARGE`.
const MEMORY: &str = "1536M";
/// Seconds after which it is ended.
const LIMIT: &str = "2400";

const MODULES: [&str; 10] = [
    "virtio_pci",
    "9pnet_virtio",
    "9p",
    "overlay",
    "veth",
    "rdma_rxe",
    "nvme-rdma",
    "nvmet-rdma",
    "loop",
    "configfs",
];

/// Makes sure that kernel and QEMU are there.
pub(crate) fn fetch() -> Outcome {
    check(tool("interop/vm/fetch.sh").arg(directory()))
}

/// Boots it and runs these tests, or without any the whole group but for those left out. Returns
/// what it printed.
pub(crate) fn run(blktests: &Path, tests: &[String], left_out: &[&str]) -> Outcome<String> {
    let kernel = directory().join("kernel");
    let modules = fs::read_dir(kernel.join("lib/modules"));
    let version = modules.ok().and_then(|mut entries| Some(entries.next()?.ok()?.path()));
    let version = version.ok_or_else(|| format!("{} has no modules", kernel.display()))?;
    let ours = target_dir().join("blktests");
    let programs = ours.join("programs");
    let copied = fs::create_dir_all(&programs)
        .and_then(|()| fs::copy(target_dir().join("release/nvmet"), programs.join("nvmet")));
    copied.map_err(|err| format!("{}: {err}", programs.display()))?;

    let initrd = ours.join("initrd");
    let mut mkinitrd = tool("interop/vm/mkinitrd.sh");
    mkinitrd.arg(&kernel).arg(&initrd);
    mkinitrd.args(MODULES.iter().flat_map(|module| ["-m", module]));
    for (file, to) in
        [("interop/vm/guest/blktests.sh", "/test.sh"), ("interop/blktests/control", "/control")]
    {
        mkinitrd.arg("-f").arg(format!("{}:{to}", root().join(file).display()));
    }
    check(&mut mkinitrd)?;

    let variables = [
        format!("size={SIZE} large={LARGE} timeout={TIMEOUT}"),
        format!("roomy={} without={}", ROOMY.join(","), left_out.join(",")),
        format!("tests={}", tests.join(",")),
    ];
    let mut machine = tool("interop/vm/run.sh");
    machine.arg(directory()).arg(&initrd).args(["-t", LIMIT, "-a", &variables.join(" "), "--"]);
    machine.args(["-m", MEMORY]);
    for (share, directory) in [
        ("usr", Path::new("/usr")),
        ("alternatives", Path::new("/etc/alternatives")),
        ("modules", &version),
        ("blktests", blktests),
        ("programs", &programs),
    ] {
        let path = directory.display();
        machine
            .arg("-virtfs")
            .arg(format!("local,path={path},mount_tag={share},security_model=none,readonly=on"));
    }
    println!("the machine runs blktests: this takes a quarter of an hour");
    let out = machine.output().map_err(|err| format!("interop/vm/run.sh: {err}"))?;
    let said = String::from_utf8_lossy(&out.stdout).into_owned();
    println!("{said}{}", String::from_utf8_lossy(&out.stderr));
    match out.status.code() {
        // A machine that did not come to its end has results of the tests that ran.
        Some(0 | 201 | 202) => Ok(said),
        _ => Err(format!("interop/vm/run.sh: {}", out.status)),
    }
}

fn directory() -> PathBuf {
    target_dir().join("vm")
}
