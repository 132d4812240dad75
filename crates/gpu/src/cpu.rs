//! CPU mappings of a buffer.

use std::fmt;
use std::sync::Arc;

use descriptors::Known;
use dmabuf::Zap;

use crate::bo::BoInner;
use crate::error::Result;
use crate::pools::Resource;

/// The pages of a buffer for the CPU to map. The buffer stays there while this exists, unless it is
/// taken away for good.
#[must_use = "the buffer may move when this is dropped"]
pub struct CpuPages {
    bo: Arc<BoInner>,
    /// The pages are not reused while they may be mapped, whatever happens to the buffer.
    resource: Arc<Resource>,
    zap: Zap,
}

impl CpuPages {
    pub(crate) fn of(bo: &Arc<BoInner>) -> Result<Self> {
        let resv = bo.resv.lock();
        let resource = bo.pin_for_cpu(&resv, false)?;
        let zap = Zap::default();
        // Under the lock: a thread that takes the buffer away either came before, and then this is
        // refused, or comes after and finds it.
        bo.cpu_maps().push(zap.clone());
        Ok(Self { bo: Arc::clone(bo), resource, zap })
    }

    /// The file to map.
    pub fn file(&self) -> &Arc<Known> {
        self.bo.device.pools.file(self.resource.domain)
    }

    /// Where the buffer begins in the file.
    pub fn offset(&self) -> u64 {
        self.resource.offset
    }

    /// How long the buffer is.
    pub fn len(&self) -> u64 {
        self.bo.size
    }

    /// Never true: a buffer has at least one page.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// How the mapping is taken away when the GPU is removed; the code that maps it sets this.
    pub fn zap(&self) -> &Zap {
        &self.zap
    }
}

impl Drop for CpuPages {
    fn drop(&mut self) {
        self.bo.cpu_maps().retain(|zap| !zap.is_same(&self.zap));
        self.bo.unpin(false);
    }
}

impl fmt::Debug for CpuPages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("CpuPages");
        debug.field("bo", &self.bo.name()).field("offset", &self.offset()).finish_non_exhaustive()
    }
}
