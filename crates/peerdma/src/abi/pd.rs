//! Protection domains.

use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;

use device::Hca;
use device::ids::PdId;

use super::boundary::control;
use super::context::opened;
use super::errno;
use super::object::Object;
use super::types::context::Context;
use super::types::pd::Pd;

/// The library's part of a protection domain.
pub(crate) struct OwnPd {
    pub(crate) hca: Arc<Hca>,
    pub(crate) id: PdId,
}

pub(crate) type PdObject = Object<Pd, OwnPd>;

pub(crate) unsafe extern "C" fn ibv_alloc_pd(context: *mut Context) -> *mut Pd {
    control("ibv_alloc_pd", ptr::null_mut(), || {
        // SAFETY: contract: the context is one of ours.
        let open = unsafe { opened(context) };
        errno::or_null(open.hca.lock().alloc_pd(open.id).map(|id| {
            let hca = Arc::clone(&open.hca);
            PdObject::create(Pd { context, handle: id.handle() }, OwnPd { hca, id })
        }))
    })
}

pub(crate) unsafe extern "C" fn ibv_dealloc_pd(pd: *mut Pd) -> c_int {
    control("ibv_dealloc_pd", libc::EIO, || {
        // SAFETY: contract: the PD is one of ours.
        let own = unsafe { PdObject::own(pd) };
        if let Err(refusal) = own.hca.lock().dealloc_pd(own.id) {
            return errno::of(refusal.kind());
        }
        // SAFETY: contract: the program uses it no more.
        drop(unsafe { PdObject::destroy(pd) });
        0
    })
}
