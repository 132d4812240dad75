//! HSA's runtime (ROCr) over the software GPU, for programs linked with `libhsa-runtime64.so.1`.
//!
//! ```text
//!   program ---> libpeerdma-hsa.so      the names, and nothing behind them (crate hsalib)
//!                    |  Lookup
//!                    v
//!                api         the functions: C in, C out
//!                process     the state of a process from hsa_init on: agents, regions
//!                 |- signal   words that copies decrement, and programs wait for
//!                 |- space    the address space, over umd
//!                 `- locked   memory of the program that agents reach
//! ```
//!
//! The GPU itself is in crate `gpu`, and the code that all user-mode drivers share in `umd`:
//! addresses, copies, work in order. Nothing computes: there are no queues and no executables, and
//! the first such call logs that.
//!
//! Loading a library does nothing. `hsa_init` reads the configuration and reserves addresses; a GPU
//! is opened when it is first needed, and a thread starts when a copy has to wait. A forked child
//! gets `HSA_STATUS_ERROR_NOT_INITIALIZED`.
#![allow(unsafe_code, reason = "this is the boundary to C")]

mod api;
mod boundary;
mod c;
mod ipc;
mod locked;
mod lookup;
mod process;
mod region;
mod signal;
mod space;
mod status;

pub use lookup::{Lookup, lookup};

/// The PCI ID of every GPU: the vendor in the low half, the device in the high half.
pub const PCI_ID: u32 = 0x740f_1002;

/// The PCI subsystem ID.
pub const PCI_SUBSYSTEM: u32 = 0x0c34_1002;

/// The configured machine, in which a GPU without a preset is `amdgpu`.
///
/// # Errors
///
/// The error of the configuration, in words.
pub fn machine() -> Result<gpu::Machine, String> {
    umd::machine::load(process::PRESET)
}
