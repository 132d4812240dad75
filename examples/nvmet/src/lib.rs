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
//! Of the target, [`wire`] has what travels, and [`target`] what is done about it: one thread for
//! each connection. Data pass through memory that an orchestrator places near the NIC and the disk:
//! of the host, of the disk's controller, or of a GPU; the CPU touches none of them. docs/NVMEOF.md
//! tells how to run both programs, and what is not here.
#![forbid(unsafe_code)]

pub mod host;
pub mod target;
pub mod wire;
