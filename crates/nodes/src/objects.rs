//! Buffers of an open node: making them, and finding them by the offset that a program maps.

use std::sync::Arc;

use gpu::Place;

use crate::file::File;
use crate::maps::Wanted;
use crate::node::Object;
use crate::state::State;
use crate::{Result, pages, refused};

impl File {
    /// Makes a buffer and a handle for it, and returns its size.
    pub(crate) fn create(
        &self,
        state: &State,
        size: u64,
        place: Place,
        cpu_access: bool,
    ) -> Result<(u32, u64)> {
        let size = pages(size).filter(|size| *size > 0).ok_or(libc::EINVAL)?;
        let bo = self.node.gpu()?.alloc(size, place).map_err(|error| refused(&error))?;
        let offset = state.new_offset(size);
        let object = Object { bo, node: Arc::clone(&self.node), offset, cpu_access };
        let object = Arc::new(object);
        self.node.add(&object);
        Ok((self.add(object), size))
    }

    /// The buffer with this offset. `mmap` must begin at its first byte, as with `drm_gem_mmap`.
    #[doc(alias = "drm_gem_mmap")]
    pub(crate) fn find(&self, state: &State, wanted: &Wanted, offset: u64) -> Result<Arc<Object>> {
        let Some(object) = self.at(offset) else {
            let elsewhere = state.files().iter().any(|file| file.at(offset).is_some());
            return Err(if elsewhere { libc::EACCES } else { libc::EINVAL });
        };
        if !object.cpu_access {
            return Err(libc::EPERM);
        }
        if wanted.writes() && !self.is_writable {
            return Err(libc::EACCES);
        }
        Ok(object)
    }
}
