//! The limit on locked memory.

use crate::fact::size;
use crate::finding::{Finding, bad, good, limit, unknown};
use crate::host::{Capability, Host, Memlock};

/// Whether regions can be pinned (`docs/semantics.md` 2.7).
pub(super) fn finding(host: &Host) -> Finding {
    const ENOUGH: u64 = 1 << 30;
    const REMEDY: &str = "ulimit -l unlimited; memlock in limits.conf, LimitMEMLOCK=infinity of \
                          systemd, docker run --ulimit memlock=-1";
    let process = &host.process;
    if process.has(Capability::IpcLock) && process.is_in_first_namespace == Some(true) {
        return good("CAP_IPC_LOCK: memory is locked without limit");
    }
    match host.limits.memlock {
        Memlock::Unlimited => good("RLIMIT_MEMLOCK is unlimited"),
        Memlock::Bytes(0) => {
            bad("RLIMIT_MEMLOCK is 0: no region can be registered (EPERM)", REMEDY)
        }
        Memlock::Bytes(bytes) if bytes < ENOUGH => limit(
            format!("RLIMIT_MEMLOCK is {}: more cannot be registered (ENOMEM)", size(bytes)),
            REMEDY,
        ),
        Memlock::Bytes(bytes) => good(format!("RLIMIT_MEMLOCK is {}", size(bytes))),
        Memlock::Unknown => unknown("RLIMIT_MEMLOCK is not in /proc/self/limits", REMEDY),
    }
}
