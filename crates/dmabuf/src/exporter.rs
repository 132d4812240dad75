//! The side that owns the memory.

use std::fmt;

use rustix::io::Errno;

use crate::attachment::AttachmentInfo;
use crate::resv::ResvGuard;

/// Who owns the pages of a [`DmaBuf`](crate::DmaBuf) and decides where they are.
///
/// Which lock an operation runs under is in its signature (`docs/semantics.md` 1.5): one that takes a [`ResvGuard`] is
/// called with the buffer's reservation lock held and must not take it again; one that takes none is called without it
/// and may take it.
///
/// Attach and detach come in pairs, so do pin and unpin, map and unmap. The framework never maps an attachment after
/// its detach, and never lets the exporter go while an attachment exists.
#[doc(alias = "dma_buf_ops")]
pub trait Exporter: Send + Sync {
    /// The exporter's name, as in `exp_name` of fdinfo.
    fn name(&self) -> &str;

    /// A device wants to use the buffer. May refuse, and may take peer-to-peer away
    /// ([`AttachmentInfo::clear_peer2peer`]) when the device could not reach the memory where it is. Runs before the
    /// attachment is on the buffer's list.
    ///
    /// # Errors
    ///
    /// Handed to the importer unchanged.
    fn attach(&self, attachment: &mut AttachmentInfo) -> Result<(), ExporterError> {
        let _ = attachment;
        Ok(())
    }

    /// The device is done.
    fn detach(&self, attachment: &AttachmentInfo) {
        let _ = attachment;
    }

    /// Pinning, if the buffer can move at all. An exporter without it never moves its pages, and pinning succeeds.
    fn pinning(&self) -> Option<&dyn Pinning> {
        None
    }

    /// Gives the addresses under which the device reaches the memory. They stay valid until
    /// [`unmap_dma_buf`](Self::unmap_dma_buf) or, for a dynamic importer, until the next invalidation.
    ///
    /// # Errors
    ///
    /// Handed to the importer unchanged; a revoked buffer answers here.
    fn map_dma_buf(
        &self,
        resv: &ResvGuard<'_>,
        attachment: &AttachmentInfo,
        direction: Direction,
    ) -> Result<SgTable, ExporterError>;

    /// Takes the addresses back.
    fn unmap_dma_buf(
        &self,
        resv: &ResvGuard<'_>,
        attachment: &AttachmentInfo,
        table: SgTable,
        direction: Direction,
    );

    /// The last handle is gone.
    fn release(&self) {}

    /// Whether the CPU and devices always see the same bytes, so that CPU access needs no brackets. Saying no costs a
    /// call at each access; saying yes wrongly loses data.
    fn is_coherent(&self) -> bool {
        false
    }

    /// The CPU is about to access the memory: make it coherent.
    ///
    /// # Errors
    ///
    /// Handed to the caller unchanged.
    fn begin_cpu_access(&self, direction: Direction) -> Result<(), ExporterError> {
        let _ = direction;
        Ok(())
    }

    /// The CPU is done.
    ///
    /// # Errors
    ///
    /// Handed to the caller unchanged.
    fn end_cpu_access(&self, direction: Direction) -> Result<(), ExporterError> {
        let _ = direction;
        Ok(())
    }

    /// Whether user space may map `len` bytes at `offset` of the buffer's file.
    ///
    /// # Errors
    ///
    /// The default: an exporter without this operation cannot be mapped, [`ExporterErrorKind::Invalid`].
    fn mmap(&self, offset: u64, len: u64) -> Result<(), ExporterError> {
        let _ = (offset, len);
        Err(ExporterError::new(
            ExporterErrorKind::Invalid,
            format!("{} has no mmap operation: the CPU cannot map its buffers", self.name()),
        ))
    }

    /// Maps the whole buffer for the exporter's side of the CPU. Called once for any number of users.
    ///
    /// # Errors
    ///
    /// The default: an exporter without this operation, [`ExporterErrorKind::Invalid`].
    fn vmap(&self, resv: &ResvGuard<'_>) -> Result<IosysMap, ExporterError> {
        let _ = resv;
        Err(ExporterError::new(
            ExporterErrorKind::Invalid,
            format!("{} has no vmap operation", self.name()),
        ))
    }

    /// The last user of [`vmap`](Self::vmap) is gone.
    fn vunmap(&self, resv: &ResvGuard<'_>, map: IosysMap) {
        let _ = (resv, map);
    }
}

/// The pair of operations of an exporter whose buffers can move. Being one trait, neither can exist without the other.
pub trait Pinning {
    /// Puts the buffer somewhere and keeps it there until [`unpin`](Self::unpin). The exporter decides where.
    ///
    /// # Errors
    ///
    /// Handed to the importer unchanged.
    fn pin(&self, resv: &ResvGuard<'_>, attachment: &AttachmentInfo) -> Result<(), ExporterError>;

    /// The buffer may move again, as far as this attachment goes.
    fn unpin(&self, resv: &ResvGuard<'_>, attachment: &AttachmentInfo);
}

/// Which way data moves, seen from memory: a device that writes memory needs [`FromDevice`](Self::FromDevice).
#[doc(alias = "dma_data_direction")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "there are no other directions")]
pub enum Direction {
    /// The device (or, for CPU access, somebody else) reads what the CPU wrote.
    ToDevice,
    /// The CPU reads what the device wrote.
    FromDevice,
    /// Both.
    Bidirectional,
}

/// Where a device finds the buffer: addresses on its bus and lengths. There are no pages in it, because an importer may
/// not look at them.
#[doc(alias = "sg_table")]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "exporters build it")]
pub struct SgTable {
    /// In the order of the buffer's bytes.
    pub entries: Vec<SgEntry>,
}

/// One contiguous stretch of an [`SgTable`].
#[doc(alias = "scatterlist")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "exporters build it")]
pub struct SgEntry {
    /// Bus address.
    pub addr: u64,
    /// Length in bytes.
    pub len: u64,
}

impl SgTable {
    /// Length in bytes of all entries.
    pub fn len(&self) -> u64 {
        self.entries.iter().map(|entry| entry.len).sum()
    }

    /// Whether there is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Where the exporter's CPU side finds the buffer.
#[doc(alias = "iosys_map")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "memory is one or the other")]
pub enum IosysMap {
    /// Ordinary memory.
    System(usize),
    /// Memory of a device, to be accessed with care for its width and order.
    Io(usize),
}

/// Why an exporter said no.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
#[non_exhaustive]
pub struct ExporterError {
    /// The kind, which decides the errno a C program sees.
    pub kind: ExporterErrorKind,
    /// Who refused what, by which rule.
    pub what: String,
}

impl ExporterError {
    /// A refusal in words.
    pub fn new(kind: ExporterErrorKind, what: impl Into<String>) -> Self {
        Self { kind, what: what.into() }
    }
}

/// Kinds of refusal, each one errno of the kernel's exporters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ExporterErrorKind {
    /// The operation or combination does not exist (EINVAL).
    Invalid,
    /// Placement cannot suit this device, or it is in use (EBUSY).
    Busy,
    /// This importer class or access way is not served (EOPNOTSUPP).
    NotSupported,
    /// The memory is gone: revoked, or its device left (ENODEV).
    NoDevice,
    /// The device may not reach the memory directly (EPERM).
    NotPermitted,
    /// No memory of the needed kind (ENOMEM).
    NoMemory,
    /// What the kernel answered for a real dma-buf.
    Kernel(Errno),
}

impl fmt::Display for ExporterErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid => f.write_str("invalid"),
            Self::Busy => f.write_str("busy"),
            Self::NotSupported => f.write_str("not supported"),
            Self::NoDevice => f.write_str("no device"),
            Self::NotPermitted => f.write_str("not permitted"),
            Self::NoMemory => f.write_str("no memory"),
            Self::Kernel(errno) => errno.fmt(f),
        }
    }
}
