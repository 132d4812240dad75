//! GPUDirect by PeerDirect: `ib_core` asks a module of the GPU's vendor (`docs/semantics.md` 2.11).

use crate::fact::row;
use crate::finding::{Finding, bad, good, unknown};
use crate::host::Host;
use crate::uses::dma_buf::is_nvidia;
use crate::uses::peers::{self, Asked};
use crate::uses::{memlock, nic};

pub(super) fn findings(host: &Host) -> Vec<Finding> {
    let module = ["nvidia_peermem", "nv_peer_mem"];
    let module = module.into_iter().find(|name| host.kernel.has_module(name));
    let clients = &host.rdma.peer_memory;
    let mut findings = vec![nic::finding(host)];
    findings.push(match (clients.as_slice(), module) {
        ([], None) => bad(
            "no module of a GPU's vendor is a client of ib_core",
            "modprobe nvidia-peermem, with the ib_core of DOCA-OFED: that of mainline has no peer \
             memory. Or dma-buf",
        ),
        ([], Some(module)) => unknown(
            format!("{module} is loaded, but /sys/kernel/mm/memory_peers has no client"),
            "ib_core of DOCA-OFED must be loaded before it",
        ),
        (clients, _) => good(format!("clients of ib_core: {}", row(clients))),
    });
    let translated = host.tree.gpus.iter().filter(|gpu| is_nvidia(gpu) && gpu.is_translated);
    findings.extend(translated.map(|gpu| {
        bad(
            format!("the IOMMU translates for {}: its addresses are not physical", gpu.label),
            "iommu=pt on the kernel's command line, or no IOMMU",
        )
    }));
    // A region counts as one of plain memory.
    findings.push(memlock::finding(host));
    findings.extend(peers::findings(host, Asked::No));
    findings
}
