//! Memory windows of type 2.

use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

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
    /// Held by those that read or change the key of the structure, a library included.
    key: Mutex<()>,
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
        Ok(Mw(Arc::new(Window { raw, key: Mutex::default(), region: self.clone() })))
    }
}

impl Mw {
    pub(crate) fn raw(&self) -> *mut CMw {
        self.0.raw.as_ptr()
    }

    fn key(&self) -> MutexGuard<'_, ()> {
        self.0.key.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Its key: that of the last request that was posted to bind it.
    pub fn rkey(&self) -> RKey {
        let _key = self.key();
        // SAFETY: the window exists, and nobody changes the field meanwhile.
        RKey(unsafe { (*self.raw()).rkey })
    }

    /// Posts a request that binds it and gives it another key. A provider names a window by the key
    /// that its structure has, which the caller of `ibv_post_send` sets afterwards (`rxe_bind_mw`
    /// of the kernel compares it).
    pub(crate) fn bind<E>(
        &self,
        key: RKey,
        post: impl FnOnce() -> std::result::Result<(), E>,
    ) -> std::result::Result<(), E> {
        let _key = self.key();
        post()?;
        let raw = self.raw();
        // SAFETY: the window exists, and nobody changes the field meanwhile.
        let old = unsafe { (*raw).rkey };
        // SAFETY: as above, and nobody reads it.
        unsafe { (*raw).rkey = old & !0xff | key.0 & 0xff };
        Ok(())
    }

    /// The region that it is made on.
    pub fn region(&self) -> &Mr {
        &self.0.region
    }
}
