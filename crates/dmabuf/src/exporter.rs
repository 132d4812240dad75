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
/// The signature of an operation tells under which lock it runs (`docs/semantics.md` 1.5): an
/// operation with a [`ResvGuard`] is called with the buffer's reservation lock held and must not
/// take it again; an operation without one is called without the lock and may take it.
///
/// Attach and detach come in pairs, and so do pin and unpin, map and unmap. The framework never
/// maps an attachment after its detach, and never drops the exporter while an attachment exists.
#[doc(alias = "dma_buf_ops")]
pub trait Exporter: Send + Sync {
    /// The exporter's name, as in `exp_name` of fdinfo.
    fn name(&self) -> &str;

    /// A device wants to use the buffer. The exporter may refuse, and may take peer-to-peer away
    /// ([`AttachmentInfo::clear_peer2peer`]) if the device could not reach the memory where it is.
    /// Runs before the attachment is on the buffer's list.
    ///
    /// # Errors
    ///
    /// Passed to the importer unchanged.
    fn attach(&self, attachment: &mut AttachmentInfo) -> Result<(), ExporterError> {
        let _ = attachment;
        Ok(())
    }

    /// The device is done.
    fn detach(&self, attachment: &AttachmentInfo) {
        let _ = attachment;
    }

    /// The pin operations, if the buffer can move at all. An exporter without them never moves its
    /// pages, and every pin succeeds.
    fn pinning(&self) -> Option<&dyn Pinning> {
        None
    }

    /// Returns the addresses by which the device reaches the memory. They stay valid until
    /// [`unmap_dma_buf`](Self::unmap_dma_buf) or, for a dynamic importer, until the next
    /// invalidation.
    ///
    /// # Errors
    ///
    /// Passed to the importer unchanged; a revoked buffer refuses here.
    fn map_dma_buf(
        &self,
        resv: &ResvGuard<'_>,
        attachment: &AttachmentInfo,
        direction: Direction,
    ) -> Result<SgTable, ExporterError>;

    /// Takes the addresses back. The default is for an exporter that does not count maps.
    fn unmap_dma_buf(
        &self,
        resv: &ResvGuard<'_>,
        attachment: &AttachmentInfo,
        table: SgTable,
        direction: Direction,
    ) {
        let _ = (resv, attachment, table, direction);
    }

    /// The gate that every access to the buffer enters. An exporter needs one if it moves or
    /// revokes memory without asking its importers first; it closes the gate before it changes
    /// anything, and puts the gate's epoch into each table. A buffer keeps its gate for life.
    fn gate(&self) -> Option<&Gate> {
        None
    }

    /// How accesses enter the gate. Only an exporter that stands for one in another process
    /// overrides this.
    ///
    /// # Errors
    ///
    /// [`ClaimError`].
    fn gate_slot(&self) -> Result<Option<GateSlot>, ClaimError> {
        self.gate().map(Gate::slot).transpose()
    }

    /// The exporter's process, if that is not this one; 0 if it has no pid here.
    fn process(&self) -> Option<u32> {
        None
    }

    /// Whether importers in other processes are served. Read once, at
    /// [`export_with`](crate::DmaBuf::export_with). An exporter that returns more than
    /// [`Sharing::Process`] gives every entry of its tables a [backing](SgEntry::backing) in whole
    /// pages, and has a [`gate`](Self::gate) if it ever moves or revokes memory.
    fn sharing(&self) -> Sharing {
        Sharing::Process
    }

    /// The last handle is gone.
    fn release(&self) {}

    /// Why the memory was taken away, for messages. `None` if it was not, or if the reason is not
    /// known here.
    fn why_gone(&self) -> Option<String> {
        None
    }

    /// Whether the CPU and devices always see the same bytes, so that CPU access needs no brackets.
    /// `false` costs a call at each access; a wrong `true` loses data.
    fn is_coherent(&self) -> bool {
        false
    }

    /// The CPU is about to access the memory: make it coherent.
    ///
    /// # Errors
    ///
    /// Passed to the caller unchanged.
    fn begin_cpu_access(&self, direction: Direction) -> Result<(), ExporterError> {
        let _ = direction;
        Ok(())
    }

    /// The CPU is done.
    ///
    /// # Errors
    ///
    /// Passed to the caller unchanged.
    fn end_cpu_access(&self, direction: Direction) -> Result<(), ExporterError> {
        let _ = direction;
        Ok(())
    }

    /// Whether the buffer's bytes are those of its file, so that the file itself can be mapped.
    /// Read once, at [`export_with`](crate::DmaBuf::export_with).
    ///
    /// If the buffer's bytes are elsewhere, the file has a size but no bytes: a program that maps,
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

    /// For an exporter whose bytes are not in the buffer's own file: what the CPU maps instead for
    /// `len` bytes at `offset`, and what keeps the bytes there while they are mapped. Called before
    /// [`mmap`](Self::mmap), also for another process if that is [served](Self::sharing). Runs
    /// without the reservation lock.
    ///
    /// # Errors
    ///
    /// Passed to the caller unchanged.
    fn mmap_backing(&self, offset: u64, len: u64) -> Result<Option<MmapBacking>, ExporterError> {
        let _ = (offset, len);
        Ok(None)
    }

    /// Maps the whole buffer for code on the exporter's CPU. Called once for any number of users.
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

/// The pair of operations of an exporter whose buffers can move. They are one trait, so that
/// neither can exist without the other.
pub trait Pinning {
    /// Moves the buffer somewhere and keeps it there until [`unpin`](Self::unpin). The exporter
    /// decides where.
    ///
    /// # Errors
    ///
    /// Passed to the importer unchanged.
    fn pin(&self, resv: &ResvGuard<'_>, attachment: &AttachmentInfo) -> Result<(), ExporterError>;

    /// The buffer may move again, as far as this attachment is concerned.
    fn unpin(&self, resv: &ResvGuard<'_>, attachment: &AttachmentInfo);
}

/// The direction in which data moves, seen from memory: a device that writes memory needs
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

/// Where a device finds the buffer: bus addresses and lengths. It has no pages, because an importer
/// must not look at them.
#[doc(alias = "sg_table")]
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "exporters build it")]
pub struct SgTable {
    /// In the order of the buffer's bytes.
    pub entries: Vec<SgEntry>,
    /// The epoch of the exporter's [`gate`](Exporter::gate) in which these addresses are valid. An
    /// access enters the gate with it. `None`: the addresses are valid until the table is given
    /// back.
    pub epoch: Option<u64>,
    /// The path of the device's accesses.
    pub map_type: Reach,
}

/// One contiguous range of an [`SgTable`].
#[doc(alias = "scatterlist")]
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "exporters build it")]
pub struct SgEntry {
    /// Bus address.
    pub addr: u64,
    /// Length in bytes.
    pub len: u64,
    /// The file that holds these bytes, if another process may map it too. An importer must never
    /// access memory through it: it serves to translate an address on this process's bus into one
    /// on another's.
    pub backing: Option<SgBacking>,
}

/// The file behind an entry, and which of its bytes.
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_structs, reason = "exporters build it")]
pub struct SgBacking {
    /// A memfd of the exporter, sealed against shrinking.
    pub file: Arc<Known>,
    /// Where the range begins in the file.
    pub offset: u64,
}

/// What the CPU maps instead of the buffer's own file.
#[expect(clippy::exhaustive_structs, reason = "exporters build it")]
pub struct MmapBacking {
    /// The file, and the page-aligned offset of the buffer's first byte in it.
    pub backing: SgBacking,
    /// Dropped when the bytes are no longer mapped.
    pub hold: Box<dyn std::any::Any + Send + Sync>,
    /// By this the exporter takes the mapping away, if it ever does; the code that maps it sets
    /// how.
    pub zap: Option<Zap>,
}

/// How accesses of a device reach the memory (`docs/semantics.md` 4.2): the values of the kernel's
/// `pci_p2pdma_map_type` for memory that can be reached, and host memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[expect(clippy::exhaustive_enums, reason = "there are no other ways")]
pub enum Reach {
    /// To host memory.
    #[default]
    System,
    /// To another device, by its address on the bus that both share.
    BusAddress,
    /// To another device, through the host bridge.
    ThroughHostBridge,
}

/// Which processes an exporter serves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "there are no other ways to end")]
pub enum Sharing {
    /// Importers in its own process. Another process that receives the fd finds the pages of the
    /// file.
    #[default]
    Process,
    /// Importers in any process of this user. When the exporter's process dies, the memory stays
    /// where it is for the processes that have it mapped, and no longer moves.
    HostKept,
    /// Importers in any process of this user. When the exporter's process dies, the memory is
    /// revoked.
    HostRevoked,
}

impl SgEntry {
    /// A range that has no file behind it.
    pub fn new(addr: u64, len: u64) -> Self {
        Self { addr, len, backing: None }
    }
}

/// Two are equal if they are the same range of the same file object.
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

    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Where code on the exporter's CPU finds the buffer.
#[doc(alias = "iosys_map")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "memory is one or the other")]
pub enum IosysMap {
    /// Ordinary memory.
    System(usize),
    /// Device memory: the width and order of accesses matter.
    Io(usize),
}

/// Why an exporter refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
#[non_exhaustive]
pub struct ExporterError {
    /// The kind, which decides the errno that a C program sees.
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

/// Kinds of refusal, each of which is one errno of the kernel's exporters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ExporterErrorKind {
    /// The operation or combination does not exist (EINVAL).
    Invalid,
    /// No placement suits this device, or the buffer is in use (EBUSY).
    Busy,
    /// This importer class or kind of access is not served (EOPNOTSUPP).
    NotSupported,
    /// The same, by an errno that is internal to the kernel but reaches programs nevertheless
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
