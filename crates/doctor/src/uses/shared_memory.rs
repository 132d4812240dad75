//! peerdma between processes of a host: rings in sealed memory files.

use crate::fact::size;
use crate::finding::{Finding, bad, good, limit};
use crate::host::Host;

/// What a program with a few connections needs for rings and regions.
const FEW: u64 = 256 << 20;
/// What Docker gives a container.
const SMALL_SHM: u64 = 64 << 20;

pub(super) fn findings(host: &Host) -> Vec<Finding> {
    let mut findings = vec![match host.kernel.is_at_least(3, 17) {
        true => good(format!("kernel {} has memory files", host.kernel.release)),
        false => bad("the kernel has no memory files (memfd_create)", "3.17 or newer"),
    }];
    if host.process.memfd_noexec == Some(2) {
        findings.push(bad(
            "vm.memfd_noexec is 2: memory files that do not ask for MFD_NOEXEC_SEAL are refused",
            "sysctl vm.memfd_noexec=1, or 0, in this pid namespace",
        ));
    }
    if let Some(memory) = host.limits.memory.filter(|memory| *memory < FEW) {
        findings.push(limit(
            format!("the control group has {} of memory; shared memory counts", size(memory)),
            "raise memory.max of the control group",
        ));
    }
    if let Some(pids) = host.limits.pids.filter(|pids| *pids < 64) {
        findings.push(limit(
            format!("the control group has room for {pids} threads; each process needs one more"),
            "raise pids.max of the control group",
        ));
    }
    if let Some(shm) = host.limits.shm.filter(|shm| *shm <= SMALL_SHM) {
        findings.push(limit(
            format!("/dev/shm has {}: peerdma needs none, NCCL, UCX and MPI do", size(shm)),
            "docker run --shm-size=1g, or --ipc=host",
        ));
    }
    findings
}
