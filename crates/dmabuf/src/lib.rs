//! Buffers that drivers and processes share by file descriptor: dma-buf, with Linux's rules, in user space.
//!
//! A [`DmaBuf`] is an fd, a size, and an exporter who owns the pages. Devices attach to it as importers, and a device
//! never learns more than the addresses it may use.
//!
//! ```text
//!     exporter (GPU, memory)                         importer (NIC, ...)
//!     trait Exporter, Pinning                        trait Importer
//!            |   attach, pin, map, ...                      |   attach -> Attachment
//!            +----------------------->  DmaBuf  <-----------+   pin    -> PinGuard
//!            |   invalidate_mappings, revoke  |             |   map    -> MapGuard
//!            +--------------------------------|------------>+
//!                                             | fd
//!                                             v
//!                 another process: import(fd);   the CPU: map() -> Mapping, begin_cpu_access()
//! ```
//!
//! The rules are in the types. What must happen under the reservation lock takes a [`ResvGuard`]; what must not, takes
//! none. What must be undone is a guard whose drop undoes it: at once, or, when somebody holds the lock at that moment,
//! just before that holder lets go. How an importer deals with memory that moves is its [`ImporterClass`]. An exporter
//! that cannot pin has no unpin either ([`Pinning`]).
//!
//! Files are of two kinds. A dma-buf of the kernel (udmabuf, dma-heap, DRM) is mapped and its CPU accesses are bracketed
//! by `DMA_BUF_IOCTL_SYNC`. Where the kernel has no exporter for us, a memfd named `peerdma:NAME` and sealed against
//! shrinking stands in. Any other file is not a dma-buf, as on Linux.
//!
//! What is not here: anything about RDMA or GPUs; fences; buffers whose exporter lives in another process (such an fd is
//! imported as the plain memory it is).
//!
//! ```
//! use dmabuf::{Direction, DmaBuf};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let frame = DmaBuf::export(1 << 20, "frame")?;
//! let same = DmaBuf::import(frame.fd())?;
//! assert!(same.is_same(&frame));
//!
//! let mapping = same.map(4096, 100)?;
//! let access = mapping.begin_cpu_access(Direction::Bidirectional)?;
//! // Copy through `mapping.addr()` here; `umem` does it without ever making a slice.
//! access.end()?;
//! # Ok(())
//! # }
//! ```
#![deny(unsafe_code)]

mod attachment;
mod buf;
mod exporter;
mod importer;
mod mapping;
mod resv;
mod sys;
mod system;

pub use attachment::{
    AttachError, Attachment, AttachmentInfo, MapError, MapGuard, PinError, PinGuard,
};
pub use buf::{DmaBuf, ExportError, ImportError, MEMFD_PREFIX, VmapGuard};
pub use exporter::{
    Direction, Exporter, ExporterError, ExporterErrorKind, IosysMap, Pinning, SgEntry, SgTable,
};
pub use importer::{Importer, ImporterClass};
pub use mapping::{CpuAccess, Mapping, MmapError};
pub use resv::{Resv, ResvGuard};
