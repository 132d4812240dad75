//! peerdma's direct path: `process_vm_readv` and `process_vm_writev` between processes of a user.

use crate::finding::{Finding, bad, good, unknown};
use crate::host::{Capability, Host, Setting};

/// What happens otherwise.
const RING: &str = "peerdma then uses shared memory, which works but is slower";

pub(super) fn findings(host: &Host) -> Vec<Finding> {
    let otherwise = |remedy: &str| format!("{remedy}; {RING}");
    let mut findings = vec![match host.kernel.option("CROSS_MEMORY_ATTACH") {
        Setting::On => good("CONFIG_CROSS_MEMORY_ATTACH"),
        Setting::Off => bad("the kernel lacks CONFIG_CROSS_MEMORY_ATTACH", RING),
        Setting::Unknown => unknown(
            "no file says whether the kernel has CONFIG_CROSS_MEMORY_ATTACH",
            &otherwise("zgrep it in /proc/config.gz"),
        ),
    }];
    let may_trace = host.process.has(Capability::SysPtrace);
    let sysctl = otherwise("sysctl kernel.yama.ptrace_scope=0");
    findings.push(match host.process.ptrace_scope {
        None => good("no Yama: processes of one user reach each other"),
        Some(0) => good("Yama's ptrace_scope is 0"),
        Some(scope @ (1 | 2)) if may_trace => {
            good(format!("Yama's ptrace_scope is {scope}, but this process has CAP_SYS_PTRACE"))
        }
        Some(1) => bad("Yama's ptrace_scope is 1: only ancestors reach a process", &sysctl),
        Some(2) => bad("Yama's ptrace_scope is 2: only CAP_SYS_PTRACE reaches a process", &sysctl),
        Some(scope) => bad(
            format!("Yama's ptrace_scope is {scope}: no process reaches another until a reboot"),
            &otherwise("another value of kernel.yama.ptrace_scope at boot"),
        ),
    });
    findings.push(match host.process.is_filtered {
        Some(false) => good("no seccomp filter"),
        Some(true) => unknown(
            "a seccomp filter is on; no file says whether it lets process_vm_readv pass",
            &otherwise("PEERDMA_LOG=debug logs the path that peerdma takes"),
        ),
        None => unknown("/proc/self/status does not mention seccomp", RING),
    });
    findings
}
