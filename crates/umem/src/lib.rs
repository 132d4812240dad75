//! Every access to foreign memory: memory that a program registered, that a peer shares with us, or
//! that another process owns.
//!
//! ```text
//!                     +--------------------- Umem ----------------------+
//!   device --------> |  user(addr)       host(HostBuf)    dmabuf(Mapping) |   read, write, copy, atomics
//!                     +------|-----------------|----------------|--------+
//!                            v                 v                v
//!                       fault guard       cannot vanish    SYNC brackets, guard
//!
//!   rings ---------> Foreign            pointer + length of sealed shared memory
//!   another process: RemoteProcess      process_vm_readv / process_vm_writev, in pieces
//! ```
//!
//! Three rules hold everywhere.
//!
//! * **Never a slice.** Others change this memory while we look. It is a pointer and a length;
//!   bytes are copied in and out, words are atomics.
//! * **Never a signal.** A page that vanished under a registered region makes an access fail with a
//!   [`Fault`] that names the address. [`guard`] explains how, and where the limits are.
//! * **The last byte last.** A write makes the naturally aligned word that holds its last byte
//!   visible after everything else, because RDMA programs poll on it. This holds for every way of
//!   copying here, also between processes.
//!
//! This crate does not know keys, permissions or protection domains (a region checks them before it
//! comes here), nor any protocol. Registered memory is an address range and not a set of pinned
//! pages; memory that is faulted in on demand and revoked by invalidations would be another kind of
//! [`Umem`] behind the same methods.
//!
//! ```
//! use umem::{Fault, HostBuf, Umem};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let buffer = HostBuf::anonymous(4096)?;
//! let memory = Umem::host(&buffer);
//! memory.write(0, b"hello, peer")?;
//! assert_eq!(memory.fetch_add(16, 1)?, 0);
//!
//! let mut word = [0; 5];
//! memory.read(0, &mut word)?;
//! assert_eq!(&word, b"hello");
//! assert!(matches!(memory.write(4090, b"too long"), Err(Fault::OutOfRange { .. })));
//! # Ok(())
//! # }
//! ```
//!
//! Modules with unsafe code say so at the top; each is about one kind of danger.

pub mod fault;
pub mod foreign;
pub mod guard;
mod heap;
pub mod host;
pub mod mark;
pub mod mem;
mod pieces;
pub mod remote;
mod resident;
pub mod ways;

pub use fault::{Fault, Touch};
pub use foreign::Foreign;
pub use host::{HostBuf, HostBufError};
pub use mark::{Mark, MarkError, PeerMark};
pub use mem::{Backing, CpuAccess, Umem, crc32_pieces, sums_pieces};
pub use pieces::Pieces;
pub use remote::{LocalPart, Refused, RemoteFault, RemotePart, RemoteProcess};
