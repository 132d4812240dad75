//! peerdma's pages that migrate to a device and back: userfaultfd.

use crate::finding::{Finding, bad, good, limit, unknown};
use crate::host::{Capability, Host, Setting};

pub(super) fn findings(host: &Host) -> Vec<Finding> {
    let sysctl = host.process.unprivileged_userfaultfd;
    // The sysctl is there if the call is.
    let mut findings = vec![match (sysctl, host.kernel.option("USERFAULTFD")) {
        (Some(_), _) | (None, Setting::On) => good("CONFIG_USERFAULTFD"),
        (None, Setting::Off) => {
            bad("the kernel lacks CONFIG_USERFAULTFD", "a kernel of a distribution has it")
        }
        (None, Setting::Unknown) => unknown(
            "no file says whether the kernel has CONFIG_USERFAULTFD",
            "zgrep it in /proc/config.gz",
        ),
    }];
    if sysctl == Some(0) && !host.process.has(Capability::SysPtrace) {
        findings.push(limit(
            "vm.unprivileged_userfaultfd is 0: system calls that touch a page in a device fail",
            "sysctl vm.unprivileged_userfaultfd=1, or CAP_SYS_PTRACE",
        ));
    }
    if host.process.is_filtered != Some(false) {
        findings.push(unknown(
            "a seccomp filter may be on, and those of container engines refuse userfaultfd",
            "a profile that permits it, for example --security-opt seccomp=unconfined",
        ));
    }
    findings
}
