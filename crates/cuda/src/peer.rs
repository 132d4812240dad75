//! Device pointers for a NIC that asks by address (PeerDirect, as in `nvidia-peermem`).
//!
//! The client claims the arena. It grants a range inside one allocation, in GPU pages of 64 KiB. It
//! refuses pools, memory of other processes, and allocations that were not made for peers
//! (docs/semantics.md 2.11). When the program frees the memory, the key becomes invalid.
//!
//! A NIC that cannot stop (importer class pinned) gets its pages from a second client, `nv_mem_nc`.
//! The NIC keeps them until the region is deregistered, and nothing else gets the memory before
//! that.

use std::sync::Arc;

use dmabuf::peer::{PeerClient, PeerMemory, PeerRange, claim_arena, register_client};

use crate::boundary::LOG;
use crate::process::Process;
use crate::space::{GPU_PAGE, Kind, Source, end_for_peers, offset_of};
use umd::Memory;

struct Client {
    process: &'static Process,
    /// Whether it is for NICs that cannot stop when memory is taken back: nothing is revoked from
    /// them.
    is_lasting: bool,
}

/// Registers the clients, for the life of the process.
pub(crate) fn register(process: &'static Process) {
    let new = |is_lasting| -> Arc<dyn PeerClient> { Arc::new(Client { process, is_lasting }) };
    let clients = [new(false), new(true)];
    // They are asked in this order: a NIC that can stop gets the first.
    clients.iter().for_each(register_client);
    let arena = process.space.arena();
    std::mem::forget(claim_arena(&clients[0], arena.start, arena.end - arena.start));
    std::mem::forget(clients);
}

impl Client {
    /// The memory of a range, and the offset of the range in it, if peers may have it.
    fn memory(&self, addr: u64, len: u64) -> Result<(Arc<Memory>, u64), String> {
        let region = self.process.space.find(addr).ok_or("no memory is allocated there")?;
        let end =
            addr.checked_add(len).ok_or("the range wraps around the end of the address space")?;
        // Peers get whole GPU pages; the last one may exceed what the program asked for.
        if end > end_for_peers(&region) {
            return Err(format!("it is not all inside {}", region.name()));
        }
        match &region.kind {
            Kind::Device { source: Source::Pool(_), .. } => {
                Err(format!("{} belongs to a pool", region.name()))
            }
            Kind::Device { source: Source::Ipc { .. }, .. } => {
                Err(format!("{} belongs to another process", region.name()))
            }
            Kind::Device { memory, .. } => Ok((Arc::clone(memory), offset_of(&region, addr))),
            Kind::Reserved(reserved) => {
                let mapped = reserved.find(addr).ok_or("no allocation is mapped there")?;
                if !mapped.allocation.is_rdma_capable {
                    return Err(
                        "the allocation was not made for peers (gpuDirectRDMACapable)".into()
                    );
                }
                if end > mapped.stop() {
                    return Err("it is not all of one allocation".into());
                }
                Ok((Arc::clone(&mapped.allocation.memory), mapped.offset_of(addr)))
            }
            _ => Err(format!("{} is host memory", region.name())),
        }
    }
}

impl PeerClient for Client {
    fn name(&self) -> &str {
        if self.is_lasting { "nv_mem_nc" } else { "nv_mem" }
    }

    fn needs_invalidation(&self) -> bool {
        !self.is_lasting
    }

    fn owner(&self, _mapping: &PeerRange) -> Option<String> {
        None
    }

    fn owner_at(&self, addr: u64, len: u64) -> String {
        match self.memory(addr, len) {
            Ok((memory, offset)) => {
                format!("{len:#x} bytes at {offset:#x} of GPU memory {}", memory.name())
            }
            Err(why) => format!("a device pointer of CUDA: {why}"),
        }
    }

    fn acquire(&self, addr: u64, len: u64) -> Option<Box<dyn PeerMemory>> {
        let (memory, offset) = match self.memory(addr, len) {
            Ok(found) => found,
            Err(why) => {
                let name = self.name();
                tracing::info!(target: LOG, "{name}: {len:#x} bytes at {addr:#x}: {why}");
                return None;
            }
        };
        match self.is_lasting {
            false => memory.for_peers(offset, len, GPU_PAGE),
            true => memory.for_peers_for_good(offset, len, GPU_PAGE),
        }
    }
}
