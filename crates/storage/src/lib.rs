//! Files and block devices, read and written straight into memory of devices.
//!
//! A [`Client`] is the storage controller as a client of peer-to-peer DMA: a device on the bus that
//! imports dma-bufs. A [`File`] is what it reads and writes, around the page cache where the file
//! system lets it (`O_DIRECT`). What moves the bytes is the kernel, by io_uring with buffers that
//! are registered once, or by `pread` and `pwrite` where io_uring is forbidden or missing.
//!
//! ```text
//!    File (O_DIRECT)          Client "nvme0" at 0000:03:00.0           DmaBuf of a GPU, a NIC, memory
//!         |                       |  attach  ------------------------------->  |  exporter
//!         |                       |  <--- map: addresses, epoch of the gate,   |
//!         |                    Buffer                                          |
//!         +------- Queue: read, write ----- io_uring ----> the buffer's pages, no copy in between
//! ```
//!
//! * A client is a dynamic importer: what the exporter moves is mapped again before the next
//!   request. A request that is under way holds the buffer's [gate](dmabuf::gate), so that a move
//!   or a revocation waits for the kernel to be done with the pages, as it would for a DMA engine.
//!   It is at most [`MAX_TRANSFER`] long.
//! * `O_DIRECT` has rules of alignment, which the kernel tells (`STATX_DIOALIGN`) and a refusal
//!   repeats. What is read at the end of a file may be short; what is written is whole or an error.
//! * A dma-buf of the kernel has no pages that direct I/O can take (its mappings are of page frames
//!   alone), and no address on this process's bus: its bytes go through a buffer in ordinary
//!   memory, which is counted ([`Stats::bounced`]).
//!
//! What is not here: anything about NVMe or RDMA. Unsafe code is in `sys` alone, which holds the
//! memory and the file of each request until the kernel is done with them.
//!
//! ```
//! use dmabuf::DmaBuf;
//! use storage::{Client, ClientConfig, File, OpenOptions};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let disk = Client::new(&ClientConfig::default())?;
//! let frame = disk.attach(&DmaBuf::export(1 << 20, "frame")?)?;
//! let program = File::open(std::env::current_exe()?, &OpenOptions::default())?;
//! let got = disk.read(&program, 0, &frame, 0, 1 << 20)?;
//! assert_eq!(got, program.size()?.min(1 << 20));
//! # Ok(())
//! # }
//! ```
#![deny(unsafe_code)]

mod align;
mod buffer;
mod client;
mod engine;
mod error;
mod file;
mod flight;
mod queue;
mod sys;

pub use crate::engine::{ClientConfig, Engine, Stats};
pub use align::Alignment;
pub use buffer::Buffer;
pub use client::Client;
pub use error::{Error, Op, Result};
pub use file::{Direct, File, OpenOptions};
pub use queue::{Completion, MAX_TRANSFER, Queue};
