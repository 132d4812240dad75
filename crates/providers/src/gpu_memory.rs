//! A GPU that lends VRAM.

use gpu::{Gpu, Place};
use orchestrator::{Allocation, MemoryProvider};
use pci::Bdf;

/// VRAM of a GPU, which stays there while it is lent.
#[derive(Debug)]
pub struct GpuMemory {
    gpu: Gpu,
    bdf: Bdf,
}

impl GpuMemory {
    /// The memory of this GPU. `None`: it was opened without a PCI tree, or is not in it.
    pub fn new(gpu: Gpu) -> Option<Self> {
        let bdf = gpu.bdf()?;
        Some(Self { gpu, bdf })
    }
}

impl MemoryProvider for GpuMemory {
    fn name(&self) -> &str {
        &self.gpu.config().name
    }

    fn bdf(&self) -> Bdf {
        self.bdf
    }

    fn allocate(&self, len: u64) -> Result<Allocation, String> {
        let bo = self.gpu.alloc(len, Place::ONLY_VRAM).map_err(|error| error.to_string())?;
        let buffer = bo.export().map_err(|error| error.to_string())?;
        Ok(Allocation { buffer, hold: Box::new(bo) })
    }

    fn revoke_all(&self, _held: Vec<Allocation>, _why: &str) {
        self.gpu.remove();
    }
}
