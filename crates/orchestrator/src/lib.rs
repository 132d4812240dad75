//! Peer-to-peer DMA, with bytes: who lends memory, and who is nearest to all that use it.
//!
//! The kernel's words (`docs/semantics.md` 4.1): a *provider* lends memory that lies behind a BAR
//! of its, a *client* is a device that uses such memory, and an *orchestrator* brings them
//! together. Here a provider is a [`Lender`]; a client is a NIC or a storage controller, which gets
//! a dma-buf and attaches to it by itself.
//!
//! ```text
//!       Lender: GPU          Lender: NIC             Cmb (of a storage controller)
//!       memory in VRAM       device memory           a pool of pages
//!            \                    |                      /
//!             +----- publish ----- Orchestrator --------+
//!                                      |  place(clients, length): nearest to all of them
//!                                      v
//!                                   Placed: a dma-buf, whose memory, by which way each client goes
//!                                  /                     \
//!                       nic.reg_dmabuf_mr        storage.attach
//! ```
//!
//! * Which pairs are possible, and by which way, is for the [PCI tree](pci::PciTree) to say. When
//!   nobody's memory is reached by all clients, the [refusal](PlaceError) has the rule for each
//!   pair.
//! * Of several that are equally near one is taken at random, as the kernel does.
//! * A provider that leaves is first hidden, then takes its memory back from everybody
//!   ([`Published::remove`]): requests that are under way end, later ones fail in words, and nobody
//!   reads or writes memory that is somebody else's by then.
//!
//! What is not here: the devices. A lender is implemented where its device is known; the memory
//! buffer of a controller ([`Cmb`]) alone is here, since it is nothing but pages.
#![forbid(unsafe_code)]

mod cmb;
mod lender;
mod place;

pub use cmb::{Cmb, CmbError};
pub use lender::{Lender, Lent, Published};
pub use place::{Client, Orchestrator, PlaceError, Placed, Way};
