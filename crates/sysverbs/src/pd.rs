//! Protection domains.

use std::ptr::NonNull;
use std::sync::Arc;

use verbs_abi::pd::Pd as CPd;

use crate::context::Context;
use crate::error::{Error, Result};

/// A protection domain. Clones are the same one.
#[derive(Clone, Debug)]
#[doc(alias = "ibv_pd")]
pub struct Pd(Arc<Domain>);

#[derive(Debug)]
struct Domain {
    raw: NonNull<CPd>,
    context: Context,
}

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

impl Drop for Domain {
    fn drop(&mut self) {
        let dealloc = self.context.functions().ibv_dealloc_pd;
        // SAFETY: every object of the domain holds it, so none is left.
        unsafe { dealloc(self.raw.as_ptr()) };
    }
}

impl Context {
    /// Allocates a protection domain.
    ///
    /// # Errors
    ///
    /// The library's.
    #[doc(alias = "ibv_alloc_pd")]
    pub fn alloc_pd(&self) -> Result<Pd> {
        let alloc = self.functions().ibv_alloc_pd;
        // SAFETY: the context is open.
        let raw = unsafe { alloc(self.raw()) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last("ibv_alloc_pd"))?;
        Ok(Pd(Arc::new(Domain { raw, context: self.clone() })))
    }
}

impl Pd {
    /// The device it is of.
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    pub(crate) fn raw(&self) -> *mut CPd {
        self.0.raw.as_ptr()
    }
}
