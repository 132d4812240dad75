//! Peer-to-peer memory that a driver of the running kernel lends to programs: `p2pmem` of a PCI
//! function in sysfs (`docs/semantics.md` 4.3).

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use dmabuf::window::PlaceError;
use dmabuf::{BarBuf, BarError, BarRange};
use pci::{Bdf, PciTree};

use crate::provider::{Allocation, MemoryProvider};

/// How long a departing pool waits for each importer.
const PATIENCE: Duration = Duration::from_secs(10);

/// The numbers of errno that `mmap` of `p2pmem/allocate` returns.
const NO_MEMORY: i32 = 12;
const NO_DEVICE: i32 = 19;
const INVALID: i32 = 22;

/// The pool of a PCI function, from which the kernel gives each mapping pages of its own.
///
/// What it gives is memory of a real device: the CPU maps it, and other devices of the machine
/// reach it peer-to-peer, as direct I/O of a disk does. It belongs to this process alone; importers
/// in others are refused. If its driver goes, the kernel takes the pages from under all mappings:
/// accesses to them then fail with a fault, and [`is_there`](Self::is_there) says so.
#[doc(alias = "p2pmem")]
#[derive(Debug)]
pub struct KernelPool {
    name: String,
    bdf: Bdf,
    tree: Arc<PciTree>,
    dir: PathBuf,
}

/// Why a function has no pool for programs.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum KernelPoolError {
    /// Its driver made none, or the kernel has no peer-to-peer memory.
    #[error("PCI device {bdf} has no peer-to-peer memory for programs: {} is not there", dir.display())]
    None {
        /// The function.
        bdf: Bdf,
        /// What was looked for.
        dir: PathBuf,
    },
    /// The driver keeps it to itself.
    #[error("the driver of PCI device {bdf} has not published its peer-to-peer memory")]
    NotPublished {
        /// The function.
        bdf: Bdf,
    },
    /// This user may not, or the kernel says something else than is expected.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The error.
        error: io::Error,
    },
}

impl KernelPool {
    /// The pool of the function at `bdf`; `sysfs` is where sysfs is mounted, and `tree` was read
    /// from there.
    ///
    /// # Errors
    ///
    /// [`KernelPoolError`].
    pub fn open(
        sysfs: &Path,
        tree: &Arc<PciTree>,
        name: &str,
        bdf: Bdf,
    ) -> Result<Self, KernelPoolError> {
        let dir = sysfs.join("bus/pci/devices").join(bdf.to_string()).join("p2pmem");
        if !dir.is_dir() {
            return Err(KernelPoolError::None { bdf, dir });
        }
        let pool = Self { name: name.to_owned(), bdf, tree: Arc::clone(tree), dir };
        if pool.number("published")? == 0 {
            return Err(KernelPoolError::NotPublished { bdf });
        }
        pool.file()?;
        Ok(pool)
    }

    /// Bytes of the pool.
    ///
    /// # Errors
    ///
    /// [`KernelPoolError::Io`].
    pub fn size(&self) -> Result<u64, KernelPoolError> {
        self.number("size")
    }

    /// Bytes that are free, in whatever pieces.
    ///
    /// # Errors
    ///
    /// [`KernelPoolError::Io`].
    pub fn available(&self) -> Result<u64, KernelPoolError> {
        self.number("available")
    }

    /// Whether the driver still lends it.
    pub fn is_there(&self) -> bool {
        self.number("published").is_ok_and(|published| published == 1)
    }

    fn number(&self, name: &str) -> Result<u64, KernelPoolError> {
        let path = self.dir.join(name);
        let read = fs::read_to_string(&path).and_then(|text| {
            text.trim().parse().map_err(|_| io::Error::other(format!("{text:?} is no number")))
        });
        read.map_err(|error| KernelPoolError::Io { path, error })
    }

    fn file(&self) -> Result<File, KernelPoolError> {
        let path = self.dir.join("allocate");
        let file = File::options().read(true).write(true).open(&path);
        file.map_err(|error| KernelPoolError::Io { path, error })
    }

    /// What the kernel's refusal of a mapping means.
    fn why(&self, len: u64, error: &BarError) -> String {
        let BarError::Place(PlaceError::System { errno, .. }) = error else {
            return error.to_string();
        };
        match errno.raw_os_error() {
            NO_MEMORY => {
                let of =
                    |number: Result<u64, _>| number.map_or("?".to_owned(), |n| format!("{n:#x}"));
                let (free, size) = (of(self.available()), of(self.size()));
                format!(
                    "its pool has no {len:#x} bytes in a row: {free} of {size} are free (ENOMEM)"
                )
            }
            NO_DEVICE => "its driver is taking the pool away (ENODEV)".to_owned(),
            INVALID => "the kernel has no such mapping of the pool (EINVAL)".to_owned(),
            _ => error.to_string(),
        }
    }
}

impl MemoryProvider for KernelPool {
    fn name(&self) -> &str {
        &self.name
    }

    fn bdf(&self) -> Bdf {
        self.bdf
    }

    fn allocate(&self, len: u64) -> Result<Allocation, String> {
        let what = format!("peer-to-peer memory of {}", self.name);
        let file = self.file().map_err(|error| format!("{what}: {error}"))?;
        // The kernel maps whole pages, and gives them back when the last mapping goes.
        let len = len.next_multiple_of(4096);
        let range = BarRange {
            owner: self.name.clone(),
            what: what.clone(),
            tree: Arc::clone(&self.tree),
            bdf: Some(self.bdf),
            file: file.into(),
            offset: 0,
            len,
        };
        let bar = BarBuf::mapped_once(range, "p2pmem")
            .map_err(|error| format!("{what}: {}", self.why(len, &error)))?;
        Ok(Allocation { buffer: bar.buffer().clone(), hold: Box::new(bar) })
    }

    fn revoke_all(&self, held: Vec<Allocation>, why: &str) {
        for Allocation { hold, .. } in held {
            let Ok(bar) = hold.downcast::<BarBuf>() else { continue };
            if let Err(error) = bar.revoke(why, PATIENCE) {
                tracing::warn!(target: "peerdma::peer-memory", "{}: {error}", self.name);
            }
        }
    }
}
