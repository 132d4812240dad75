//! umem.

pub mod fault;
pub mod foreign;
pub mod guard;
pub mod host;
pub mod mem;
pub mod remote;

pub use fault::{Fault, Touch};
pub use foreign::Foreign;
pub use host::{HostBuf, HostBufError};
pub use mem::{Backing, CpuAccess, Umem};
pub use remote::{LocalPart, Refused, RemoteFault, RemoteProcess};
