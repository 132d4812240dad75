//! How an exporter moves memory under its importers, or takes it away.

use std::sync::{PoisonError, Weak};
use std::time::Duration;

use crate::DmaBuf;
use crate::attachment::Attachment;
use crate::fence::{deadline_of, left_until};
use crate::resv::{ResvGuard, Usage};

/// Memory that had to be taken away is still in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StillInUse {
    /// Work on the memory is not done: importers may still read and write.
    #[error("the memory is still used: {count} fences were not signaled in time")]
    Fences {
        /// How many remain.
        count: usize,
    },
    /// Attachments have not dropped their mappings.
    #[error("the memory is still mapped: {count} mappings were not given back in time")]
    Mapped {
        /// How many remain.
        count: usize,
    },
}

impl DmaBuf {
    /// For the exporter, when it moves or takes away the memory: tells every importer of a
    /// revocable class that its mappings are invalid. Importers of other classes are skipped and
    /// keep their access.
    ///
    /// Importers may still access the memory when this returns, until their fences of any class are
    /// signaled: a mover waits with `resv().wait(Usage::Bookkeep, ..)` before it reuses the old
    /// place. New mappings may be requested as soon as the lock is released, so an exporter that
    /// revokes must make its own [`Exporter::map_dma_buf`](crate::Exporter::map_dma_buf) fail
    /// before it calls this; see [`revoke`](Self::revoke).
    ///
    /// # Panics
    ///
    /// If `resv` is the guard of another lock.
    #[doc(alias = "dma_buf_invalidate_mappings")]
    pub fn invalidate_mappings(&self, resv: &ResvGuard<'_>) {
        assert!(resv.protects(self.resv()), "the exporter holds this buffer's lock");
        // Copied out: a callback may drop its attachment, which uses the list.
        let attachments: Vec<_> =
            self.shared().attachments().iter().filter_map(Weak::upgrade).collect();
        for attachment in attachments {
            Attachment::from_inner(attachment).invalidate(resv);
        }
    }

    /// The whole sequence by which an exporter takes memory away (`docs/semantics.md` 1.6). Under
    /// the lock, `set_revoked` makes further maps fail; then this tells all revocable importers and
    /// waits for the fences of all classes: until then importers have full access. Then, without
    /// the lock, it waits until the last mapping is gone: until then they may read and discard.
    ///
    /// `limit` is for both waits together. `None` waits forever, as VFIO does, and is only safe for
    /// an exporter that refuses importers which cannot be revoked.
    ///
    /// # Errors
    ///
    /// [`StillInUse`]: the limit has passed. The importers were told nevertheless.
    pub fn revoke(
        &self,
        set_revoked: impl FnOnce(&ResvGuard<'_>),
        limit: Option<Duration>,
    ) -> Result<(), StillInUse> {
        self.resv().assert_unlocked("revoke");
        let deadline = deadline_of(limit);
        let resv = self.resv().lock();
        set_revoked(&resv);
        self.invalidate_mappings(&resv);
        let fences = self.resv().wait(Usage::Bookkeep, left_until(deadline));
        drop(resv);
        if fences.is_err() {
            let count = self.resv().fences(Usage::Bookkeep).len();
            return Err(StillInUse::Fences { count });
        }
        self.wait_unmapped(left_until(deadline))
    }

    /// Waits until no attachment has the buffer mapped. Must not be called with the reservation
    /// lock held.
    ///
    /// # Errors
    ///
    /// [`StillInUse::Mapped`]: not within `limit`.
    pub fn wait_unmapped(&self, limit: Option<Duration>) -> Result<(), StillInUse> {
        self.resv().assert_unlocked("wait_unmapped");
        let deadline = deadline_of(limit);
        let mut maps = self.shared().maps();
        while *maps > 0 {
            let unmapped = &self.shared().unmapped;
            maps = match left_until(deadline) {
                None => unmapped.wait(maps).unwrap_or_else(PoisonError::into_inner),
                Some(left) if left.is_zero() => return Err(StillInUse::Mapped { count: *maps }),
                Some(left) => {
                    unmapped.wait_timeout(maps, left).unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        Ok(())
    }
}
