//! Limits: of the process, and of its control groups.

use crate::fact::{Fact, fact, size};
use crate::files::Files;

/// Limits on what a process may have. `None`: no limit is set.
#[derive(Debug)]
pub(crate) struct Limits {
    pub(crate) memlock: Memlock,
    pub(crate) memory: Option<u64>,
    pub(crate) pids: Option<u64>,
    /// Lines of `rdma.max` that set a limit: `mlx5_0 hca_handle=2 hca_object=2000`.
    pub(crate) rdma: Vec<String>,
    /// Lines of `dmem.max` that set a limit: `drm/0000:03:00.0/vram0 1073741824`.
    pub(crate) dmem: Vec<String>,
    /// Bytes that `/dev/shm` holds.
    pub(crate) shm: Option<u64>,
}

/// RLIMIT_MEMLOCK, the soft limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Memlock {
    Unlimited,
    Bytes(u64),
    Unknown,
}

impl Limits {
    pub(super) fn read(files: &Files) -> Self {
        let groups = files.groups();
        let smallest = |controller, names: &[&str]| {
            let files = names.iter().flat_map(|name| groups.files(controller, name));
            // Version 1 writes a number beyond all memory where version 2 writes "max".
            files.filter_map(|file| file.text.parse().ok()).filter(|n: &u64| *n < 1 << 60).min()
        };
        let lines = |controller, name| {
            let files = groups.files(controller, name);
            let lines = files.iter().flat_map(|file| file.text.lines());
            lines
                .filter(|line| line.contains(|c: char| c.is_ascii_digit()))
                .filter(|line| line.split_whitespace().skip(1).any(|limit| !limit.ends_with("max")))
                .map(str::to_owned)
                .collect()
        };
        Self {
            memlock: memlock(&files.text("/proc/self/limits").unwrap_or_default()),
            memory: smallest("memory", &["memory.max", "memory.limit_in_bytes"]),
            pids: smallest("pids", &["pids.max"]),
            rdma: lines("rdma", "rdma.max"),
            dmem: lines("dmem", "dmem.max"),
            shm: shm(files),
        }
    }

    pub(super) fn facts(&self) -> Vec<Fact> {
        let memlock = match self.memlock {
            Memlock::Unlimited => Some("unlimited".to_owned()),
            Memlock::Bytes(bytes) => Some(size(bytes)),
            Memlock::Unknown => None,
        };
        let none = || Some("no limit".to_owned());
        let lines = |lines: &[String]| match lines {
            [] => none(),
            lines => Some(lines.join("; ")),
        };
        vec![
            fact("memlock", "RLIMIT_MEMLOCK", memlock),
            fact("cgroup_memory", "cgroup memory", self.memory.map(size).or_else(none)),
            fact("cgroup_pids", "cgroup pids", self.pids.map(|n| n.to_string()).or_else(none)),
            fact("cgroup_rdma", "cgroup rdma", lines(&self.rdma)),
            fact("cgroup_dmem", "cgroup dmem", lines(&self.dmem)),
            fact("dev_shm", "/dev/shm", self.shm.map(size)),
        ]
    }
}

/// `Max locked memory         8388608              8388608              bytes`.
fn memlock(limits: &str) -> Memlock {
    let line = limits.lines().find_map(|line| line.strip_prefix("Max locked memory"));
    match line.and_then(|line| line.split_whitespace().next()) {
        Some("unlimited") => Memlock::Unlimited,
        Some(bytes) => bytes.parse().map_or(Memlock::Unknown, Memlock::Bytes),
        None => Memlock::Unknown,
    }
}

/// The size with which `/dev/shm` is mounted: half of the memory unless it is given.
fn shm(files: &Files) -> Option<u64> {
    let mounts = files.text("/proc/self/mounts")?;
    let mut mounts = mounts.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let mount = mounts.rfind(|words| words.get(1) == Some(&"/dev/shm"))?;
    let given = mount.get(3)?.split(',').find_map(|option| option.strip_prefix("size="));
    if let Some(given) = given {
        return pci::parse_size(given);
    }
    let memory = files.text("/proc/meminfo")?;
    let total = memory.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = total.split_whitespace().next()?.parse().ok()?;
    Some(kib * 1024 / 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_counts() {
        let text = "Limit Soft Hard\nMax locked memory         65536      unlimited    bytes\n";
        assert_eq!(memlock(text), Memlock::Bytes(65536));
        let text = "Max locked memory         unlimited      unlimited    bytes\n";
        assert_eq!(memlock(text), Memlock::Unlimited);
        assert_eq!(memlock(""), Memlock::Unknown);
    }
}
