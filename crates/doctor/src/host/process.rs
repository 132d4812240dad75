//! What a process of this user may do.

use crate::fact::{Fact, fact, row};
use crate::files::Files;

/// A capability of a process.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Capability {
    /// Locking memory without limit.
    IpcLock = 14,
    /// Exceeding the limits on buffers of sockets.
    NetAdmin = 12,
    /// Reading the memory of any process.
    SysPtrace = 19,
}

/// This process, which stands for the user's other processes.
#[derive(Debug)]
pub(crate) struct Process {
    capabilities: Option<u64>,
    /// Whether its user namespace is the first one, where the kernel looks for some capabilities.
    pub(crate) is_in_first_namespace: Option<bool>,
    max_namespaces: Option<u64>,
    /// `Some(true)` if a filter decides on its system calls.
    pub(crate) is_filtered: Option<bool>,
    /// Yama's `ptrace_scope`; `None` without Yama.
    pub(crate) ptrace_scope: Option<u64>,
    /// `vm.memfd_noexec`; `None` in kernels that lack it.
    pub(crate) memfd_noexec: Option<u64>,
    /// `kernel.io_uring_disabled`; `None` in kernels that lack it.
    pub(crate) io_uring_disabled: Option<u64>,
    /// `vm.unprivileged_userfaultfd`; `None` in kernels that lack it.
    pub(crate) unprivileged_userfaultfd: Option<u64>,
    container: Option<&'static str>,
}

impl Process {
    pub(super) fn read(files: &Files) -> Self {
        let status = files.text("/proc/self/status");
        let value = |key: &str| {
            let lines = status.as_deref()?.lines();
            Some(lines.filter_map(|line| line.split_once(':')).find(|(k, _)| *k == key)?.1.trim())
        };
        let map = files.text("/proc/self/uid_map");
        let whole = |map: String| map.split_whitespace().eq(["0", "0", "4294967295"]);
        let restricted = "/proc/sys/kernel/unprivileged_userns_clone";
        let max_namespaces = match files.number(restricted) {
            Some(0) => Some(0),
            _ => files.number("/proc/sys/user/max_user_namespaces"),
        };
        let marks = [
            ("/.dockerenv", "Docker"),
            ("/run/.containerenv", "Podman"),
            ("/var/run/secrets/kubernetes.io", "Kubernetes"),
        ];
        Self {
            capabilities: value("CapEff").and_then(|bits| u64::from_str_radix(bits, 16).ok()),
            is_in_first_namespace: map.map(whole),
            max_namespaces,
            is_filtered: value("Seccomp").map(|mode| mode != "0"),
            ptrace_scope: files.number("/proc/sys/kernel/yama/ptrace_scope"),
            io_uring_disabled: files.number("/proc/sys/kernel/io_uring_disabled"),
            unprivileged_userfaultfd: files.number("/proc/sys/vm/unprivileged_userfaultfd"),
            memfd_noexec: files.number("/proc/sys/vm/memfd_noexec"),
            container: marks.into_iter().find(|(path, _)| files.exists(path)).map(|(_, name)| name),
        }
    }

    pub(crate) fn has(&self, capability: Capability) -> bool {
        // CAST: a bit number.
        self.capabilities.is_some_and(|bits| bits & (1 << capability as u32) != 0)
    }

    pub(super) fn facts(&self) -> Vec<Fact> {
        let has = |capability, name| self.has(capability).then_some(name);
        let capabilities: Vec<_> = [
            has(Capability::IpcLock, "CAP_IPC_LOCK"),
            has(Capability::NetAdmin, "CAP_NET_ADMIN"),
            has(Capability::SysPtrace, "CAP_SYS_PTRACE"),
        ]
        .into_iter()
        .flatten()
        .collect();
        let namespace = self.is_in_first_namespace.map(|first| {
            let more = match self.max_namespaces {
                Some(0) => ", new ones are not allowed",
                _ => "",
            };
            format!("{}{more}", if first { "the first" } else { "not the first" })
        });
        let filter = self.is_filtered.map(|on| if on { "a filter is on" } else { "off" });
        let scope = self.ptrace_scope.map_or_else(|| "no Yama".to_owned(), |n| n.to_string());
        vec![
            fact("container", "container", Some(self.container.unwrap_or("no sign of one").into())),
            fact(
                "capabilities",
                "capabilities of use",
                self.capabilities.map(|_| row(&capabilities)),
            ),
            fact("user_namespace", "user namespace", namespace),
            fact("seccomp", "seccomp", filter.map(str::to_owned)),
            fact("ptrace_scope", "Yama ptrace_scope", Some(scope)),
        ]
    }
}
