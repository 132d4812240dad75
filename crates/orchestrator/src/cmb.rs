//! The memory buffer of a storage controller: pages behind a BAR that exist only to be allocated.

use std::sync::Arc;
use std::time::Duration;

use dmabuf::{BarBuf, BarError, BarRange};
use pci::{AddResourceError, Bdf, P2pdma, P2pmem};
use umem::{HostBuf, HostBufError};

use crate::provider::{Allocation, MemoryProvider};

/// How long a departing controller waits for each importer.
const PATIENCE: Duration = Duration::from_secs(10);

/// A controller memory buffer: a pool of [`P2pdma`], with bytes behind it.
#[doc(alias = "NVME_REG_CMBLOC")]
#[derive(Debug)]
pub struct Cmb {
    name: String,
    bdf: Bdf,
    p2pdma: Arc<P2pdma>,
    /// The bytes, from the beginning of the BAR on.
    memory: HostBuf,
    /// Where the CPU finds the BAR in the machine's address space.
    base: u64,
}

/// Why a controller has no memory buffer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CmbError {
    /// The tree has no such BAR, or it is too small.
    #[error(transparent)]
    Resource(#[from] AddResourceError),
    /// No host memory is left for it.
    #[error(transparent)]
    Memory(#[from] HostBufError),
    /// It is longer than this process can address.
    #[error("a memory buffer of {len:#x} bytes is more than a process can have")]
    TooLong {
        /// The length asked for.
        len: u64,
    },
}

/// The memory of one allocation.
struct Pages {
    bar: BarBuf,
    /// Always present, except while the pages are returned.
    pages: Option<P2pmem>,
}

impl Drop for Pages {
    fn drop(&mut self) {
        let pages = self.pages.take();
        if !self.bar.close("it was given back") {
            // An access that does not end would reach the next borrower's bytes.
            tracing::error!(target: "peerdma::peer-memory", "{:?} is lost to its pool", self.bar);
            std::mem::forget(pages);
        }
    }
}

impl Cmb {
    /// `len` bytes at the beginning of a BAR of the function at `bdf`, all of them free.
    ///
    /// # Errors
    ///
    /// [`CmbError`].
    pub fn new(
        p2pdma: &Arc<P2pdma>,
        name: &str,
        bdf: Bdf,
        bar: u8,
        len: u64,
    ) -> Result<Self, CmbError> {
        let size = usize::try_from(len).map_err(|_| CmbError::TooLong { len })?;
        p2pdma.add_resource(bdf, bar, len, 0)?;
        let memory = HostBuf::memfd("peerdma-cmb", size)?;
        let base = p2pdma.provider(bdf, bar).map_or(0, |provider| provider.bar.addr);
        Ok(Self { name: name.to_owned(), bdf, p2pdma: Arc::clone(p2pdma), memory, base })
    }
}

impl MemoryProvider for Cmb {
    fn name(&self) -> &str {
        &self.name
    }

    fn bdf(&self) -> Bdf {
        self.bdf
    }

    fn allocate(&self, len: u64) -> Result<Allocation, String> {
        let what = format!("the memory buffer of {}", self.name);
        let pages = self.p2pdma.alloc(self.bdf, len).ok_or_else(|| {
            let free = self.p2pdma.view(self.bdf).map_or(0, |view| view.available);
            format!("{what} has no {len:#x} bytes in a row: {free:#x} are free")
        })?;
        let failed = |error: &dyn std::error::Error| format!("{what}: {error}");
        let file = self.memory.fd().ok_or_else(|| format!("{what} is in no file"))?;
        let range = BarRange {
            owner: self.name.clone(),
            what: what.clone(),
            tree: Arc::clone(self.p2pdma.tree()),
            bdf: Some(self.bdf),
            file: file.try_clone_to_owned().map_err(|error| failed(&error))?,
            offset: pages.addr() - self.base,
            len: pages.len().next_multiple_of(4096),
        };
        let bar = BarBuf::new(range, "cmb").map_err(|error: BarError| failed(&error))?;
        let buffer = bar.buffer().clone();
        Ok(Allocation { buffer, hold: Box::new(Pages { bar, pages: Some(pages) }) })
    }

    fn revoke_all(&self, held: Vec<Allocation>, why: &str) {
        for Allocation { hold, .. } in held {
            let Ok(pages) = hold.downcast::<Pages>() else { continue };
            if let Err(error) = pages.bar.revoke(why, PATIENCE) {
                tracing::warn!(target: "peerdma::peer-memory", "{}: {error}", self.name);
            }
        }
    }
}
