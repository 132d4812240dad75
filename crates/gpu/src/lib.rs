//! A software GPU: buffer objects move between its own memory and system memory, are pinned,
//! evicted and revoked by the rules of real drivers, and can be imported as dma-bufs.
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
//! * A [`Gpu`] is opened from a [`GpuConfig`]; [`Gpu::alloc`] returns a [`Bo`], [`Bo::export`] its
//!   dma-buf.
//! * **The place of a buffer** depends on its [`Place`], on its users, and on memory pressure: when
//!   VRAM is full, the least recently used buffers go to GTT, and come back when they are used and
//!   there is room; pinned buffers stay. Peers reach only the BAR; buffers that they map are moved
//!   there, or to GTT.
//! * **A move** first stops all access (the gate, in every process), tells importers, retires the
//!   bus address, has the copy engine copy the bytes, and leaves a KERNEL fence for users of the
//!   bytes. An access through the old address faults, or, without an IOMMU, reaches other bytes;
//!   [`Gpu::report_fault`] tells which buffer had the address, since when it is invalid, and why.
//! * **The rules of drivers are data**: a [`Persona`], from a [`Preset`] (amdgpu, xe, i915,
//!   habanalabs, vfio, nvidia) or key by key (`docs/semantics.md` 1.10, 1.11, 2.6). The PCI tree
//!   decides whether a peer reaches the GPU.
//! * **Processes of one user share a GPU**: its memory is three files that each process passes to
//!   the next, with a ledger of which process has what. Pressure in one process evicts buffers of
//!   another; memory of dead processes is freed when no process holds it.
//!
//! A buffer is contiguous in its domain, as in a GPU without scattered VRAM, so a fragmented VRAM
//! can be full earlier. A program that maps a buffer ([`Bo::cpu_pages`]) pins it; real drivers move
//! such a buffer and fault it in again. Buffers in GTT are not swapped out. The GPU does not
//! compute.
//!
//! There is no unsafe code: `umem` copies bytes, `dmabuf` makes and retires addresses.
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
mod hook;
mod imported;
mod joined;
mod ledger;
mod limits;
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
pub use config::{CopyMode, EvictOrder, GpuConfig};
pub use copy::copy;
pub use cpu::CpuPages;
pub use error::Result;
pub use gpu::Gpu;
pub use handle::Bo;
pub use hook::{BufferEvent, BufferHook, set_buffer_hook};
pub use joined::export_joined;
pub use machine::{Machine, Presets};
pub use peers::survey::{Member, survey};
pub use persona::{Orphans, Persona, PinPolicy, Preset, WithoutP2p};
pub use place::{Domain, Domains, Place};
pub use reset::Resetting;
pub use stats::GpuStats;
pub use view::{BufferView, GpuView};
