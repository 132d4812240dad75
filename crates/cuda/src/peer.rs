//! Device pointers for a NIC that asks by address (PeerDirect, as `nvidia-peermem` has it).
//!
//! The client claims the arena. A range that is all inside one allocation is given in GPU pages of 64 KiB; pools, memory of other
//! processes, and allocations that were not made for peers are not (docs/semantics.md 2.11). When the program frees it, the key is
//! dead.

use std::sync::Arc;

use dmabuf::peer::{PeerClient, PeerMemory, PeerRange, claim_arena, register_client};

use crate::boundary::LOG;
use crate::process::Process;
use crate::space::{GPU_PAGE, Kind, Source};
use umd::Memory;

struct Client(&'static Process);

/// Registers the client. It stays as long as the process.
pub(crate) fn register(process: &'static Process) {
    let client: Arc<dyn PeerClient> = Arc::new(Client(process));
    register_client(&client);
    let arena = process.space.arena();
    std::mem::forget(claim_arena(&client, arena.start, arena.end - arena.start));
    std::mem::forget(client);
}

impl Client {
    /// The memory of a range that peers may have, and where in it the range is.
    fn memory(&self, addr: u64, len: u64) -> Result<(Arc<Memory>, u64), String> {
        let region = self.0.space.find(addr).ok_or("no memory is allocated there")?;
        let end = addr.checked_add(len).ok_or("the range has no end")?;
        // Pages of the GPU, of which the last may hold more than the program asked for.
        let stop = region.start + region.len.next_multiple_of(GPU_PAGE);
        if end > stop {
            return Err(format!("it is not all inside {}", region.name()));
        }
        match &region.kind {
            Kind::Device { source: Source::Pool(_), .. } => {
                Err(format!("{} is of a pool", region.name()))
            }
            Kind::Device { source: Source::Ipc { .. }, .. } => {
                Err(format!("{} is another process's", region.name()))
            }
            Kind::Device { memory, .. } => Ok((Arc::clone(memory), addr - region.start)),
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
        "nv_mem"
    }

    fn needs_invalidation(&self) -> bool {
        true
    }

    fn owner(&self, _mapping: &PeerRange) -> Option<String> {
        None
    }

    fn owner_at(&self, addr: u64, len: u64) -> String {
        match self.memory(addr, len) {
            Ok((memory, offset)) => {
                format!("{len:#x} bytes at {offset:#x} of GPU memory {}", memory.name())
            }
            Err(why) => format!("a device pointer of CUDA's: {why}"),
        }
    }

    fn acquire(&self, addr: u64, len: u64) -> Option<Box<dyn PeerMemory>> {
        let (memory, offset) = match self.memory(addr, len) {
            Ok(found) => found,
            Err(why) => {
                tracing::info!(target: LOG, "nv_mem: {len:#x} bytes at {addr:#x}: {why}");
                return None;
            }
        };
        memory.for_peers(offset, len, GPU_PAGE)
    }
}
