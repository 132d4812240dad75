//! Peer-to-peer DMA with real bytes: which devices provide memory, and which of them is nearest to
//! all clients.
//!
//! In the kernel's terms (`docs/semantics.md` 4.1), a *provider* has memory behind one of its BARs,
//! a *client* is a device that uses such memory, and an *orchestrator* brings them together. Here a
//! provider is a [`MemoryProvider`]; a client is a NIC or a storage controller, which gets a
//! dma-buf and attaches to it by itself.
//!
//! ```text
//!       provider: GPU        provider: NIC           Cmb (of a storage controller)
//!       memory in VRAM       device memory           a pool of pages
//!            \                    |                      /
//!             +----- publish ----- Orchestrator --------+
//!                                      |  place(clients, length): nearest to all of them
//!                                      v
//!                                   Placed: a dma-buf, its provider, the path of each client
//!                                  /                     \
//!                       nic.reg_dmabuf_mr        storage.attach
//! ```
//!
//! * The [PCI tree](pci::PciTree) decides which pairs are possible, and by which map type. If no
//!   provider is within reach of all clients, the [refusal](PlaceError) gives the rule for each.
//! * Of several equally near providers, one is chosen at random, as in the kernel.
//! * A departing provider is first hidden, then revokes its memory ([`Published::remove`]):
//!   requests in progress end, later ones fail with a reason, and nobody reads or writes memory
//!   that has another owner by then. A client that has to know what became of a request holds the
//!   memory for as long as it takes ([`Placed::hold`]).
//!
//! The devices are not here: a provider is implemented where its device is known. The exceptions
//! are nothing but pages: the memory buffer of a controller ([`Cmb`]), and what a driver of the
//! running kernel lends ([`KernelPool`], `p2pmem/allocate`).
#![forbid(unsafe_code)]

mod cmb;
mod hold;
mod kernel_pool;
mod place;
mod provider;

pub use cmb::{Cmb, CmbError};
pub use hold::{HOLD_LIMIT, Hold, HoldError};
pub use kernel_pool::{KernelPool, KernelPoolError};
pub use place::{Client, Orchestrator, PlaceError, Placed, PublishError, Way};
pub use provider::{Allocation, MemoryProvider, Published};
