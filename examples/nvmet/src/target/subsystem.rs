//! A subsystem and its namespaces.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::Arc;

use rustix::io::Errno;
use storage::{File, OpenOptions};

/// The smallest block that hosts understand.
const LEAST_BLOCK: u32 = 512;

/// Namespaces that hosts see as one unit, under one name.
#[derive(Debug)]
pub struct Subsystem {
    nqn: String,
    namespaces: Vec<Namespace>,
}

/// A file or a block device, in blocks.
#[derive(Debug)]
pub struct Namespace {
    file: File,
    before_sync: Option<BeforeSync>,
    /// A unique identifier, which is the same for all hosts.
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
        let mut namespaces = namespaces;
        for (at, namespace) in namespaces.iter_mut().enumerate() {
            namespace.nguid = nguid(nqn, at, namespace.file.path());
        }
        Self { nqn: nqn.to_owned(), namespaces }
    }

    /// Its name.
    pub fn nqn(&self) -> &str {
        &self.nqn
    }

    /// The highest number of a namespace.
    pub fn count(&self) -> u32 {
        // CAST: a list of paths that a person wrote.
        self.namespaces.len() as u32
    }

    /// A namespace by its number, from 1 on.
    pub fn namespace(&self, nsid: u32) -> Option<&Namespace> {
        let at = usize::try_from(nsid.checked_sub(1)?).ok()?;
        self.namespaces.get(at)
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
        let before_sync = None;
        Self {
            file,
            before_sync,
            nguid: [0; 16],
            geometry: Geometry { blocks: bytes >> shift, shift },
        }
    }

    /// Calls a function before what was written is made to last: a disk that takes as long over it
    /// as a test wants.
    #[must_use]
    pub fn before_sync(mut self, call: impl Fn() + Send + Sync + 'static) -> Self {
        self.before_sync = Some(BeforeSync(Arc::new(call)));
        self
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
    /// The bytes of a run of blocks: where they begin, and how many there are. `None` beyond the
    /// end.
    pub fn bytes(self, slba: u64, blocks: u64) -> Option<(u64, u64)> {
        let end = slba.checked_add(blocks)?;
        (end <= self.blocks).then(|| (slba << self.shift, blocks << self.shift))
    }
}

/// A number derived from names, so that it is the same after a restart.
fn nguid(nqn: &str, at: usize, path: &Path) -> [u8; 16] {
    let mut nguid = [0; 16];
    for (half, bytes) in nguid.chunks_exact_mut(8).enumerate() {
        let mut hasher = DefaultHasher::new();
        (half, nqn, at, path).hash(&mut hasher);
        bytes.copy_from_slice(&hasher.finish().to_be_bytes());
    }
    // RFC 9562: version 8, variant 10.
    nguid[6] = nguid[6] & 0x0f | 0x80;
    nguid[8] = nguid[8] & 0x3f | 0x80;
    nguid
}
