//! HSA's runtime (ROCr) over the software GPU, for programs linked with `libhsa-runtime64.so.1`.
//!
//! ```text
//!   program ---> libpeerdma-hsa.so      its names, and nothing behind them (crate hsalib)
//!                    |  Door
//!                    v
//!                api         the functions: C in, C out
//!                process     what one process has from hsa_init on: agents, regions
//!                 |- signal   words that copies count down, and programs wait for
//!                 |- space    which addresses are whose, over umd
//!                 `- locked   memory of the program that agents reach
//! ```
//!
//! `gpu` provides the GPU, and `umd` everything that is not specific to HSA: addresses, copies,
//! work in order. Nothing computes: there are no queues and no executables, which the log explains
//! once.
//!
//! Nothing happens when a library is loaded. `hsa_init` reads the configuration and reserves
//! addresses; a GPU is opened when it is first needed, a thread started when a copy has to wait. A
//! child of a fork gets `HSA_STATUS_ERROR_NOT_INITIALIZED`.
#![allow(unsafe_code, reason = "this is the boundary to C")]

mod api;
mod boundary;
mod c;
mod door;
mod ipc;
mod locked;
mod process;
mod region;
mod signal;
mod space;
mod status;

pub use door::{Door, door};

/// The PCI id of every GPU: vendor in the low half, device in the high half.
pub const PCI_ID: u32 = 0x740f_1002;

/// The board that it reports.
pub const PCI_SUBSYSTEM: u32 = 0x0c34_1002;

/// The machine that HSA finds: that of the configuration, where a GPU whose preset is not named is
/// `amdgpu`.
///
/// # Errors
///
/// What is wrong with the configuration, in words.
pub fn machine() -> Result<gpu::Machine, String> {
    umd::machine::load(process::PRESET)
}
