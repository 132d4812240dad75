//! Memory windows of type 2.

use std::ptr::NonNull;
use std::sync::Arc;

use iba::RKey;
use verbs_abi::mr::Mw as CMw;

use crate::error::{Error, Result};
use crate::mr::Mr;

/// `IBV_MW_TYPE_2`.
const TYPE_2: u32 = 2;

/// A memory window. Clones are the same one.
#[derive(Clone, Debug)]
#[doc(alias = "ibv_mw")]
pub struct Mw(Arc<Window>);

#[derive(Debug)]
struct Window {
    raw: NonNull<CMw>,
    region: Mr,
}

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for Window {}
// SAFETY: as above.
unsafe impl Sync for Window {}

impl Drop for Window {
    fn drop(&mut self) {
        if let Some(dealloc) = self.region.pd().context().ops().dealloc_mw {
            // SAFETY: the window exists.
            unsafe { dealloc(self.raw.as_ptr()) };
        }
    }
}

impl Mr {
    /// Makes a window on this region.
    ///
    /// # Errors
    ///
    /// The library's; EOPNOTSUPP if the provider has no windows.
    #[doc(alias = "ibv_alloc_mw")]
    pub fn window(&self) -> Result<Mw> {
        const CALL: &str = "ibv_alloc_mw";
        let alloc = self.pd().context().ops().alloc_mw.ok_or(Error::absent(CALL))?;
        // SAFETY: the domain exists.
        let raw = unsafe { alloc(self.pd().raw(), TYPE_2) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last(CALL))?;
        // The header fills these in (`ibv_alloc_mw`).
        let (context, pd) = (self.pd().context().raw(), self.pd().raw());
        // SAFETY: the provider made it a moment ago, and nothing else has it.
        let window = unsafe { &mut *raw.as_ptr() };
        window.context = context;
        window.pd = pd;
        window.r#type = TYPE_2;
        Ok(Mw(Arc::new(Window { raw, region: self.clone() })))
    }
}

impl Mw {
    pub(crate) fn raw(&self) -> *mut CMw {
        self.0.raw.as_ptr()
    }

    /// Its key when it was made; a request that binds it gives it another one.
    pub fn rkey(&self) -> RKey {
        // SAFETY: the window exists; posting a bind does not change this field.
        RKey(unsafe { (*self.raw()).rkey })
    }

    /// The region that it is made on.
    pub fn region(&self) -> &Mr {
        &self.0.region
    }
}
