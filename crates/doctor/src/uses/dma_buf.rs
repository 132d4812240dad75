//! GPUDirect by dma-buf: the GPU's driver exports, the NIC's driver imports.

use crate::finding::{Finding, bad, good, limit, unknown};
use crate::host::{Gpu, Host, RdmaDevice, Setting};
use crate::uses::nic;
use crate::uses::peers::{self, Asked};

/// Drivers of PCI functions, and the kernel since which their RDMA driver imports dma-bufs
/// (`docs/semantics.md` 2.6).
const IMPORT: [(&str, (u32, u32)); 7] = [
    ("mlx5_core", (5, 12)),
    ("efa", (5, 16)),
    ("ice", (6, 3)),
    ("i40e", (6, 3)),
    ("bnxt_en", (6, 5)),
    ("mana", (6, 13)),
    ("ionic", (6, 18)),
];
const DO_NOT_IMPORT: [&str; 6] = ["mlx4_core", "hns3", "cxgb4", "ocrdma", "qede", "vmw_pvrdma"];
/// Drivers of GPUs and accelerators that export their memory. NVIDIA's depends.
const EXPORT: [&str; 4] = ["amdgpu", "xe", "i915", "habanalabs"];

pub(super) fn findings(host: &Host) -> Vec<Finding> {
    let kernel = &host.kernel;
    let mut findings = vec![nic::finding(host)];
    findings.push(match kernel.is_at_least(5, 12) {
        true => good(format!("kernel {} registers dma-bufs", kernel.release)),
        false => bad(
            format!("kernel {} does not register dma-bufs", kernel.release),
            "5.12 or newer, or peer memory",
        ),
    });
    for option in ["DMA_SHARED_BUFFER", "PCI_P2PDMA"] {
        findings.push(match kernel.option(option) {
            Setting::On => good(format!("CONFIG_{option}")),
            Setting::Off => bad(
                format!("the kernel lacks CONFIG_{option}"),
                "a kernel of a distribution that has it, or build one",
            ),
            Setting::Unknown => unknown(
                format!("no file says whether the kernel has CONFIG_{option}"),
                "zgrep it in /proc/config.gz; doctor reads /boot/config-RELEASE",
            ),
        });
    }
    findings.extend(best(host.rdma.hardware().map(|device| imports(host, device))));
    findings.extend(best(host.tree.gpus.iter().map(|gpu| exports(host, gpu))));
    findings.extend(host.tree.gpus.iter().filter(|gpu| is_nvidia(gpu) && gpu.is_translated).map(
        |gpu| {
            limit(
                format!("the IOMMU translates for {}, which NVIDIA does not support", gpu.label),
                "iommu=pt on the kernel's command line",
            )
        },
    ));
    findings.extend(peers::findings(host, Asked::Yes));
    findings
}

pub(super) fn is_nvidia(gpu: &Gpu) -> bool {
    gpu.driver.as_deref() == Some("nvidia")
}

/// One device that can do it is enough; if there is none, what each of them lacks.
fn best(findings: impl Iterator<Item = Finding>) -> Vec<Finding> {
    let mut all: Vec<_> = findings.collect();
    if all.iter().any(|finding| finding.kind == crate::finding::Kind::Good) {
        all.retain(|finding| finding.kind == crate::finding::Kind::Good);
    }
    all.sort_by(|one, other| one.reason.cmp(&other.reason));
    all.dedup();
    all
}

fn imports(host: &Host, device: &RdmaDevice) -> Finding {
    let driver = device.driver.as_deref().unwrap_or("no driver");
    let since = IMPORT.iter().find(|(name, _)| *name == driver).map(|(_, since)| *since);
    match since {
        Some((major, minor)) if host.kernel.is_at_least(major, minor) => {
            good(format!("{driver} imports dma-bufs"))
        }
        Some((major, minor)) => bad(
            format!("{driver} imports dma-bufs only since {major}.{minor}"),
            "a newer kernel, or the vendor's drivers",
        ),
        None if DO_NOT_IMPORT.contains(&driver) => {
            bad(format!("{driver} does not import dma-bufs"), "another NIC, or peer memory")
        }
        None => unknown(
            format!("it is not known whether {driver} imports dma-bufs"),
            "ibv_reg_dmabuf_mr() with fd -1: EBADF means yes, EOPNOTSUPP means no",
        ),
    }
}

fn exports(host: &Host, gpu: &Gpu) -> Finding {
    let driver = gpu.driver.as_deref().unwrap_or("no driver");
    match (driver, host.tree.nvidia_is_open) {
        ("nvidia", Some(true)) => good("nvidia (open kernel modules) exports dma-bufs"),
        ("nvidia", Some(false)) => bad(
            "nvidia's proprietary kernel modules export no dma-bufs",
            "its open kernel modules (driver 515 or newer, GPU of Turing or newer), or \
             nvidia_peermem",
        ),
        ("nvidia", None) => unknown(
            "which of NVIDIA's kernel modules are loaded is not in /proc/driver/nvidia/version",
            "modinfo nvidia: its licence says \"Dual MIT/GPL\" if they are the open ones",
        ),
        (driver, _) if EXPORT.contains(&driver) => good(format!("{driver} exports dma-bufs")),
        ("no driver" | "nouveau" | "ast" | "mgag200" | "vfio-pci", _) => bad(
            format!("{}: {driver} exports no memory for compute", gpu.label),
            "amdgpu, xe, i915, habanalabs or nvidia as its driver",
        ),
        (driver, _) => unknown(
            format!("it is not known whether {driver} exports dma-bufs"),
            "look in its documentation for PRIME or dma-buf",
        ),
    }
}
