//! The side that owns the memory.

use std::fmt;
use std::sync::Arc;

use descriptors::Known;
use rustix::io::Errno;

use crate::attached::AttachmentInfo;
use crate::gate::{ClaimError, Gate, GateSlot};
use crate::resv::ResvGuard;
use crate::zap::Zap;

/// The owner of the pages of a [`DmaBuf`](crate::DmaBuf), which decides where they are.
///
/// Which lock an operation runs under is in its signature (`docs/semantics.md` 1.5): one that takes
/// a [`ResvGuard`] is called with the buffer's reservation lock held and must not take it again;
/// one that takes none is called without it and may take it.
///
/// Attach and detach come in pairs, so do pin and unpin, map and unmap. The framework never maps an
/// attachment after its detach, and never lets the exporter go while an attachment exists.
#[doc(alias = "dma_buf_ops")]
pub trait Exporter: Send + Sync {
    /// The exporter's name, as in `exp_name` of fdinfo.
    fn name(&self) -> &str;

    /// A device wants to use the buffer. May refuse, and may take peer-to-peer away
    /// ([`AttachmentInfo::clear_peer2peer`]) when the device could not reach the memory where it
    /// is. Runs before the attachment is on the buffer's list.
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

    /// Pinning, if the buffer can move at all. An exporter without it never moves its pages, and
    /// pinning succeeds.
    fn pinning(&self) -> Option<&dyn Pinning> {
        None
    }

    /// Gives the addresses under which the device reaches the memory. They stay valid until
    /// [`unmap_dma_buf`](Self::unmap_dma_buf) or, for a dynamic importer, until the next
    /// invalidation.
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

    /// Takes the addresses back. The default is for an exporter that counts no maps.
    fn unmap_dma_buf(
        &self,
        resv: &ResvGuard<'_>,
        attachment: &AttachmentInfo,
        table: SgTable,
        direction: Direction,
    ) {
        let _ = (resv, attachment, table, direction);
    }

    /// The gate that every access to the buffer passes. An exporter that moves or revokes memory
    /// under importers which are not asked first has one, closes it before it changes anything, and
    /// puts its epoch into each table it gives. The same gate for the buffer's life.
    fn gate(&self) -> Option<&Gate> {
        None
    }

    /// How accessors enter the gate. Only an exporter that answers for one of another process has
    /// its own way.
    ///
    /// # Errors
    ///
    /// [`ClaimError`].
    fn gate_slot(&self) -> Result<Option<GateSlot>, ClaimError> {
        self.gate().map(Gate::slot).transpose()
    }

    /// The process that the exporter lives in, if that is not this one; 0 if it has no number here.
    fn process(&self) -> Option<u32> {
        None
    }

    /// Whether importers of other processes are served. Read at
    /// [`export_with`](crate::DmaBuf::export_with), and the same for the buffer's life. An exporter
    /// that returns more than [`Sharing::Process`] gives every entry of its tables a
    /// [backing](SgEntry::backing) in whole pages, and has a [`gate`](Self::gate) if it ever moves
    /// or revokes memory.
    fn sharing(&self) -> Sharing {
        Sharing::Process
    }

    /// The last handle is gone.
    fn release(&self) {}

    /// Why the memory was taken away, for messages. `None` if it was not, or if this is not known
    /// here.
    fn why_gone(&self) -> Option<String> {
        None
    }

    /// Whether the CPU and devices always see the same bytes, so that CPU access needs no brackets.
    /// Saying no costs a call at each access; saying yes wrongly loses data.
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

    /// Whether the buffer's bytes are those of its file, so that the file itself can be mapped.
    /// Said at [`export_with`](crate::DmaBuf::export_with), and the same for the buffer's life.
    ///
    /// If the buffer's bytes are elsewhere, the file has a size and no bytes: a program that maps,
    /// reads or writes it without this library is refused, and never sees zeros.
    fn is_in_file(&self) -> bool {
        false
    }

    /// Whether user space may map `len` bytes at `offset` of the buffer's file.
    ///
    /// # Errors
    ///
    /// The default: an exporter without this operation cannot be mapped,
    /// [`ExporterErrorKind::Invalid`].
    fn mmap(&self, offset: u64, len: u64) -> Result<(), ExporterError> {
        let _ = (offset, len);
        Err(ExporterError::new(
            ExporterErrorKind::Invalid,
            format!("{} has no mmap operation: the CPU cannot map its buffers", self.name()),
        ))
    }

    /// For an exporter whose bytes are not in the buffer's own file: where the CPU maps `len` bytes
    /// at `offset` instead, with what keeps them there while they are mapped. Asked before
    /// [`mmap`](Self::mmap); also for another process, if that is [served](Self::sharing). Runs
    /// without the reservation lock.
    ///
    /// # Errors
    ///
    /// Handed to the caller unchanged.
    fn mmap_backing(&self, offset: u64, len: u64) -> Result<Option<MmapBacking>, ExporterError> {
        let _ = (offset, len);
        Ok(None)
    }

    /// Maps the whole buffer for the exporter's side of the CPU. Called once for any number of
    /// users.
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

/// The pair of operations of an exporter whose buffers can move. Being one trait, neither can exist
/// without the other.
pub trait Pinning {
    /// Puts the buffer somewhere and keeps it there until [`unpin`](Self::unpin). The exporter
    /// decides where.
    ///
    /// # Errors
    ///
    /// Handed to the importer unchanged.
    fn pin(&self, resv: &ResvGuard<'_>, attachment: &AttachmentInfo) -> Result<(), ExporterError>;

    /// The buffer may move again, as far as this attachment goes.
    fn unpin(&self, resv: &ResvGuard<'_>, attachment: &AttachmentInfo);
}

/// Which way data moves, seen from memory: a device that writes memory needs
/// [`FromDevice`](Self::FromDevice).
#[doc(alias = "dma_data_direction")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "there are no other directions")]
pub enum Direction {
    /// The device (or, for CPU access, another user) reads what the CPU wrote.
    ToDevice,
    /// The CPU reads what the device wrote.
    FromDevice,
    /// Both.
    Bidirectional,
}

/// Where a device finds the buffer: addresses on its bus and lengths. There are no pages in it,
/// because an importer may not look at them.
#[doc(alias = "sg_table")]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "exporters build it")]
pub struct SgTable {
    /// In the order of the buffer's bytes.
    pub entries: Vec<SgEntry>,
    /// The epoch of the exporter's [`gate`](Exporter::gate) in which these addresses hold. An
    /// access enters the gate with it. `None`: the addresses hold until the table is given back.
    pub epoch: Option<u64>,
    /// Which way the device's accesses go.
    pub map_type: Reach,
}

/// One contiguous stretch of an [`SgTable`].
#[doc(alias = "scatterlist")]
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "exporters build it")]
pub struct SgEntry {
    /// Bus address.
    pub addr: u64,
    /// Length in bytes.
    pub len: u64,
    /// The file that holds these bytes, if there is one that another process may map too. Never for
    /// an importer to reach memory by: it is how an address on this process's bus becomes one on
    /// another's.
    pub backing: Option<SgBacking>,
}

/// Which bytes of which file a stretch is.
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_structs, reason = "exporters build it")]
pub struct SgBacking {
    /// The file: a memfd of the exporter's, sealed against shrinking.
    pub file: Arc<Known>,
    /// Where the stretch begins in it.
    pub offset: u64,
}

/// What the CPU maps instead of the buffer's own file.
#[expect(clippy::exhaustive_structs, reason = "exporters build it")]
pub struct MmapBacking {
    /// The file, and where in it the buffer's first byte is: at a whole page.
    pub backing: SgBacking,
    /// Dropped when the bytes are no longer mapped.
    pub hold: Box<dyn std::any::Any + Send + Sync>,
    /// The exporter takes the mapping away by this, if it ever does: the code that maps it
    /// specifies how.
    pub zap: Option<Zap>,
}

/// How accesses of a device reach the memory (`docs/semantics.md` 4.2): what is left of the
/// kernel's `pci_p2pdma_map_type` once they do, and that the memory is the host's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_enums, reason = "there are no other ways")]
pub enum Reach {
    /// The memory is the host's.
    #[default]
    System,
    /// To another device, by its address on the bus that both share.
    BusAddress,
    /// To another device, through the host bridge.
    ThroughHostBridge,
}

/// Whom an exporter serves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "there are no other ways to end")]
pub enum Sharing {
    /// Importers of its own process. Another that receives the fd finds the pages of the file.
    #[default]
    Process,
    /// Importers of any process of this user. When the exporter's process dies, the memory stays
    /// where it is for the processes that have it mapped, and no longer moves.
    HostKept,
    /// Importers of any process of this user. When the exporter's process dies, the memory is
    /// revoked.
    HostRevoked,
}

impl SgEntry {
    /// A stretch that has no file behind it.
    pub fn new(addr: u64, len: u64) -> Self {
        Self { addr, len, backing: None }
    }
}

/// Equal are the same stretches of the same file object.
impl PartialEq for SgBacking {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.file, &other.file) && self.offset == other.offset
    }
}

impl Eq for SgBacking {}

impl fmt::Display for Reach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::System => "system memory",
            Self::BusAddress => "bus address",
            Self::ThroughHostBridge => "through the host bridge",
        })
    }
}

impl SgTable {
    /// A table of memory that stays where it is.
    pub fn of_system(entries: Vec<SgEntry>) -> Self {
        Self { entries, epoch: None, map_type: Reach::System }
    }

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

/// Why an exporter refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
#[non_exhaustive]
pub struct ExporterError {
    /// The kind, which decides the errno a C program sees.
    pub kind: ExporterErrorKind,
    /// Which part refused what, by which rule.
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
    /// The same by a number that the kernel keeps to itself, and that reaches programs all the same
    /// (ENOTSUPP, 524: "Unknown error 524").
    Unsupported,
    /// The memory is gone: revoked, or its device left (ENODEV).
    NoDevice,
    /// The device may not reach the memory directly (EPERM).
    NotPermitted,
    /// No memory of the needed kind (ENOMEM).
    NoMemory,
    /// A limit on memory of this kind is reached; it may work later (EAGAIN).
    Again,
    /// The kernel's error for a real dma-buf.
    Kernel(Errno),
}

impl fmt::Display for ExporterErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Invalid => f.write_str("invalid"),
            Self::Busy => f.write_str("busy"),
            Self::NotSupported => f.write_str("not supported"),
            Self::Unsupported => f.write_str("not supported (524)"),
            Self::NoDevice => f.write_str("no device"),
            Self::NotPermitted => f.write_str("not permitted"),
            Self::NoMemory => f.write_str("no memory"),
            Self::Again => f.write_str("try again"),
            Self::Kernel(errno) => errno.fmt(f),
        }
    }
}
