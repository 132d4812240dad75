//! What `peerdma doctor` says of hosts.

mod hosts;

use std::path::Path;

use doctor::{Kind, Report, Verdict, examine};
use hosts::Root;

const SERVER: &str = include_str!("hosts/server.txt");
const CONTAINER: &str = include_str!("hosts/container.txt");

/// Compares with a file beside the host's; `PEERDMA_BLESS=1` writes it.
fn assert_shown(name: &str, host: &str, expected: &str) {
    let root = Root::new(name, &[host]);
    let shown = examine(root.path()).expect("a host").to_string();
    let shown = shown.replace(&root.path().display().to_string(), "ROOT");
    if std::env::var_os("PEERDMA_BLESS").is_some() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/hosts");
        std::fs::write(path.join(format!("{name}.shown")), shown).expect("writable");
        return;
    }
    assert_eq!(shown, expected, "\n{shown}");
}

#[test]
fn on_a_server_that_is_set_up_everything_works() {
    assert_shown("server", SERVER, include_str!("hosts/server.shown"));
}

#[test]
fn in_a_container_each_refusal_has_its_remedy() {
    assert_shown("container", CONTAINER, include_str!("hosts/container.shown"));
}

/// The server with these lines in addition.
fn server_with(name: &str, lines: &str) -> Report {
    let root = Root::new(name, &[SERVER, lines]);
    examine(root.path()).expect("a host")
}

/// The verdict on a use.
fn verdict(report: &Report, key: &str) -> Verdict {
    report.uses.iter().find(|each| each.key == key).expect("a use").verdict()
}

/// The reasons of this kind for a use.
fn reasons(report: &Report, key: &str, kind: Kind) -> Vec<String> {
    let each = report.uses.iter().find(|each| each.key == key).expect("a use");
    let findings = each.findings.iter().filter(|finding| finding.kind == kind);
    findings.map(|finding| finding.reason.clone()).collect()
}

#[test]
fn one_missing_thing_is_one_reason() {
    for (name, lines, key, reason) in [
        (
            "port",
            "/sys/class/infiniband/mlx5_0/ports/1/state = 1: DOWN",
            "rdma",
            "no port is active",
        ),
        ("node", "- /dev/infiniband/uverbs0", "rdma", "/dev/infiniband has no uverbs node of them"),
        (
            "memlock",
            "/proc/self/limits = Max locked memory         0      0      bytes",
            "rdma",
            "RLIMIT_MEMLOCK is 0: no region can be registered (EPERM)",
        ),
        (
            "rdma-cgroup",
            "/sys/fs/cgroup/user.slice/rdma.max = mlx5_0 hca_handle=0 hca_object=max",
            "rdma",
            "the control group allows none: mlx5_0 hca_handle=0 hca_object=max (EAGAIN)",
        ),
        (
            "proprietary",
            "/proc/driver/nvidia/version = NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.54",
            "gpudirect_dma_buf",
            "nvidia's proprietary kernel modules export no dma-bufs",
        ),
        (
            "option",
            "/boot/config-6.8.0-45-generic = # CONFIG_PCI_P2PDMA is not set|CONFIG_DMA_SHARED_BUFFER=y",
            "gpudirect_dma_buf",
            "the kernel lacks CONFIG_PCI_P2PDMA",
        ),
        (
            "iommu",
            "/sys/bus/pci/devices/0000:3d:00.0/iommu_group/type = DMA-FQ",
            "gpudirect_peermem",
            "the IOMMU translates for GPU0: its addresses are not physical",
        ),
        (
            "peermem",
            "- /sys/module/nvidia_peermem\n- /sys/kernel/mm/memory_peers/nv_mem",
            "gpudirect_peermem",
            "no module of a GPU's vendor is a client of ib_core",
        ),
        (
            "pool",
            "- /sys/bus/pci/devices/0000:3a:05.0/p2pmem",
            "p2pdma",
            "no device has a pool (p2pmem/ in sysfs)",
        ),
        (
            "yama",
            "/proc/sys/kernel/yama/ptrace_scope = 2",
            "peerdma_direct",
            "Yama's ptrace_scope is 2: only CAP_SYS_PTRACE reaches a process",
        ),
        (
            "noexec",
            "/proc/sys/vm/memfd_noexec = 2",
            "peerdma_shm",
            "vm.memfd_noexec is 2: memory files that do not ask for MFD_NOEXEC_SEAL are refused",
        ),
        (
            "loopback",
            "- /sys/class/net/ens3f0",
            "peerdma_udp",
            "no network interface but loopback, which leads to no other host",
        ),
        (
            "yama-parent",
            "/proc/sys/kernel/yama/ptrace_scope = 2",
            "peerdma_sysfs",
            "Yama's ptrace_scope is 2: a parent may not read what it starts",
        ),
        (
            "uring",
            "/proc/sys/kernel/io_uring_disabled = 2",
            "peerdma_io_uring",
            "kernel.io_uring_disabled is 2: nobody has it",
        ),
        (
            "uffd",
            "/boot/config-6.8.0-45-generic = CONFIG_PCI_P2PDMA=y",
            "peerdma_migration",
            "the kernel lacks CONFIG_USERFAULTFD",
        ),
    ] {
        let report = server_with(name, lines);
        assert_eq!(verdict(&report, key), Verdict::DoesNotWork, "{name}: {report}");
        assert_eq!(reasons(&report, key, Kind::Bad), [reason], "{name}: {report}");
    }
}

#[test]
fn a_capability_outweighs_a_limit() {
    let may_trace = "/proc/self/status = CapEff:	0000000000080000|Seccomp:	0";
    let report =
        server_with("ptrace", &format!("/proc/sys/kernel/yama/ptrace_scope = 2\n{may_trace}"));
    assert_eq!(verdict(&report, "peerdma_direct"), Verdict::Works);
    let limited = "/proc/self/limits = Max locked memory         65536      65536      bytes\n\
                   /proc/self/status = CapEff:	0000000000004000|Seccomp:	0";
    let report = server_with("lock", limited);
    assert!(reasons(&report, "rdma", Kind::Limit).is_empty());
    // The kernel looks for it in the first user namespace alone.
    let report = server_with("lock-ns", &format!("{limited}\n/proc/self/uid_map = 0 1000 1"));
    let limits = reasons(&report, "rdma", Kind::Limit);
    assert_eq!(limits, ["RLIMIT_MEMLOCK is 64 KiB: more cannot be registered (ENOMEM)"]);
}

#[test]
fn what_no_file_says_is_unknown() {
    let report = server_with("config", "- /boot/config-6.8.0-45-generic\n/proc/config.gz = x");
    assert_eq!(verdict(&report, "gpudirect_dma_buf"), Verdict::Unknown);
    assert_eq!(verdict(&report, "peerdma_direct"), Verdict::Unknown);
    // A pool shows that the kernel has P2PDMA.
    assert_eq!(verdict(&report, "p2pdma"), Verdict::Works);
    let symbols =
        "ffff T pci_p2pdma_distance_many|ffff T dma_buf_export|ffff W __x64_sys_process_vm_readv";
    let report = server_with(
        "symbols",
        &format!("- /boot/config-6.8.0-45-generic\n/proc/kallsyms = {symbols}"),
    );
    assert_eq!(verdict(&report, "gpudirect_dma_buf"), Verdict::Works);
    assert_eq!(verdict(&report, "peerdma_direct"), Verdict::DoesNotWork);
}

#[test]
fn limits_of_a_device_are_named_with_it() {
    let lines = "/sys/fs/cgroup/dmem.max = drm/0000:3d:00.0/vram0 1048576|drm/0000:3d:00.0/x max\n\
                 /sys/bus/pci/devices/0000:3d:00.0/mem_info_vram_total = 85899345920";
    let report = server_with("limits", lines);
    assert_eq!(verdict(&report, "gpudirect_dma_buf"), Verdict::Works);
    assert_eq!(
        reasons(&report, "gpudirect_dma_buf", Kind::Limit),
        [
            "GPU0 has a BAR of 64 GiB for 80 GiB",
            "the control group has a limit: drm/0000:3d:00.0/vram0 1048576"
        ]
    );
}

#[test]
fn without_a_kernel_version_there_is_nothing_to_examine() {
    let error = examine(Path::new("/nonexistent")).unwrap_err().to_string();
    assert_eq!(
        error,
        "/nonexistent/proc/sys/kernel/osrelease: No such file or directory (os error 2): this is \
         not the root directory of a running Linux"
    );
}
