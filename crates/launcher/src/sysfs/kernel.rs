//! What `/proc` and `/boot` tell about the kernel's support for device memory. Programs use it to
//! choose how to register such memory.

use std::fs;

use super::tree::Tree;

/// The files that we replace.
pub(super) const FILES: [&str; 2] = ["/proc/kallsyms", "/proc/modules"];

/// The symbol of a kernel that imports dma-bufs. A probe tells whether a NIC does
/// (`docs/semantics.md` 2.2).
const DMA_BUFS: &str = "0000000000000000 T ib_umem_dmabuf_get\t[ib_uverbs]";
/// The symbol of a kernel that lets a module take part in how `ibv_reg_mr` looks up an address.
const PEER_MEMORY: &str = "\n0000000000000000 T ib_register_peer_memory_client\t[ib_core]";

/// The modules that make GPU memory known by its address.
const PEERS: [&str; 2] = ["nvidia_peermem", "nv_peer_mem"];

/// Adds both files. `has_peers`: whether GPU memory is known by its address.
///
/// The list of symbols has only these: the kernel's own is five megabytes, and readers look for one
/// of these only.
pub(super) fn describe(tree: &mut Tree, has_peers: bool) {
    let peers = if has_peers { PEER_MEMORY } else { "" };
    tree.file("/proc/kallsyms", format_args!("{DMA_BUFS}{peers}"));
    let kernels = fs::read_to_string("/proc/modules");
    // A kernel without modules has no such file.
    if has_peers || kernels.is_ok() {
        tree.file("/proc/modules", modules(&kernels.unwrap_or_default(), has_peers));
    }
}

/// The build options of a kernel that lets NICs use GPU memory.
const OPTIONS: &str = "CONFIG_DMABUF_MOVE_NOTIFY=y\nCONFIG_PCI_P2PDMA=y";

/// Adds the file in which a distribution lists its kernel's build options: ROCm programs check it
/// to learn whether NICs accept dma-bufs. It has only the options they look for. Returns its path.
pub(super) fn describe_configuration(tree: &mut Tree) -> String {
    let path = format!("/boot/config-{}", rustix::system::uname().release().to_string_lossy());
    tree.file(&path, OPTIONS);
    path
}

/// The modules of this machine, without those of a real GPU.
fn modules(kernels: &str, has_peers: bool) -> String {
    let is_kept = |line: &&str| line.split(' ').next().is_none_or(|name| !PEERS.contains(&name));
    let ours = has_peers.then_some("nvidia_peermem 16384 0 - Live 0x0000000000000000");
    kernels.lines().filter(is_kept).chain(ours).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peer_memory_is_a_module_if_a_nic_has_it_and_not_if_the_machine_has_it() {
        let kernels = "nvidia_peermem 20480 0 - Live 0x0\nvfat 20480 1 - Live 0x0\n";
        let vfat = "vfat 20480 1 - Live 0x0";
        assert_eq!(modules(kernels, false), vfat);
        let ours = "nvidia_peermem 16384 0 - Live 0x0000000000000000";
        assert_eq!(modules(kernels, true), format!("{vfat}\n{ours}"));
        assert_eq!(modules("", true), ours);
    }
}
