//! peerdma's storage: requests by io_uring.

use crate::finding::{Finding, bad, good, unknown};
use crate::host::{Host, Setting};

/// What happens otherwise.
const CALLS: &str = "pread and pwrite are used then, one request at a time";

pub(super) fn findings(host: &Host) -> Vec<Finding> {
    let otherwise = |remedy: &str| format!("{remedy}; {CALLS}");
    let mut findings = vec![match host.kernel.option("IO_URING") {
        Setting::On => good("CONFIG_IO_URING"),
        Setting::Off => bad("the kernel lacks CONFIG_IO_URING", CALLS),
        Setting::Unknown => unknown(
            "no file says whether the kernel has CONFIG_IO_URING",
            &otherwise("zgrep it in /proc/config.gz"),
        ),
    }];
    match host.process.io_uring_disabled {
        None | Some(0) => {}
        Some(1) => findings.push(unknown(
            "kernel.io_uring_disabled is 1: only CAP_SYS_ADMIN and a group have it",
            &otherwise("the group is kernel.io_uring_group"),
        )),
        Some(_) => findings.push(bad(
            "kernel.io_uring_disabled is 2: nobody has it",
            &otherwise("sysctl kernel.io_uring_disabled=0"),
        )),
    }
    if host.process.is_filtered != Some(false) {
        findings.push(unknown(
            "a seccomp filter may be on, and those of container engines refuse io_uring",
            &otherwise("PEERDMA_LOG=warn reports a refusal"),
        ));
    }
    findings
}
