//! A Level Zero driver over the software GPU, for the real loader (`libze_loader.so.1`).
//!
//! ```text
//!   program ---> libze_loader.so.1      the loader, unmodified
//!                    |  zeGet...ProcAddrTable(version, table)
//!                libpeerdma-ze.so       those names, and nothing behind them (crate zelib)
//!                    |  Ddi
//!                    v
//!                tables      the functions of a table, by the version that the loader asks for
//!                api         the functions: C in, C out
//!                process     the state of a process from zeInit on
//!                 |- context, queue, list, fence, event     work in order; command: its items
//!                 |- space   the address space, over umd
//!                 `- host    memory that the CPU can access
//! ```
//!
//! The GPU itself is in crate `gpu`, and the code that all user-mode drivers share in `umd`:
//! addresses, copies, work in order. Nothing computes: there are no modules and no kernels, and the
//! first such call logs that.
//!
//! Loading a library does nothing. `zeInit` reads the configuration and reserves addresses; a GPU
//! is opened when it is first needed, and a thread starts when a queue has to wait. A forked child
//! gets `ZE_RESULT_ERROR_UNINITIALIZED`.
#![allow(unsafe_code, reason = "this is the boundary to C")]

mod api;
mod boundary;
mod c;
mod command;
mod context;
mod ddi;
mod event;
mod exported;
mod fence;
mod host;
mod ipc;
mod last;
mod list;
mod process;
mod queue;
mod region;
mod space;
mod status;
mod tables;

pub use ddi::{Ddi, ddi};

/// The PCI ID of every GPU: the vendor in the low half, the device in the high half.
pub const PCI_ID: u32 = 0x0bd5_8086;

/// The PCI subsystem ID.
pub const PCI_SUBSYSTEM: u32 = 0x0000_8086;

/// The configured machine, in which a GPU without a preset is `xe`.
///
/// # Errors
///
/// The error of the configuration, in words.
pub fn machine() -> Result<gpu::Machine, String> {
    umd::machine::load(process::PRESET)
}
