//! Address handles.

use std::ptr::NonNull;
use std::sync::Arc;

use iba::Av;
use verbs_abi::ah::Ah as CAh;

use crate::attr;
use crate::error::{Error, Result};
use crate::pd::Pd;

/// An address handle. Clones are the same one.
#[derive(Clone, Debug)]
#[doc(alias = "ibv_ah")]
pub struct Ah(Arc<Handle>);

#[derive(Debug)]
struct Handle {
    raw: NonNull<CAh>,
    pd: Pd,
}

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for Handle {}
// SAFETY: as above.
unsafe impl Sync for Handle {}

impl Drop for Handle {
    fn drop(&mut self) {
        let destroy = self.pd.context().functions().ibv_destroy_ah;
        // SAFETY: requests that may still use it hold it, so none is left.
        unsafe { destroy(self.raw.as_ptr()) };
    }
}

impl Pd {
    /// Creates an address handle.
    ///
    /// # Errors
    ///
    /// The library's.
    #[doc(alias = "ibv_create_ah")]
    pub fn create_ah(&self, av: &Av) -> Result<Ah> {
        let create = self.context().functions().ibv_create_ah;
        let mut attr = attr::ah_attr(av);
        // SAFETY: the domain exists, and the structure is valid.
        let raw = unsafe { create(self.raw(), &raw mut attr) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last("ibv_create_ah"))?;
        Ok(Ah(Arc::new(Handle { raw, pd: self.clone() })))
    }
}

impl Ah {
    pub(crate) fn raw(&self) -> *mut CAh {
        self.0.raw.as_ptr()
    }

    /// The domain it is in.
    pub fn pd(&self) -> &Pd {
        &self.0.pd
    }
}
