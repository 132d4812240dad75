//! An NVMe-oF target over RDMA, and a small host, on the public Rust API.
//!
//! ```text
//!   host                                 target
//!   Host --- connection 0: admin queue ----- Session --- Controller --- Subsystem
//!     |                                                                    namespaces: files
//!     +----- connection n: I/O queue ------- Session --+-- Memory: placed by the orchestrator
//!               capsules, by SEND                      +-- storage: the disk
//!               data, by WRITE and READ of the target
//! ```
//!
//! [`wire`] has the formats of the target's messages, and [`target`] what it does with them, with
//! one thread for each connection. Data pass through memory that an orchestrator places near the
//! NIC and the disk: of the host, of the disk's controller, or of a GPU; the CPU touches none of
//! them. docs/NVMEOF.md says how to run both programs, and what is missing.
#![forbid(unsafe_code)]

pub mod host;
pub mod target;
pub mod wire;
