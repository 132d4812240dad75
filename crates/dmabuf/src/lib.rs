//! Buffers that drivers and processes share by file descriptor: dma-buf, with Linux's rules, in user space.
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
