//! A driver of Level Zero over the software GPU, for the real loader (`libze_loader.so.1`).
//!
//! ```text
//!   program ---> libze_loader.so.1      the loader, unmodified
//!                    |  zeGet...ProcAddrTable(version, table)
//!                libpeerdma-ze.so       those names, and nothing behind them (crate zelib)
//!                    |  Door
//!                    v
//!                tables      which functions a table has, by the version that the loader asks for
//!                api         the functions: C in, C out
//!                process     what one process has from zeInit on
//!                 |- context, queue, list, fence, event     work in order; command: what it is
//!                 |- space   which addresses are whose, over umd
//!                 `- host    memory that the CPU reaches
//! ```
//!
//! The GPU is `gpu`'s, and what is not Level Zero's own is `umd`'s: addresses, copies, work in
//! order. Nothing computes: there are no modules and no kernels, which is said once in words.
//!
//! Nothing happens when a library is loaded. `zeInit` reads the configuration and reserves
//! addresses; a GPU is opened when it is first needed, a thread started when a queue has to wait. A
//! child of a fork is told `ZE_RESULT_ERROR_UNINITIALIZED`.
#![allow(unsafe_code, reason = "this is the boundary to C")]

mod api;
mod boundary;
mod c;
mod command;
mod context;
mod door;
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

pub use door::{Door, door};

/// What every GPU says it is on PCI: vendor below, device above.
pub const PCI_ID: u32 = 0x0bd5_8086;

/// The board that it says it is on.
pub const PCI_SUBSYSTEM: u32 = 0x0000_8086;

/// The machine that Level Zero finds: that of the configuration, where a GPU whose preset is not
/// named is `xe`.
///
/// # Errors
///
/// What is wrong with the configuration, in words.
pub fn machine() -> Result<gpu::Machine, String> {
    umd::machine::load(process::PRESET)
}
