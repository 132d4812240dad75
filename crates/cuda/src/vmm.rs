//! Memory without an address of its own; it is mapped at reserved addresses.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use umd::Memory;
use umd::handles::Handles;
use umd::vmm::Physical;

/// Addresses into which allocations are mapped.
pub(crate) type Reserved = umd::vmm::Reserved<Allocation>;

/// An allocation at an address.
pub(crate) type Mapped = umd::vmm::Mapped<Allocation>;

/// Memory that has no address yet.
#[doc(alias = "CUmemGenericAllocationHandle")]
pub(crate) struct Allocation {
    pub(crate) handle: u64,
    pub(crate) size: u64,
    pub(crate) memory: Arc<Memory>,
    /// Types of handles by which it may be shared with other processes.
    pub(crate) handle_types: u32,
    /// Whether peers may reach it.
    pub(crate) is_rdma_capable: bool,
    /// How many references to the handle the program holds.
    users: AtomicU32,
}

impl Allocation {
    pub(crate) fn new(
        handle: u64,
        memory: Arc<Memory>,
        size: u64,
        handle_types: u32,
        is_rdma_capable: bool,
    ) -> Self {
        let users = AtomicU32::new(1);
        Self { handle, size, memory, handle_types, is_rdma_capable, users }
    }

    /// Whether both were created with the same properties.
    pub(crate) fn is_like(&self, other: &Self) -> bool {
        (self.memory.device, self.handle_types, self.is_rdma_capable)
            == (other.memory.device, other.handle_types, other.is_rdma_capable)
    }

    /// Adds a reference to the handle, which may have been released while a mapping remained.
    pub(crate) fn retain(self: &Arc<Self>, all: &Handles<Self>) {
        if self.users.fetch_add(1, Ordering::AcqRel) == 0 {
            all.restore(self.handle, self);
        }
    }

    /// Drops a reference. Mappings stay.
    pub(crate) fn release(&self, all: &Handles<Self>) {
        if self.users.fetch_sub(1, Ordering::AcqRel) == 1 {
            all.remove(self.handle);
        }
    }
}

impl Physical for Allocation {
    fn memory(&self) -> &Arc<Memory> {
        &self.memory
    }
}
