//! RDMA by hardware.

use crate::fact::row;
use crate::finding::{Finding, bad, good, limit};
use crate::host::Host;
use crate::uses::memlock;

pub(super) fn findings(host: &Host) -> Vec<Finding> {
    let devices: Vec<_> = host.rdma.hardware().collect();
    if devices.is_empty() {
        let names: Vec<_> = host.rdma.devices.iter().map(|device| device.name.as_str()).collect();
        let reason = match names.as_slice() {
            [] => "no device in /sys/class/infiniband".to_owned(),
            names => format!("no device in /sys/class/infiniband is hardware: {}", row(names)),
        };
        return vec![bad(
            reason,
            "with such a NIC: load its driver (mlx5_ib, irdma, bnxt_re, efa); in a container, use \
             the network namespace of the host. Without one: peerdma run",
        )];
    }
    let names: Vec<_> = devices.iter().map(|device| device.name.as_str()).collect();
    let mut findings = vec![good(format!("devices: {}", row(&names)))];
    let active = |ports: &[String]| ports.iter().any(|state| state == "ACTIVE");
    let down: Vec<_> = devices.iter().filter(|device| !active(&device.ports)).collect();
    let down_names: Vec<_> = down.iter().map(|device| device.name.as_str()).collect();
    let cable = "cable; ip link set DEV up (RoCE); a subnet manager (InfiniBand)";
    findings.push(match down_names.as_slice() {
        [] => good("each has an active port"),
        all if all.len() == devices.len() => bad("no port is active", cable),
        some => limit(format!("no active port: {}", row(some)), cable),
    });
    findings.push(match devices.iter().any(|device| device.node.is_some()) {
        true => good("/dev/infiniband has nodes of them"),
        false => bad(
            "/dev/infiniband has no uverbs node of them",
            "modprobe ib_uverbs; docker run --device=/dev/infiniband",
        ),
    });
    findings.push(memlock::finding(host));
    findings.extend(host.limits.rdma.iter().map(|line| cgroup(line)));
    if host.rdma.has_netlink == Some(false) {
        findings.push(limit(
            "no RDMA netlink, so rdma(8) lists nothing",
            "modprobe ib_core; the network namespace of the host",
        ));
    }
    if !host.kernel.has_module("rdma_ucm") {
        findings.push(limit("no rdma_ucm: rdma_cm cannot connect", "modprobe rdma_ucm"));
    }
    findings
}

/// A line of `rdma.max`.
fn cgroup(line: &str) -> Finding {
    let remedy = "raise rdma.max of the control group";
    if line.split_whitespace().any(|word| word.ends_with("=0")) {
        return bad(format!("the control group allows none: {line} (EAGAIN)"), remedy);
    }
    limit(format!("the control group has a limit: {line} (EAGAIN beyond)"), remedy)
}
