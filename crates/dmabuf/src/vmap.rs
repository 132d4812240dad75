//! The buffer mapped for code on the exporter's CPU.

use std::fmt;
use std::sync::{Arc, PoisonError};

use crate::DmaBuf;
use crate::exporter::{ExporterError, IosysMap};
use crate::resv::ResvGuard;
use crate::shared::Shared;

/// The buffer's memory as the exporter's CPU sees it, while this exists.
#[must_use = "the map goes away with the guard"]
pub struct VmapGuard {
    shared: Arc<Shared>,
    map: IosysMap,
}

impl DmaBuf {
    /// Maps the buffer for code on the exporter's CPU. The exporter is asked once for any number of
    /// users.
    ///
    /// # Errors
    ///
    /// The exporter's refusal.
    ///
    /// # Panics
    ///
    /// If `resv` is the guard of another lock.
    #[doc(alias = "dma_buf_vmap")]
    pub fn vmap(&self, resv: &ResvGuard<'_>) -> Result<VmapGuard, ExporterError> {
        let shared = self.shared();
        assert!(resv.protects(shared.resv()), "the caller holds this buffer's lock");
        let mut vmap = shared.vmap.lock().unwrap_or_else(PoisonError::into_inner);
        let map = match &mut *vmap {
            Some((map, users)) => {
                *users += 1;
                *map
            }
            None => {
                let map = shared.exporter().vmap(resv).inspect_err(|reason| {
                    tracing::warn!("{} gives no CPU map: {reason}", shared.exporter().name());
                })?;
                *vmap = Some((map, 1));
                map
            }
        };
        Ok(VmapGuard { shared: Arc::clone(shared), map })
    }

    /// As [`vmap`](Self::vmap), taking the lock for the call.
    ///
    /// # Errors
    ///
    /// The exporter's refusal.
    #[doc(alias = "dma_buf_vmap_unlocked")]
    pub fn vmap_unlocked(&self) -> Result<VmapGuard, ExporterError> {
        self.resv().assert_unlocked("vmap_unlocked");
        self.vmap(&self.resv().lock())
    }
}

impl VmapGuard {
    /// Where the memory is.
    pub fn map(&self) -> IosysMap {
        self.map
    }
}

impl Drop for VmapGuard {
    fn drop(&mut self) {
        let shared = Arc::clone(&self.shared);
        self.shared.resv().when_locked(move |resv| {
            let mut vmap = shared.vmap.lock().unwrap_or_else(PoisonError::into_inner);
            let Some((map, users)) = &mut *vmap else { return };
            *users -= 1;
            if *users == 0 {
                shared.exporter().vunmap(resv, *map);
                *vmap = None;
            }
        });
    }
}

impl fmt::Debug for VmapGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("VmapGuard").field(&self.map).finish()
    }
}
