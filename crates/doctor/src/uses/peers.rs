//! Whether NICs reach GPUs through the PCI tree.

use std::collections::BTreeSet;

use pci::{Device, Memory, Refusal, Topology};

use crate::fact::size;
use crate::finding::{Finding, bad, good, limit, unknown};
use crate::host::Host;

/// Whether a driver checks that a path between host bridges is known to work.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Asked {
    /// The driver of the GPU does, by the kernel's list.
    Yes,
    /// None does: data takes the path, whether or not that works.
    No,
}

const REMEDY: &str = "peerdma topo --sysfs shows each pair; docs/TOPO.md says what helps";

/// The findings on all pairs of a GPU and an RDMA device.
pub(super) fn findings(host: &Host, asked: Asked) -> Vec<Finding> {
    let topology = match &host.tree.topology {
        Ok(topology) => topology,
        Err(error) => return vec![bad(error.clone(), "a machine with a GPU and a NIC")],
    };
    if host.tree.gpus.is_empty() {
        let remedy = "a GPU; peerdma run --gpu=nvidia stands in for one";
        return vec![bad("no GPU among the PCI functions", remedy)];
    }
    let at =
        |bdf: &str| topology.devices().iter().find(move |device| device.bdf.to_string() == bdf);
    let nics: Vec<_> = host.rdma.hardware().filter_map(|nic| at(nic.bdf.as_deref()?)).collect();
    let gpus: Vec<_> = host.tree.gpus.iter().filter_map(|gpu| at(&gpu.bdf)).collect();
    let mut findings = paths(host, topology, &gpus, &nics, asked);
    findings.extend(host.tree.gpus.iter().filter_map(|gpu| match gpu.memory {
        Memory::Reachable { size: Some(bar), of: Some(of), .. } if bar < of => Some(limit(
            format!("{} has a BAR of {} for {}", gpu.label, size(bar), size(of)),
            "firmware: Resizable BAR, Above 4G Decoding; or resourceN_resize in sysfs",
        )),
        _ => None,
    }));
    let dmem = |line: &String| {
        let reason = format!("the control group has a limit: {line}");
        limit(reason, "raise dmem.max of the control group")
    };
    findings.extend(host.limits.dmem.iter().map(dmem));
    findings
}

fn paths(
    host: &Host,
    topology: &Topology,
    gpus: &[&Device],
    nics: &[&Device],
    asked: Asked,
) -> Vec<Finding> {
    let mut possible = vec![];
    let mut redirected = BTreeSet::new();
    // The text of each refusal, and whether it depends on ACS that is only assumed.
    let mut refused = BTreeSet::new();
    for gpu in gpus {
        for nic in nics {
            let peers = topology.peer_to_peer(gpu, nic);
            let pair = format!("{} -> {}", gpu.label, nic.label);
            match &peers.refusal {
                None => possible.push(pair),
                Some(refusal) => {
                    let by_acs = matches!(refusal, Refusal::HostBridges { redirected_by, .. }
                        if !redirected_by.is_empty());
                    let is_assumed = by_acs && host.tree.redirecting.is_none();
                    let by_host = matches!(refusal, Refusal::HostBridges { .. });
                    refused.insert((refusal.to_string(), is_assumed, by_host));
                }
            }
            if peers.refusal.is_none() {
                redirected.extend(peers.redirected_by().iter().map(ToString::to_string));
            }
        }
    }
    if nics.is_empty() {
        return vec![];
    }
    let pairs = gpus.len() * nics.len();
    let mut findings = vec![];
    if !possible.is_empty() {
        let reason = format!("{} of {pairs} pairs of GPU and NIC reach each other", possible.len());
        findings.push(good(reason));
    }
    for (why, is_assumed, by_host) in refused {
        findings.push(match (possible.is_empty(), asked) {
            (false, _) => limit(format!("not all pairs: {why}"), REMEDY),
            (true, _) if is_assumed => {
                unknown(format!("{why}; ACS is assumed"), "as root, it can be seen")
            }
            (true, Asked::No) if by_host => unknown(
                format!("{why}; no driver checks this: it may work, be slow, or lose data"),
                REMEDY,
            ),
            (true, _) => bad(why, REMEDY),
        });
    }
    if !redirected.is_empty() {
        let bridges: Vec<_> = redirected.into_iter().collect();
        findings.push(limit(
            format!("ACS sends traffic to the host bridge, at {}: slow", bridges.join(" ")),
            "switch ACS off there (pci=disable_acs_redir=), unless virtual machines need it",
        ));
    }
    findings
}
