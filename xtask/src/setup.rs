//! `cargo xtask setup`: the Debian packages that the tests use.

use std::path::Path;

use crate::sh::{Outcome, check, exists, tool};

/// A package, and why it is needed.
const PACKAGES: [(&str, &str); 45] = [
    ("binutils", "readelf and nm, for the ABI checks"),
    ("busybox-static", "a static binary that reads /sys"),
    ("coreutils", "timeout, env, stat"),
    ("cpio", "makes the initramfs of a virtual machine"),
    ("curl", "an HTTP client that knows nothing about RDMA"),
    ("debootstrap", "a clean Debian"),
    ("ethtool", "switching a veth's offloads off"),
    ("fio", "reads and writes of many sizes at once, each verified"),
    ("g++", "the runtime of the fuzz targets"),
    ("gcc", "our small C programs"),
    ("gcc-aarch64-linux-gnu", "programs for arm64"),
    ("hwloc-nox", "lstopo"),
    ("ibverbs-providers", "libmlx5 and libefa, which must load and find nothing"),
    ("ibverbs-utils", "ibv_devinfo, ibv_rc_pingpong and others"),
    ("infiniband-diags", "ibstat, ibstatus, perfquery"),
    ("iperf3", "the TCP stream beside a bandwidth"),
    ("iproute2", "network namespaces and veth pairs"),
    ("kmod", "finds the dependencies of a kernel module"),
    ("libc6-dev", "C headers"),
    ("libc6-dev-arm64-cross", "C headers and libraries for arm64"),
    ("libdrm-dev", "<libdrm/drm.h>"),
    ("libfabric-bin", "fi_info and fi_pingpong"),
    ("libhsa-runtime-dev", "<hsa/hsa.h>, and the library that HSA programs link with"),
    ("libibverbs-dev", "<infiniband/verbs.h>"),
    ("libopenmpi-dev", "mpicc"),
    ("librdmacm-dev", "<rdma/rdma_cma.h>"),
    ("openmpi-bin", "mpirun"),
    ("libze-dev", "<level_zero/ze_api.h> and the loader of Level Zero"),
    ("netcat-openbsd", "the smallest program that uses sockets"),
    ("nvme-cli", "controls the kernel's NVMe-oF host"),
    ("pciutils", "lspci"),
    ("perftest", "ib_write_bw and others"),
    ("prometheus-node-exporter", "a monitor that reads counters in /sys"),
    ("python3", "multiprocessing"),
    ("python3-pip", "wheels, such as cuda-python's"),
    ("python3-pyverbs", "verbs from Python"),
    ("qemu-system-x86", "a virtual machine with a kernel of its own"),
    ("rdma-core", "the system's own RDMA stack, to compare with"),
    ("rdmacm-utils", "rping, cmtime and others"),
    ("tshark", "a second opinion on every packet"),
    ("ucx-utils", "ucx_perftest and ucx_info"),
    ("libcap2-bin", "setcap"),
    ("util-linux", "unshare, nsenter, setpriv"),
    ("xz-utils", "modules of a Debian kernel"),
    ("zstd", "a Debian kernel"),
];

/// Installs what is missing; quick when nothing is.
pub(crate) fn run(only_check: bool) -> Outcome {
    install("setup", &PACKAGES, only_check)
}

/// Installs the missing packages of a list.
pub(crate) fn install(who: &str, packages: &[(&str, &str)], only_check: bool) -> Outcome {
    if !exists("dpkg-query") {
        let names: Vec<_> = packages.iter().map(|(name, _)| *name).collect();
        return Err(format!(
            "this is no Debian; install what provides the same as: {}",
            names.join(" ")
        ));
    }
    let missing: Vec<_> = packages.iter().filter(|(name, _)| !installed(name)).collect();
    if missing.is_empty() {
        println!("{who}: all {} packages are installed", packages.len());
        return Ok(());
    }
    for (name, why) in &missing {
        println!("{who}: missing {name}: {why}");
    }
    if only_check {
        return Err(format!("{} packages are missing", missing.len()));
    }
    let names: Vec<_> = missing.iter().map(|(name, _)| *name).collect();
    if apt(&["install", "--yes", "--no-install-recommends"], &names).is_err() {
        // The package lists are older than the mirror.
        apt(&["update"], &[])?;
        apt(&["install", "--yes", "--no-install-recommends"], &names)?;
    }
    Ok(())
}

fn apt(verb: &[&str], names: &[&str]) -> Outcome {
    let root = Path::new("/proc/self").metadata().is_ok_and(|me| {
        use std::os::unix::fs::MetadataExt;
        me.uid() == 0
    });
    // tshark's package asks whether others may capture: the answer "no" is its default.
    let settings = ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "--quiet"];
    let mut command = if root { tool(settings[0]) } else { tool("sudo") };
    command.args(&settings[usize::from(root)..]).args(verb).args(names);
    check(&mut command)
}

fn installed(package: &str) -> bool {
    tool("dpkg-query")
        .args(["-W", "-f", "${Status}", package])
        .stderr(std::process::Stdio::null())
        .output()
        .is_ok_and(|out| out.stdout == b"install ok installed")
}
