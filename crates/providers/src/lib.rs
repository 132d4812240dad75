//! Devices as providers of peer-to-peer memory, and a machine that has one of each.
//!
//! `orchestrator` knows no device, and devices do not know each other. Here they meet: a GPU lends
//! VRAM ([`GpuMemory`]), a NIC its device memory ([`NicMemory`]), a storage controller its memory
//! buffer ([`orchestrator::Cmb`]), each behind the same trait. [`Machine`] puts a NIC, a disk and a
//! GPU below one switch, for programs that move data between storage and the network: the demo,
//! and `examples/nvmet`.
//!
//! ```text
//!    gpu::Gpu          verbs::Context      (pages alone)
//!       |                   |                   |
//!    GpuMemory          NicMemory         orchestrator::Cmb
//!        \                  |                  /
//!         +-- orchestrator::MemoryProvider ---+
//!                           |
//!                 Orchestrator::place ----> a dma-buf that NIC and disk attach to
//! ```
//!
//! What is not here: the choice of the provider (`orchestrator`), and which device reaches whose
//! memory (`pci`).
//!
//! ```
//! use providers::{Kind, Machine};
//! use verbs::soft;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let machine = Machine::new();
//! let nic = soft::device(machine.nic())?.open()?;
//! let disk = machine.disk()?;
//! let _published = machine.publish(Kind::Cmb, &nic)?;
//! let placed = machine.orchestrator().place(&machine.clients(), 1 << 20)?;
//! let for_disk = disk.attach(placed.buffer())?;
//! let for_nic = nic.alloc_pd()?.reg_whole_dmabuf(placed.buffer(), verbs::Access::LOCAL_WRITE)?;
//! assert_eq!(for_disk.size(), for_nic.len());
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod gpu_memory;
mod machine;
mod nic_memory;

pub use gpu_memory::GpuMemory;
pub use machine::{Kind, Machine};
pub use nic_memory::NicMemory;
