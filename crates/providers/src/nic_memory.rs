//! A NIC that lends device memory.

use dmabuf::DeviceAddr;
use orchestrator::{Allocation, MemoryProvider};
use pci::Bdf;
use verbs::Context;

/// Device memory of a NIC, which it takes back by freeing it.
#[derive(Debug)]
pub struct NicMemory {
    nic: Context,
    name: String,
    bdf: Bdf,
}

impl NicMemory {
    /// The device memory of an open NIC at `addr`. `None`: that is not an address on a PCI bus.
    pub fn new(nic: &Context, name: &str, addr: DeviceAddr) -> Option<Self> {
        let bdf = Bdf::from_bits(addr.0)?;
        Some(Self { nic: nic.clone(), name: name.to_owned(), bdf })
    }
}

impl MemoryProvider for NicMemory {
    fn name(&self) -> &str {
        &self.name
    }

    fn bdf(&self) -> Bdf {
        self.bdf
    }

    fn allocate(&self, len: u64) -> Result<Allocation, String> {
        let dm = self.nic.alloc_dm(len).map_err(|error| error.to_string())?;
        let buffer = dm.export().map_err(|error| error.to_string())?;
        Ok(Allocation { buffer, hold: Box::new(dm) })
    }

    fn revoke_all(&self, held: Vec<Allocation>, _why: &str) {
        drop(held);
    }
}
