//! Protection domains.

use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;

use super::boundary::control;
use super::errno;
use super::own::context::opened;
use super::own::pd::{self as own_pd, OwnPd, PdObject, Role};
use super::types::context::Context;
use super::types::pd::Pd;

pub(crate) unsafe extern "C" fn ibv_alloc_pd(context: *mut Context) -> *mut Pd {
    control("ibv_alloc_pd", ptr::null_mut(), || {
        // SAFETY: contract: the context is one of ours.
        let open = unsafe { opened(context) };
        errno::or_null(open.hca.alive().and_then(|mut engine| engine.alloc_pd(open.id)).map(|id| {
            let hca = Arc::clone(&open.hca);
            PdObject::create(
                Pd { context, handle: id.handle() },
                OwnPd { hca, id, role: Role::Whole },
            )
        }))
    })
}

pub(crate) unsafe extern "C" fn ibv_dealloc_pd(pd: *mut Pd) -> c_int {
    control("ibv_dealloc_pd", libc::EIO, || {
        // SAFETY: contract: the PD is one of ours.
        let own = unsafe { PdObject::lookup(pd) };
        match own.role {
            Role::Whole => {
                if let Err(refusal) = own.hca.lock().dealloc_pd(own.id) {
                    return errno::of(refusal.kind());
                }
            }
            // SAFETY: a thread domain outlives the parent domains that name it: freeing it earlier
            // is refused.
            Role::Parent { td } => unsafe { own_pd::release(own, td) },
        }
        // SAFETY: contract: the program uses it no more.
        drop(unsafe { PdObject::destroy(pd) });
        0
    })
}
