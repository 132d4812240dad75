//! A software GPU: buffer objects that move between its own memory and the system's, are pinned,
//! evicted and revoked by the rules of real drivers, and that others import as dma-bufs.
//!
//! ```text
//!    alloc       +----------------------- VRAM -----------------------+        +-------- GTT ---------+
//!   -----------> |  BAR: what CPU and peers reach   |   the rest      | <----> |  system memory       |
//!                +----------------------------------------------------+  copy  +----------------------+
//!                      |             ^                                  engine            |
//!                 place|             | moves, evictions: gate closed, importers told,     |
//!                      v             | address retired, bytes copied, KERNEL fence        v
//!   importers:   | bus window: one address for each buffer, a new one after each move |  system addresses
//! ```
//!
//! * [`Gpu`] is opened from a [`GpuConfig`]; [`Gpu::alloc`] gives a [`Bo`], [`Bo::export`] its
//!   dma-buf.
//! * **Where a buffer is** is decided by its [`Place`], by its users, and by pressure: when VRAM is
//!   full, the least recently used buffers go to GTT, and come back when they are used and there is
//!   room; pinned ones stay. Peers reach only the BAR; buffers that they map are brought there, or
//!   to GTT.
//! * **A move** stops all access first (the gate, in every process), tells importers, retires the
//!   bus address, makes the copy engine copy the bytes, and leaves a KERNEL fence for users of the
//!   bytes. An access through the old address faults, or, without an IOMMU, reaches other bytes;
//!   [`Gpu::report_fault`] says whose address it was, since when it is invalid and why.
//! * **Rules of drivers are data**: a [`Persona`], from a [`Preset`] (amdgpu, xe, i915, habanalabs,
//!   vfio, nvidia) or key by key (`docs/semantics.md` 1.10, 1.11, 2.6). Whether a peer reaches the
//!   GPU is asked of the PCI tree.
//! * **Processes of one user share a GPU**: its memory is three files that each process passes to
//!   the next, with a ledger of which process has what. Pressure in one evicts buffers of another;
//!   memory of dead processes is freed when no process holds it.
//!
//! A buffer is one stretch of its domain, as in a GPU without scattered VRAM, so a fragmented VRAM
//! can be full earlier. A program that maps a buffer ([`Bo::cpu_pages`]) holds it where it is;
//! drivers move it and fault it in again. Buffers in GTT are not swapped out. Nothing here
//! computes.
//!
//! There is no unsafe code: bytes are copied by `umem`, addresses made and retired by `dmabuf`.
//!
//! ```
//! use gpu::{Domain, Gpu, GpuConfig, Place};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let config = GpuConfig { shared: false, ..GpuConfig::default() };
//! let gpu = Gpu::open(&config)?;
//! let bo = gpu.alloc(1 << 20, Place::VRAM)?;
//! bo.write(0, b"hello")?;
//! let buf = bo.export()?; // for a NIC to register, or another process to import
//! gpu.evict(&bo)?; // importers are told, and find the bytes again
//! assert_eq!(bo.domain()?, Domain::Gtt);
//! let mut bytes = [0; 5];
//! bo.read(0, &mut bytes)?; // as the GPU uses it, it comes back
//! assert_eq!((bo.domain()?, &bytes), (Domain::Vram, b"hello"));
//! # drop(buf);
//! # Ok(())
//! # }
//! ```
#![deny(unsafe_code)]

mod act;
mod acting;
mod bo;
mod client;
mod config;
mod copy;
mod cpu;
mod device;
mod engine;
mod error;
mod exporter;
mod fill;
#[cfg(fuzzing)]
pub mod fuzzing;
mod gpu;
mod handle;
mod here;
mod imported;
mod joined;
mod ledger;
mod look;
mod machine;
mod names;
mod need;
pub mod nodes;
mod open;
mod peers;
mod persona;
mod place;
mod pools;
mod reset;
mod room;
mod serve;
mod stats;
mod throttle;
mod view;
pub mod weather;
mod windows;
mod worker;

pub use act::ByHand;
pub use config::{CopyMode, GpuConfig};
pub use copy::copy;
pub use cpu::CpuPages;
pub use error::Result;
pub use gpu::Gpu;
pub use handle::Bo;
pub use joined::export_joined;

pub use machine::{Machine, Presets};
pub use peers::survey::{Member, survey};
pub use persona::{Orphans, Persona, PinPolicy, Preset, WithoutP2p};
pub use place::{Domain, Domains, Place};
pub use reset::Resetting;
pub use stats::GpuStats;
pub use view::{BufferView, GpuView};
