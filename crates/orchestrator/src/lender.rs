//! Who lends memory.

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use dmabuf::DmaBuf;
use pci::Bdf;

use crate::place::Inner;

/// A device that lends memory of its own, as dma-bufs.
///
/// What it lends is revocable: it tells importers before it takes anything back.
pub trait Lender: Send + Sync {
    /// What people call the device.
    fn name(&self) -> &str;

    /// Where it is.
    fn bdf(&self) -> Bdf;

    /// At least `len` bytes of its memory.
    ///
    /// # Errors
    ///
    /// In words: why there are none.
    fn lend(&self, len: u64) -> Result<Lent, String>;

    /// The device leaves: takes all that it lent away from everybody, and returns when nobody
    /// reaches it any more. `held` is what was lent and not given back.
    fn call_back(&self, held: Vec<Lent>, why: &str);
}

/// Memory that was lent: a dma-buf, and what keeps the memory the borrower's. Dropping it gives
/// the memory back.
pub struct Lent {
    /// What clients attach to.
    pub buffer: DmaBuf,
    /// The lender's.
    pub hold: Box<dyn Any + Send + Sync>,
}

/// A lender that others find. Dropping it hides the lender and takes its memory back.
#[must_use = "the lender is removed when this is dropped"]
pub struct Published {
    pub(crate) inner: Arc<Inner>,
    pub(crate) lender: Arc<dyn Lender>,
}

impl Published {
    /// The device leaves: nobody finds it any more, then everybody loses its memory, and then it is
    /// no provider.
    pub fn remove(self, why: &str) {
        self.inner.remove(&self.lender, why);
    }
}

impl Drop for Published {
    fn drop(&mut self) {
        self.inner.remove(&self.lender, "its driver let go of it");
    }
}

impl fmt::Debug for Lent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lent").field("buffer", &self.buffer).finish_non_exhaustive()
    }
}

impl fmt::Debug for Published {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Published").field("lender", &self.lender.name()).finish_non_exhaustive()
    }
}
