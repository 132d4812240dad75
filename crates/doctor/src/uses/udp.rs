//! peerdma between hosts: RoCEv2 on UDP port 4791.

use crate::fact::size;
use crate::finding::{Finding, bad, good, limit, unknown};
use crate::host::{Capability, Host};

/// The socket buffers that peerdma asks for.
const BUFFER: u64 = 4 << 20;

pub(super) fn findings(host: &Host) -> Vec<Finding> {
    let sockets = &host.sockets;
    let mut findings = vec![match sockets.interfaces.is_empty() {
        false => good(format!("interfaces: {}", sockets.interfaces.join(", "))),
        true => bad(
            "no network interface but loopback, which leads to no other host",
            "docker run with a network; between processes of this host shared memory is used",
        ),
    }];
    let holders: Vec<_> = sockets.holders.iter().map(|uid| format!("uid {uid}")).collect();
    findings.push(match (holders.as_slice(), host.kernel.has_module("rdma_rxe")) {
        ([], false) => good("UDP port 4791 is free"),
        ([], true) => limit(
            "rdma_rxe is loaded: it takes UDP port 4791 with its first device",
            "rdma link delete, or another network namespace",
        ),
        (_, true) => bad(
            "rdma_rxe is loaded, and UDP port 4791 is taken",
            "rdma link delete, or another network namespace",
        ),
        (holders, false) => limit(
            format!("UDP port 4791 is taken by {}", holders.join(", ")),
            "processes of peerdma share it; another program does not",
        ),
    });
    let forced =
        host.process.has(Capability::NetAdmin) && host.process.is_in_first_namespace == Some(true);
    for (name, max) in
        [("net.core.rmem_max", sockets.rmem_max), ("net.core.wmem_max", sockets.wmem_max)]
    {
        let remedy = format!("sysctl {name}={BUFFER}");
        findings.push(match max {
            _ if forced => good(format!("CAP_NET_ADMIN exceeds {name}")),
            Some(max) if max >= BUFFER => good(format!("{name} is {}", size(max))),
            Some(max) => limit(
                format!("{name} is {}: bursts are lost and retransmitted", size(max)),
                &remedy,
            ),
            // The sysctl is the host's, and other namespaces do not show it.
            None => unknown_limit(name, &remedy),
        });
    }
    findings
}

/// It costs speed at worst, so the use does not depend on it.
fn unknown_limit(name: &str, remedy: &str) -> Finding {
    let mut finding = unknown(format!("{name} is not shown here"), remedy);
    finding.kind = crate::finding::Kind::Limit;
    finding
}
