//! Buffers that drivers and processes share by file descriptor: dma-buf, with Linux's rules, in
//! user space.
//!
//! A [`DmaBuf`] is an fd, a size, and an exporter that owns the pages. Devices attach to it as
//! importers, and a device never learns more than the addresses it may use.
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
//! The rules are in the types. Operations that must run under the reservation lock take a
//! [`ResvGuard`]; operations that must run without it take none. Anything that must be undone is a
//! guard, and its drop undoes it: at once, or, if the lock is held at that moment, just before its
//! holder releases it. How an importer deals with memory that moves is its [`ImporterClass`]. An
//! exporter that cannot pin also has no unpin ([`Pinning`]).
//!
//! Files are of two kinds. A dma-buf of the kernel (udmabuf, dma-heap, DRM) is mapped, and CPU
//! accesses to it are bracketed by `DMA_BUF_IOCTL_SYNC`. Where the kernel has no exporter for us, a
//! memfd takes its place, named `peerdma:NAME` and sealed against shrinking. Any other file is not
//! a dma-buf, as on Linux. [`DmaBuf::export`] makes a real dma-buf where it can;
//! [`DmaBuf::export_from`] makes what the caller chooses ([`Memory`]).
//!
//! Work on the memory is represented by [`Fence`]s in the buffer's [`Resv`], in four classes
//! ([`Usage`]): moves, writes, reads, and work that nothing waits for implicitly. They can be
//! passed to other processes as [`SyncFile`]s, and [`DmaBuf::poll`] checks them. A [`Timeline`]
//! makes and signals them. An [`AcquireCtx`] takes several reservation locks.
//!
//! Two things protect memory that moves. Its [`Gate`] lets an access in only while the addresses of
//! its [`SgTable`] are valid, and stops all accesses, in all processes, without their cooperation
//! ([`gate`]). Its address is in a [`BusWindow`], where a retired address faults and is remembered
//! ([`window::describe`]).
//!
//! A buffer of an exporter that permits it ([`Sharing`]) can be imported by other processes of the
//! same user, with the exporter's rules: its memfd is named `peerdma:NAME@TOKEN.ID`, and operations
//! are requests to the exporting process ([`share`]). A file with such a name for which no exporter
//! answers is not a dma-buf. A forked child is another process: the gates, windows and connections
//! that it inherited are dead, and importing again gives it its own.
//!
//! [`bufinfo`] lists the buffers of this process, [`host_buffers`] those of all processes that it
//! may inspect. `docs/DMABUF.md` tells which rules of Linux are kept, and where, and which are not.
//!
//! Code that has an address of the memory instead of a file asks the memory's driver ([`peer`]).
//!
//! Nothing here knows RDMA or GPUs.
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

mod attached;
mod attachment;
mod bar;
mod buf;
mod export;
mod exporter;
mod fence;
mod fork;
pub mod gate;
mod given;
mod host;
mod import;
mod importer;
mod info;
mod limit;
mod mapping;
pub mod peer;
mod poll;
mod reach;
mod remote;
mod resv;
mod revoke;
pub mod share;
mod shared;
mod sync_file;
mod sys;
mod system;
mod vmap;
mod weak;
pub mod window;
mod zap;

pub use attached::{AttachmentInfo, DeviceAddr, ImporterClass};
pub use attachment::{AttachError, Attachment, MapError, MapGuard, PinError, PinGuard};
pub use bar::{BarBuf, BarError, BarRange};
pub use buf::{DmaBuf, MEMFD_PREFIX};
pub use export::{ExportError, Memory};
pub use exporter::{
    Direction, Exporter, ExporterError, ExporterErrorKind, IosysMap, MmapBacking, Pinning, Reach,
    SgBacking, SgEntry, SgTable, Sharing,
};
pub use fence::{
    AlreadySignaled, ArrayError, CallbackId, ChainError, Fence, FenceArray, FenceChain,
    FenceStatus, TimedOut, Timeline,
};
pub use fork::watch as watch_forks;
pub use gate::{Closed, Gate, GateError, GateGuard, GateSlot, Stale};
pub use given::{give, sweep};
pub use host::{Holder, HostBuf, HostBufList, export_token, host_buffers, open_exports};
pub use import::ImportError;
pub use importer::Importer;
pub use info::{BufInfo, BufInfoList, NameError, SeekError, bufinfo};
pub use limit::in_words;
pub use mapping::{CpuAccess, Mapping, MmapError};
pub use poll::{PollEvents, PollListener};
pub use reach::Provider;
pub use remote::RwFlags;
pub use resv::{
    AcquireCtx, AddFenceError, LockError, ReserveError, Resv, ResvGuard, SignallingSection, Usage,
};
pub use revoke::StillInUse;
pub use sync_file::{SyncFenceInfo, SyncFile, SyncFileError, SyncFileInfo};
pub use sys::zap;
pub use vmap::VmapGuard;
pub use weak::WeakDmaBuf;
pub use window::{BusWindow, Iommu, Placement, Retired};
pub use zap::Zap;
