//! What the user-mode drivers of the software GPU share: CUDA's (crate `cuda`), Level Zero's (crate
//! `levelzero`) and HSA's (crate `hsa`).
//!
//! A user-mode driver is the library that a program is linked with; `gpu` plays the kernel's part.
//! Whatever the names of its functions, it gives programs addresses of GPU memory, does work in
//! order, and tells processes apart:
//!
//! ```text
//!   machine    the GPUs of the configuration: names, PCI addresses, UUIDs; opened when first needed
//!   space      which addresses are whose: one arena without permissions, regions in it; host memory that a driver knows
//!   memory     a gpu::Bo, with a number of a GPU
//!   vmm        addresses and memory apart; view, what of it the CPU sees there
//!   copy       copies and fills between any two addresses
//!   queue      work in order; worker, the thread that does what had to wait
//!   wait       for a value in memory
//!   process    what a process has from its first call on; a child of a fork has none of it
//!   file       descriptors of other processes
//!   stray      what to say when the CPU follows a device pointer
//!   c, boundary, handles   arguments of C, calls and panics, what programs hold
//! ```
//!
//! Each driver has its own names for errors: a [`Refusal`] has a kind and a sentence, and each
//! turns the kind into a number of its own ([`Refused`]). This crate has no driver's numbers,
//! structures or C names.
#![allow(unsafe_code, reason = "this is the boundary to C, and reserves addresses")]

pub mod addresses;
pub mod boundary;
pub mod c;
pub mod copy;
pub mod file;
pub mod handles;
pub mod machine;
mod memory;
pub mod process;
pub mod queue;
mod refusal;
pub mod space;
pub mod stray;
mod view;
pub mod vmm;
pub mod wait;
mod worker;

pub use dmabuf::Mapping;
pub use memory::{Memory, export_joined};
pub use refusal::{Error, Kind, Refusal, Refused, Result, invalid};
pub use view::View;
