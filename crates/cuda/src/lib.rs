//! CUDA's libraries over the software GPU: `libcuda.so.1`, `libcudart.so.12` and `.13`,
//! `libnvidia-ml.so.1`.
//!
//! ```text
//!   program ---> libpeerdma-cuda.so      every name of CUDA's libraries, and nothing behind them (crate cudalib)
//!                    |  Door
//!                    v
//!                driver | runtime | nvml      C in, C out: numbers and pointers (c), status (status), panics (boundary)
//!                    |
//!                process      what one process has from cuInit on
//!                 |- space        which addresses are whose: one arena without permissions, regions in it
//!                 |- context      which GPU a thread works on
//!                 |- stream, event, worker     work in order
//!                 |- vmm, pool    memory and addresses apart; memory in the order of streams
//!                 |               what acts on a process stands above it: begin, endings, streams,
//!                 |               mapping
//!                 |- memory  ---> gpu::Bo      the bytes; export as a dma-buf
//!                 `- machine ---> gpu::Machine names, addresses, UUIDs of the GPUs
//! ```
//!
//! The GPU is `gpu`'s: there is no state of a GPU here, and nothing computes. A device pointer is
//! an address of an arena that nobody may read or write; what is behind it is found in a map, and
//! copied by `umem`. A NIC never asks this crate: it gets a dma-buf, or, with `peermem`, asks the
//! peer memory client that this crate registers.
//!
//! Nothing happens when a library is loaded. `cuInit` reads the configuration and reserves
//! addresses; a GPU is opened when it is first needed, a thread started when a stream has to wait.
//! A child of a fork is told `CUDA_ERROR_NOT_INITIALIZED`.
//!
//! What each function answers follows CUDA's public documentation and its headers; `docs/CUDA.md`
//! lists what is not served.
#![allow(unsafe_code, reason = "this is the boundary to C")]

mod allocate;
mod attribute;
mod begin;
mod boundary;
mod c;
mod context;
mod copy;
mod door;
mod driver;
mod endings;
mod event;
mod exported;
mod ipc;
mod machine;
mod mapping;
mod names;
mod nvml;
mod pack;
mod peer;
mod pointer;
mod pool;
mod process;
mod runtime;
mod space;
mod status;
mod stream;
mod streams;
mod vmm;

pub use door::{Door, door};
pub use machine::{PCI_ID, PCI_SUBSYSTEM, load as machine};
pub use nvml::DRIVER_VERSION;
