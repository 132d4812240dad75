//! Where the CPU maps a buffer.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::bo::BoInner;
use crate::error::Result;

/// Where the CPU may map a buffer. The buffer stays there while this exists.
#[must_use = "the buffer may move when this is dropped"]
pub struct CpuPages {
    bo: Arc<BoInner>,
    file: Arc<OwnedFd>,
    offset: u64,
}

impl CpuPages {
    pub(crate) fn of(bo: &Arc<BoInner>) -> Result<Self> {
        let resource = bo.pin_for_cpu(&bo.resv.lock())?;
        let file = Arc::clone(bo.device.pools.file(resource.domain));
        Ok(Self { bo: Arc::clone(bo), file, offset: resource.offset })
    }

    /// The file to map.
    pub fn file(&self) -> &Arc<OwnedFd> {
        &self.file
    }

    /// Where in the file the buffer begins.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// How long the buffer is.
    pub fn len(&self) -> u64 {
        self.bo.size
    }

    /// Never: a buffer has at least one page.
    pub fn is_empty(&self) -> bool {
        false
    }
}

impl Drop for CpuPages {
    fn drop(&mut self) {
        self.bo.unpin(true);
    }
}

impl fmt::Debug for CpuPages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut debug = f.debug_struct("CpuPages");
        debug.field("bo", &self.bo.name()).field("offset", &self.offset).finish_non_exhaustive()
    }
}
