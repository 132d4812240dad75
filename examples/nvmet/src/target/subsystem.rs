//! A subsystem and its namespaces.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;
use storage::{File, OpenOptions};

use crate::target::reservations::Reservations;
use crate::wire::cm::MAX_QID;

/// The smallest block that hosts understand.
const LEAST_BLOCK: u32 = 512;
/// The highest number of a namespace.
pub const MAX_NSID: u32 = 1024;

/// Namespaces that hosts see as one unit, under one name. They may come, go and change their size.
#[derive(Debug)]
pub struct Subsystem {
    nqn: String,
    /// The hosts that may use it. `None`: all.
    hosts: Option<BTreeSet<String>>,
    /// I/O queues that a host may have.
    queues: AtomicU16,
    namespaces: Mutex<BTreeMap<u32, Arc<Namespace>>>,
}

/// A file or a block device, in blocks.
#[derive(Clone, Debug)]
pub struct Namespace {
    file: File,
    before_sync: Option<BeforeSync>,
    reservations: Arc<Mutex<Reservations>>,
    /// Whether its identifier was chosen, and is not derived from names.
    is_named: bool,
    /// A unique identifier, which is the same for all hosts: its NGUID and its UUID.
    pub nguid: [u8; 16],
    /// Its size, and the size of its blocks.
    pub geometry: Geometry,
}

/// What happens before what was written is made to last.
#[derive(Clone)]
struct BeforeSync(Arc<dyn Fn() + Send + Sync>);

impl fmt::Debug for BeforeSync {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BeforeSync")
    }
}

/// Blocks, and how long each is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Geometry {
    /// How many.
    pub blocks: u64,
    /// Their length, as a power of two.
    pub shift: u32,
}

impl Subsystem {
    /// With the namespaces 1, 2, and so on.
    pub fn new(nqn: &str, namespaces: Vec<Namespace>) -> Self {
        let new = Self {
            nqn: nqn.to_owned(),
            hosts: None,
            queues: MAX_QID.into(),
            namespaces: Mutex::default(),
        };
        for namespace in namespaces {
            new.add(namespace);
        }
        new
    }

    /// Only for hosts of these names: others may not connect, and do not discover it.
    #[must_use]
    #[doc(alias = "allowed_hosts")]
    pub fn for_hosts(self, hosts: impl IntoIterator<Item = String>) -> Self {
        Self { hosts: Some(hosts.into_iter().collect()), ..self }
    }

    /// Whether a host may use it.
    pub fn is_for(&self, hostnqn: &str) -> bool {
        self.hosts.as_ref().is_none_or(|hosts| hosts.contains(hostnqn))
    }

    fn namespaces(&self) -> MutexGuard<'_, BTreeMap<u32, Arc<Namespace>>> {
        self.namespaces.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of I/O queues that a host may have.
    pub fn queues(&self) -> u16 {
        self.queues.load(Ordering::Relaxed)
    }

    pub(super) fn set_queues(&self, queues: u16) {
        self.queues.store(queues.clamp(1, MAX_QID), Ordering::Relaxed);
    }

    /// Its name.
    pub fn nqn(&self) -> &str {
        &self.nqn
    }

    /// The numbers of its namespaces.
    pub fn numbers(&self) -> Vec<u32> {
        self.namespaces().keys().copied().collect()
    }

    /// A namespace by its number.
    pub fn namespace(&self, nsid: u32) -> Option<Arc<Namespace>> {
        self.namespaces().get(&nsid).cloned()
    }

    /// Adds a namespace, by the lowest number that is free. `None`: there are too many.
    pub(super) fn add(&self, mut namespace: Namespace) -> Option<u32> {
        let mut namespaces = self.namespaces();
        let nsid = (1..=MAX_NSID).find(|nsid| !namespaces.contains_key(nsid))?;
        if !namespace.is_named {
            namespace.nguid = nguid(&self.nqn, nsid, namespace.file.path());
        }
        namespaces.insert(nsid, Arc::new(namespace));
        Some(nsid)
    }

    /// Removes a namespace; commands that have begun end as if it were there. False if there is
    /// none.
    pub(super) fn remove(&self, nsid: u32) -> bool {
        self.namespaces().remove(&nsid).is_some()
    }

    /// Looks how long the file of a namespace is now. Returns whether it changed; also if there is
    /// no such namespace, it did not.
    ///
    /// # Errors
    ///
    /// As [`File::size`].
    pub(super) fn revalidate(&self, nsid: u32) -> storage::Result<bool> {
        let mut namespaces = self.namespaces();
        let Some(namespace) = namespaces.get_mut(&nsid) else { return Ok(false) };
        let geometry = namespace.geometry.with_bytes(namespace.file.size()?);
        let has_changed = geometry != namespace.geometry;
        *namespace = Arc::new(Namespace { geometry, ..Namespace::clone(namespace) });
        Ok(has_changed)
    }
}

impl Namespace {
    /// A file or a block device. Its blocks have the length that direct I/O on it asks for. A file
    /// that cannot be written is a namespace that is write protected.
    ///
    /// # Errors
    ///
    /// As [`File::open`] and [`File::size`].
    pub fn open(path: impl AsRef<Path>) -> storage::Result<Self> {
        let file = opened(path.as_ref())?;
        let bytes = file.size()?;
        Ok(Self::new(file, bytes))
    }

    /// The same, of a device that does not tell how long it is.
    ///
    /// # Errors
    ///
    /// As [`File::open`].
    pub fn with_size(path: impl AsRef<Path>, bytes: u64) -> storage::Result<Self> {
        Ok(Self::new(opened(path.as_ref())?, bytes))
    }

    fn new(file: File, bytes: u64) -> Self {
        let shift = file.alignment().offset.max(LEAST_BLOCK).next_power_of_two().trailing_zeros();
        let geometry = Geometry { blocks: 0, shift }.with_bytes(bytes);
        let reservations = Arc::default();
        Self { file, before_sync: None, reservations, is_named: false, nguid: [0; 16], geometry }
    }

    /// With this identifier rather than one that is derived from names.
    #[must_use]
    #[doc(alias = "device_uuid")]
    pub fn with_uuid(self, uuid: [u8; 16]) -> Self {
        Self { is_named: true, nguid: uuid, ..self }
    }

    /// Calls a function before what was written is made to last: a disk that takes as long over it
    /// as a test wants.
    #[must_use]
    pub fn before_sync(mut self, call: impl Fn() + Send + Sync + 'static) -> Self {
        self.before_sync = Some(BeforeSync(Arc::new(call)));
        self
    }

    /// Its reservation, and the hosts that take part.
    pub(super) fn reservations(&self) -> MutexGuard<'_, Reservations> {
        self.reservations.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes what was written last.
    pub(super) fn sync(&self) -> storage::Result<()> {
        if let Some(BeforeSync(call)) = &self.before_sync {
            call();
        }
        self.file.sync()
    }

    /// The file or block device.
    pub fn file(&self) -> &File {
        &self.file
    }
}

fn opened(path: &Path) -> storage::Result<File> {
    let writable = OpenOptions { write: true, ..OpenOptions::default() };
    File::open(path, &writable).or_else(|error| match error.errno() {
        Some(Errno::ACCESS | Errno::ROFS | Errno::TXTBSY | Errno::PERM) => {
            File::open(path, &OpenOptions::default())
        }
        _ => Err(error),
    })
}

impl Geometry {
    /// The same blocks, as many as there are in `bytes`.
    fn with_bytes(self, bytes: u64) -> Self {
        Self { blocks: bytes >> self.shift, ..self }
    }

    /// The bytes of a run of blocks: where they begin, and how many there are. `None` beyond the
    /// end.
    pub fn bytes(self, slba: u64, blocks: u64) -> Option<(u64, u64)> {
        let end = slba.checked_add(blocks)?;
        (end <= self.blocks).then(|| (slba << self.shift, blocks << self.shift))
    }
}

/// A number derived from names, so that it is the same after a restart.
fn nguid(nqn: &str, nsid: u32, path: &Path) -> [u8; 16] {
    let mut nguid = [0; 16];
    for (half, bytes) in nguid.chunks_exact_mut(8).enumerate() {
        let mut hasher = DefaultHasher::new();
        (half, nqn, nsid, path).hash(&mut hasher);
        bytes.copy_from_slice(&hasher.finish().to_be_bytes());
    }
    // RFC 9562: version 8, variant 10.
    nguid[6] = nguid[6] & 0x0f | 0x80;
    nguid[8] = nguid[8] & 0x3f | 0x80;
    nguid
}
