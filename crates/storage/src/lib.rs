//! Reads and writes files and block devices straight into and from device memory.
//!
//! A [`Client`] is the storage controller as a client of peer-to-peer DMA: a device on the bus that
//! imports dma-bufs. A [`File`] is what it reads and writes, bypassing the page cache where the
//! file system allows it (`O_DIRECT`). The kernel moves the bytes, by io_uring with buffers that
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
//! * A client is a dynamic importer: after the exporter moves a buffer, it maps it again before the
//!   next request. A request in flight holds the buffer's [gate](dmabuf::gate), so a move or a
//!   revocation waits until the kernel is done with the pages, as it would wait for a DMA engine. A
//!   request is at most [`MAX_TRANSFER`] long.
//! * `O_DIRECT` has rules of alignment, which the kernel reports (`STATX_DIOALIGN`) and a refusal
//!   repeats. A read at the end of a file may be short; a write is whole or an error.
//! * A dma-buf of the kernel has no pages that direct I/O can use (its mappings are of page frames
//!   only), and no address on this process's bus: its bytes go through a buffer in ordinary
//!   memory, and are counted ([`Stats::bounced`]).
//!
//! Nothing here knows NVMe or RDMA. Only `sys` has unsafe code; it holds the memory and the file of
//! each request until the kernel is done with them.
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
