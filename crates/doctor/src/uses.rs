//! The uses, and what each of them needs.

mod direct;
mod dma_buf;
mod hardware;
mod io_uring;
mod memlock;
mod migration;
mod nic;
mod p2pdma;
mod peer_memory;
mod peers;
mod shared_memory;
mod sysfs;
mod udp;

use crate::finding::Use;
use crate::host::Host;

/// All uses, the most demanding first.
pub(crate) fn all(host: &Host) -> Vec<Use> {
    let each = |key, title, findings| Use { key, title, findings };
    vec![
        each("rdma", "RDMA by hardware", hardware::findings(host)),
        each("gpudirect_dma_buf", "GPUDirect by dma-buf", dma_buf::findings(host)),
        each("gpudirect_peermem", "GPUDirect by peer memory", peer_memory::findings(host)),
        each("p2pdma", "P2PDMA between PCI devices", p2pdma::findings(host)),
        each("peerdma_direct", "peerdma: straight into a peer's memory", direct::findings(host)),
        each("peerdma_shm", "peerdma: shared memory", shared_memory::findings(host)),
        each("peerdma_udp", "peerdma: RoCEv2 on UDP", udp::findings(host)),
        each("peerdma_sysfs", "peerdma: /sys for every program", sysfs::findings(host)),
        each("peerdma_io_uring", "peerdma: storage by io_uring", io_uring::findings(host)),
        each("peerdma_migration", "peerdma: pages that migrate", migration::findings(host)),
    ]
}
