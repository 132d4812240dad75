//! PeerDirect, the older interface to a peer device's memory, by the address at which the CPU has
//! it mapped.
//!
//! A driver whose memory is mapped into programs registers a [`PeerClient`]. Code that must pin an
//! address that is not plain memory asks the clients one by one, in the order of their
//! registration, until one claims the range ([`get`]); the client then pins the pages and maps them
//! for the device, and may take them back at any time ([`PeerCore::invalidate`]).
//!
//! ```text
//!   core                               client
//!    |  acquire(addr, len)       ->     mine / not mine
//!    |  get_pages(write, core)   ->     pinned
//!    |  dma_map(device)          ->     bus addresses
//!    |       <-  core.invalidate()      the memory goes: the device stops; dma_unmap, put_pages
//!    |  dma_unmap, put_pages     ->     when the region is deregistered, unless they were
//!    |  release (drop)           ->
//! ```
//!
//! Memory need not be mapped to have addresses: a driver may give programs addresses that fault on
//! any access, as CUDA does. Its client claims them as an [`Arena`], and is asked about that as
//! about mapped memory.
//!
//! The names and the order are those of the kernel interface of out-of-tree stacks
//! (`struct peer_memory_client`); mainline Linux has nothing of it. docs/semantics.md 2.11.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use crate::attached::DeviceAddr;
use crate::exporter::{ExporterError, ExporterErrorKind, SgTable};
use crate::fork::{self, Locked, Room};
use crate::sys::vma::{self, SharedFile};

/// A driver whose memory programs have mapped.
#[doc(alias = "peer_memory_client")]
pub trait PeerClient: Send + Sync {
    /// Its name, as messages show it.
    fn name(&self) -> &str;

    /// Whether it takes memory back. Then it is not used for devices that cannot stop.
    fn needs_invalidation(&self) -> bool;

    /// Describes the memory that a mapping shows; `None` if it is not this driver's.
    fn owner(&self, mapping: &PeerRange) -> Option<String>;

    /// Describes what is at these addresses, which are at least partly in an
    /// [arena](claim_arena) of the client: the buffer and its owner, or that there is none.
    fn owner_at(&self, addr: u64, len: u64) -> String {
        format!("{len:#x} bytes at {addr:#x} of {}", self.name())
    }

    /// Claims `len` bytes at `addr` of this process, if all of them are memory of this driver.
    fn acquire(&self, addr: u64, len: u64) -> Option<Box<dyn PeerMemory>>;
}

/// A claimed range: the client's context. Dropping it is `release`.
pub trait PeerMemory: Send + Sync {
    /// Pins the pages. From here on the client may call [`PeerCore::invalidate`], also before this
    /// returns.
    ///
    /// # Errors
    ///
    /// The client's refusal.
    fn get_pages(&self, write: bool, core: &PeerCore) -> Result<(), ExporterError>;

    /// The addresses by which the device at `device` reaches the pages, from the
    /// [page](Self::page_size) with the first byte to the page with the last.
    ///
    /// # Errors
    ///
    /// The client's refusal.
    fn dma_map(&self, device: Option<DeviceAddr>) -> Result<SgTable, ExporterError>;

    /// The device no longer uses the addresses.
    fn dma_unmap(&self);

    /// The pages may move or be freed again.
    fn put_pages(&self);

    /// Size of the client's pages, a power of two.
    fn page_size(&self) -> u64;
}

/// A mapped file, and where it is mapped.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerRange {
    /// First address.
    pub start: u64,
    /// Address behind the last.
    pub end: u64,
    /// The offset of `start` in the file.
    pub offset: u64,
    /// Device and inode of the file.
    pub file: (u64, u64),
    /// The name of the file in `/proc/self/maps`.
    pub name: String,
}

/// A mapping of a device's memory, found in a range of addresses.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PeerOwner {
    /// The mapping, in words; an arena has none.
    pub mapping: String,
    /// The owner of the memory, in words.
    pub owner: String,
    /// Whether a client claims it, so that [`get`] can reach it.
    pub has_client: bool,
}

/// Pages of a client, pinned and mapped for a device. Dropping it gives them back, unless the
/// client has taken them back.
#[must_use = "the pages are given back when this is dropped"]
pub struct PeerPages {
    inner: Arc<Inner>,
    client: Arc<dyn PeerClient>,
    table: SgTable,
    offset: u64,
}

/// The handle by which a client takes its memory back.
#[doc(alias = "invalidate_peer_memory")]
#[derive(Clone)]
pub struct PeerCore(Weak<Inner>);

/// Why no peer's pages were found for a range.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PeerError {
    /// Every client was asked.
    #[error("no peer memory client claims the range (asked: {asked})")]
    Unclaimed {
        /// The clients, and why some were not asked.
        asked: String,
    },
    /// The client that claims the range refused.
    #[error("peer memory client {client}: {step}: {reason}")]
    Client {
        /// Its name.
        client: String,
        /// What it was asked to do.
        step: &'static str,
        /// Its reason.
        #[source]
        reason: ExporterError,
    },
}

struct Inner {
    memory: Box<dyn PeerMemory>,
    /// Makes the device stop. Called at most once.
    stop: Box<dyn Fn() + Send + Sync>,
    state: Mutex<State>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// The device does not use them yet.
    Getting,
    Mapped,
    /// Given back, or taken back.
    Gone,
}

/// Addresses that belong to a client. Dropping it gives them up.
#[must_use = "the addresses are given up when this is dropped"]
pub struct Arena {
    /// Always present, except while it is dropped.
    span: Option<Arc<Span>>,
}

#[derive(Debug)]
struct Span {
    start: u64,
    end: u64,
}

type Arenas = Vec<(Weak<Span>, Weak<dyn PeerClient>)>;

static ARENAS: Mutex<Arenas> = Mutex::new(Vec::new());
/// Where the first arena begins, and where the last one ends.
static HULL: [AtomicU64; 2] = [AtomicU64::new(u64::MAX), AtomicU64::new(0)];

static CLIENTS: Mutex<Vec<Weak<dyn PeerClient>>> = Mutex::new(Vec::new());

/// Registers a client, for as long as it lives.
#[doc(alias = "ib_register_peer_memory_client")]
pub fn register_client(client: &Arc<dyn PeerClient>) {
    watch();
    let mut clients = lock(&CLIENTS);
    clients.retain(|known| known.strong_count() > 0);
    clients.push(Arc::downgrade(client));
}

/// Declares that all addresses from `addr` on belong to the client, until the guard is dropped:
/// there is no plain memory, and the client is asked about registrations there
/// ([`PeerClient::owner_at`], [`PeerClient::acquire`]).
///
/// For an address above or below all arenas, two comparisons show that it is in none.
pub fn claim_arena(client: &Arc<dyn PeerClient>, addr: u64, len: u64) -> Arena {
    watch();
    let span = Arc::new(Span { start: addr, end: addr.saturating_add(len) });
    let mut arenas = lock(&ARENAS);
    arenas.push((Arc::downgrade(&span), Arc::downgrade(client)));
    set_hull(&arenas);
    Arena { span: Some(span) }
}

/// Whether some of these addresses are in an arena of a client.
pub fn is_in_arena(addr: u64, len: u64) -> bool {
    arena_of(addr, len).is_some()
}

fn arena_of(addr: u64, len: u64) -> Option<Arc<dyn PeerClient>> {
    let end = addr.saturating_add(len);
    // ORDERING: an address of an arena comes from the client, which claimed the arena before; that
    // orders the two.
    if addr >= HULL[1].load(Ordering::Relaxed) || end <= HULL[0].load(Ordering::Relaxed) {
        return None;
    }
    let arenas = lock(&ARENAS);
    arenas.iter().find_map(|(span, client)| {
        let is_there = span.upgrade().is_some_and(|span| addr < span.end && span.start < end);
        is_there.then(|| client.upgrade())?
    })
}

/// Called under the lock of the arenas.
fn set_hull(arenas: &Arenas) {
    let spans = || arenas.iter().filter_map(|(span, _)| span.upgrade());
    HULL[0].store(spans().map(|span| span.start).min().unwrap_or(u64::MAX), Ordering::Relaxed);
    HULL[1].store(spans().map(|span| span.end).max().unwrap_or(0), Ordering::Relaxed);
}

/// The first mapping in `len` bytes at `addr` that shows a device's memory: a dma-buf of the kernel
/// or of this library, or memory of a [client](register_client); or the [arena](claim_arena) that
/// some of the bytes are in. `None`: it is plain memory, as far as can be seen.
pub fn owner_of(addr: u64, len: u64) -> Option<PeerOwner> {
    let end = addr.saturating_add(len);
    if let Some(client) = arena_of(addr, len) {
        let mapping = "what is there".to_owned();
        return Some(PeerOwner { mapping, owner: client.owner_at(addr, len), has_client: true });
    }
    let mut at = addr;
    while at < end
        && let Some(mapping) = vma::shared_file(at, end)
    {
        at = mapping.end;
        if let Some(owner) = owner(mapping.into()) {
            return Some(owner);
        }
    }
    None
}

/// The files mapped shared in `len` bytes at `addr`, for a client that looks for its own files.
pub fn shared_mappings(addr: u64, len: u64) -> Vec<PeerRange> {
    let end = addr.saturating_add(len);
    let mut found = Vec::new();
    let mut at = addr;
    while at < end
        && let Some(mapping) = vma::shared_file(at, end)
    {
        at = mapping.end;
        found.push(mapping.into());
    }
    found
}

/// Asks the clients one by one; the first client that claims the range pins it and maps it for a
/// device. `stop` makes the device stop when the client takes its memory back; `None` means that
/// the device cannot stop, and clients that [take memory back](PeerClient::needs_invalidation) are
/// skipped.
///
/// # Errors
///
/// No client claims the range, or the one that does refuses.
#[doc(alias = "ib_peer_umem_get")]
pub fn get(
    addr: u64,
    len: u64,
    write: bool,
    device: Option<DeviceAddr>,
    stop: Option<Box<dyn Fn() + Send + Sync>>,
) -> Result<PeerPages, PeerError> {
    let mut asked = Vec::new();
    for client in clients() {
        if client.needs_invalidation() && stop.is_none() {
            asked.push(format!(
                "{}, which this device does not suit: it cannot stop",
                client.name()
            ));
            continue;
        }
        asked.push(client.name().to_owned());
        if let Some(memory) = client.acquire(addr, len) {
            let stop = stop.unwrap_or_else(|| Box::new(|| {}));
            return PeerPages::new(client, memory, addr, write, device, stop);
        }
    }
    let asked = if asked.is_empty() { "there is none".to_owned() } else { asked.join(", ") };
    Err(PeerError::Unclaimed { asked })
}

impl PeerPages {
    fn new(
        client: Arc<dyn PeerClient>,
        memory: Box<dyn PeerMemory>,
        addr: u64,
        write: bool,
        device: Option<DeviceAddr>,
        stop: Box<dyn Fn() + Send + Sync>,
    ) -> Result<Self, PeerError> {
        let refused = |step| {
            let client = client.name().to_owned();
            move |reason| PeerError::Client { client, step, reason }
        };
        let inner = Arc::new(Inner { memory, stop, state: Mutex::new(State::Getting) });
        let memory = &inner.memory;
        memory.get_pages(write, &PeerCore(Arc::downgrade(&inner))).map_err(refused("get_pages"))?;
        let table = match memory.dma_map(device) {
            Ok(table) => table,
            Err(reason) => {
                memory.put_pages();
                return Err(refused("dma_map")(reason));
            }
        };
        let offset = addr % memory.page_size();
        let mut state = lock(&inner.state);
        if *state == State::Gone {
            memory.dma_unmap();
            memory.put_pages();
            let what = "the memory was taken back while it was being registered";
            return Err(refused("invalidate")(ExporterError::new(
                ExporterErrorKind::NoDevice,
                what,
            )));
        }
        *state = State::Mapped;
        drop(state);
        Ok(Self { inner, client, table, offset })
    }

    /// The client of the pages.
    pub fn client(&self) -> &str {
        self.client.name()
    }

    /// Where the device finds the pages.
    pub fn table(&self) -> &SgTable {
        &self.table
    }

    /// The offset in the table at which the range begins.
    pub fn offset(&self) -> u64 {
        self.offset
    }
}

impl Drop for PeerPages {
    fn drop(&mut self) {
        let mut state = lock(&self.inner.state);
        if std::mem::replace(&mut *state, State::Gone) == State::Mapped {
            self.inner.memory.dma_unmap();
            self.inner.memory.put_pages();
        }
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        let mut arenas = lock(&ARENAS);
        self.span = None;
        arenas.retain(|(span, _)| span.strong_count() > 0);
        set_hull(&arenas);
    }
}

impl fmt::Debug for Arena {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Arena").field(&self.span).finish()
    }
}

impl PeerCore {
    /// Takes the memory back: when this returns, the device no longer accesses it, and pages and
    /// addresses have been given back. Harmless if they were given back before.
    pub fn invalidate(&self) {
        let Some(inner) = self.0.upgrade() else { return };
        let mut state = lock(&inner.state);
        if std::mem::replace(&mut *state, State::Gone) == State::Mapped {
            (inner.stop)();
            inner.memory.dma_unmap();
            inner.memory.put_pages();
        }
    }

    /// Whether the region is gone.
    pub fn is_over(&self) -> bool {
        self.0.strong_count() == 0
    }
}

/// Describes memory without a client: a dma-buf, recognised by its name.
fn owner(mapping: PeerRange) -> Option<PeerOwner> {
    let named = clients().iter().find_map(|client| client.owner(&mapping));
    let has_client = named.is_some();
    let owner = match named {
        Some(owner) => owner,
        None if mapping.name.starts_with("/dmabuf:") => kernel_owner(&mapping),
        None if mapping.name.starts_with("/memfd:peerdma:") => {
            "a buffer of this library".to_owned()
        }
        None => return None,
    };
    let PeerRange { start, end, name, .. } = mapping;
    Some(PeerOwner { mapping: format!("{name} at {start:#x}-{end:#x}"), owner, has_client })
}

/// The exporter of a kernel dma-buf, if some descriptor of this process still tells.
fn kernel_owner(mapping: &PeerRange) -> String {
    let is_it = |fd: &BorrowedDescriptor| fd.file == mapping.file;
    let exporter = own_descriptors().into_iter().find(is_it).map(|fd| fd.exporter);
    format!("a dma-buf of {}", exporter.as_deref().unwrap_or("an exporter that no open file names"))
}

struct BorrowedDescriptor {
    file: (u64, u64),
    exporter: String,
}

fn own_descriptors() -> Vec<BorrowedDescriptor> {
    use std::os::unix::fs::MetadataExt;
    let Ok(list) = std::fs::read_dir("/proc/self/fd") else { return Vec::new() };
    let one = |entry: std::fs::DirEntry| {
        let meta = std::fs::metadata(entry.path()).ok()?;
        let info = std::path::Path::new("/proc/self/fdinfo").join(entry.file_name());
        let info = std::fs::read_to_string(info).ok()?;
        let exporter = info.lines().find_map(|line| line.strip_prefix("exp_name:"))?;
        Some(BorrowedDescriptor {
            file: (meta.dev(), meta.ino()),
            exporter: exporter.trim().to_owned(),
        })
    };
    list.flatten().filter_map(one).collect()
}

impl From<SharedFile> for PeerRange {
    fn from(SharedFile { start, end, offset, file, name }: SharedFile) -> Self {
        Self { start, end, offset, file, name }
    }
}

impl fmt::Debug for PeerPages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("PeerPages");
        debug.field("client", &self.client()).field("table", &self.table).finish_non_exhaustive()
    }
}

impl fmt::Debug for PeerCore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PeerCore")
    }
}

fn clients() -> Vec<Arc<dyn PeerClient>> {
    lock(&CLIENTS).iter().filter_map(Weak::upgrade).collect()
}

fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The locks of the lists of clients and arenas, held across a fork.
struct Lists {
    _clients: MutexGuard<'static, Vec<Weak<dyn PeerClient>>>,
    _arenas: MutexGuard<'static, Arenas>,
}

impl Locked for Lists {
    /// Registrations from before a fork stay: a client of the parent claims nothing in the child.
    fn forget(&mut self) {}
}

/// From now on, forks are watched.
fn watch() {
    fork::hold(Room::Clients, || {
        Box::new(Lists { _clients: lock(&CLIENTS), _arenas: lock(&ARENAS) })
    });
}

#[cfg(test)]
mod tests;
