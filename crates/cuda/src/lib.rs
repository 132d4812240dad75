//! CUDA's libraries over the software GPU: `libcuda.so.1`, `libcudart.so.12` and `.13`,
//! `libnvidia-ml.so.1`.
//!
//! ```text
//!   program ---> libpeerdma-cuda.so      every name of CUDA's libraries, and nothing behind them (crate cudalib)
//!                    |  Resolver
//!                    v
//!                driver | runtime | nvml      C in, C out: numbers and pointers (c), status (status), panics (boundary)
//!                    |
//!                process      what one process has from cuInit on
//!                 |- space        the address space: one arena without permissions, regions in it
//!                 |- context      the GPU that a thread works on
//!                 |- stream, event, worker     work in order
//!                 |- vmm, pool    memory and addresses apart; memory in the order of streams
//!                 |               operations on a process are above it: begin, endings, streams,
//!                 |               mapping
//!                 |- memory  ---> gpu::Bo      the bytes; export as a dma-buf
//!                 `- machine ---> gpu::Machine names, addresses, UUIDs of the GPUs
//! ```
//!
//! The GPU itself is in crate `gpu`: this crate keeps no state of a GPU, and nothing computes. A
//! device pointer is an address in an arena that is mapped without access; a map of regions gives
//! the memory behind it, and `umem` copies. A NIC never calls this crate: it gets a dma-buf, or,
//! with `peermem`, asks the peer memory client that this crate registers.
//!
//! Loading a library does nothing. `cuInit` reads the configuration and reserves addresses; a GPU
//! is opened when it is first needed, and a thread starts when a stream has to wait. A forked child
//! gets `CUDA_ERROR_NOT_INITIALIZED`.
//!
//! Each function behaves as CUDA's public documentation and headers say; `docs/CUDA.md` lists what
//! is not supported.
#![allow(unsafe_code, reason = "this is the boundary to C")]

mod allocate;
mod attribute;
mod begin;
mod boundary;
mod c;
mod context;
mod copy;
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
mod resolver;
mod runtime;
mod space;
mod status;
mod stream;
mod streams;
mod vmm;

pub use machine::{PCI_ID, PCI_SUBSYSTEM, load as machine};
pub use nvml::DRIVER_VERSION;
pub use resolver::{Resolver, resolver};
