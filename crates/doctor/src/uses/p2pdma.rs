//! The kernel's P2PDMA: a driver lends memory behind a BAR, other drivers use it.

use pci::DeviceKind;

use crate::fact::row;
use crate::finding::{Finding, bad, good, limit, unknown};
use crate::host::{Host, Setting};

pub(super) fn findings(host: &Host) -> Vec<Finding> {
    let mut findings = vec![match host.kernel.option("PCI_P2PDMA") {
        Setting::On => good("CONFIG_PCI_P2PDMA"),
        Setting::Off => bad("the kernel lacks CONFIG_PCI_P2PDMA", "a kernel that has it"),
        Setting::Unknown if !host.tree.pools.is_empty() => good("sysfs has p2pmem/"),
        Setting::Unknown => unknown(
            "no file says whether the kernel has CONFIG_PCI_P2PDMA",
            "zgrep it in /proc/config.gz; doctor reads /boot/config-RELEASE",
        ),
    }];
    let pools = &host.tree.pools;
    if pools.is_empty() {
        findings.push(bad(
            "no device has a pool (p2pmem/ in sysfs)",
            "an NVMe controller with a memory buffer (CMB), or a driver that lends memory",
        ));
        return findings;
    }
    let (published, hidden): (Vec<_>, Vec<_>) = pools.iter().partition(|pool| pool.is_published);
    let names = |pools: &[&crate::host::Pool]| {
        row(&pools.iter().map(|pool| pool.bdf.as_str()).collect::<Vec<_>>())
    };
    if !hidden.is_empty() {
        let reason = format!("pools that are not published: {}", names(&hidden));
        let remedy = "other drivers do not find them; they can be named (nvmet's p2pmem attribute)";
        findings.push(limit(reason, remedy));
    }
    if !published.is_empty() {
        findings.push(good(format!("published pools: {}", names(&published))));
    }
    findings.extend(clients(host));
    findings
}

/// Whether a NIC or a disk reaches a pool.
fn clients(host: &Host) -> Option<Finding> {
    let topology = host.tree.topology.as_ref().ok()?;
    let devices = topology.devices();
    let lent = |device: &&pci::Device| {
        host.tree.pools.iter().any(|pool| pool.bdf == device.bdf.to_string())
    };
    let mut why = None;
    for provider in devices.iter().filter(lent) {
        for client in devices.iter().filter(|client| client.kind != DeviceKind::Gpu) {
            if client.bdf == provider.bdf {
                continue;
            }
            match topology.peer_to_peer(provider, client).refusal {
                None => {
                    let (provider, client) = (&provider.label, &client.label);
                    return Some(good(format!("{client} reaches the pool of {provider}")));
                }
                Some(refusal) => why = Some(refusal.to_string()),
            }
        }
    }
    let why = why.unwrap_or_else(|| "there is no other NIC or disk".to_owned());
    Some(bad(format!("no device reaches a pool: {why}"), "peerdma topo --sysfs; docs/TOPO.md"))
}
