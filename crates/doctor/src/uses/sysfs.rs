//! peerdma's `/sys`: `peerdma run` answers what a program reads there, by seccomp user
//! notification.

use crate::finding::{Finding, bad, good, unknown};
use crate::host::{Capability, Host};

/// What happens otherwise.
const PRELOAD: &str = "a preload library shows /sys then, which static programs do not see";

pub(super) fn findings(host: &Host) -> Vec<Finding> {
    let otherwise = |remedy: &str| format!("{remedy}; {PRELOAD}");
    let mut findings = vec![match host.kernel.is_at_least(5, 9) {
        true => good(format!("kernel {} has seccomp user notification", host.kernel.release)),
        false => bad("the kernel's seccomp has no user notification", &otherwise("5.9 or newer")),
    }];
    findings.push(match host.process.ptrace_scope {
        None => good("no Yama: a parent reads the memory of what it starts"),
        Some(scope @ (0 | 1)) => good(format!("Yama's ptrace_scope is {scope}")),
        Some(scope) if host.process.has(Capability::SysPtrace) && scope == 2 => {
            good("Yama's ptrace_scope is 2, but this process has CAP_SYS_PTRACE")
        }
        Some(scope) => bad(
            format!("Yama's ptrace_scope is {scope}: a parent may not read what it starts"),
            &otherwise("sysctl kernel.yama.ptrace_scope=1"),
        ),
    });
    findings.push(match host.process.is_filtered {
        Some(false) => good("no seccomp filter"),
        Some(true) => unknown(
            "a seccomp filter is on; no file says whether it lets seccomp pass, or has a listener",
            &otherwise("PEERDMA_LOG=warn reports a refusal"),
        ),
        None => unknown("/proc/self/status does not mention seccomp", PRELOAD),
    });
    findings
}
