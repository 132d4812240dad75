//! Protection domains.

use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;

use device::Hca;
use device::ids::PdId;

use super::boundary::control;
use super::context::opened;
use super::domain;
use super::errno;
use super::object::{Object, bad};
use super::types::context::Context;
use super::types::pd::{Pd, Td};

/// The library's part of a protection domain.
pub(crate) struct OwnPd {
    pub(crate) hca: Arc<Hca>,
    pub(crate) id: PdId,
    pub(crate) role: Role,
}

/// What a protection domain is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// One of the device.
    Whole,
    /// Another name for one, with the thread domain that came with it or NULL.
    Parent { td: *mut Td },
}

pub(crate) type PdObject = Object<Pd, OwnPd>;

/// The library's part of a protection domain, which is to be of the same opening as the context.
///
/// # Safety
///
/// Both are null or objects of ours, of now or of old.
pub(crate) unsafe fn of_context<'a>(context: *mut Context, pd: *mut Pd) -> &'a OwnPd {
    // SAFETY: the caller's promise.
    let own = unsafe { PdObject::lookup(pd) };
    // SAFETY: it is one of ours.
    let of = unsafe { (*pd).context };
    // SAFETY: the caller's promise.
    let [one, other] = [context, of].map(|context| unsafe { opened(context) });
    if !Arc::ptr_eq(&one.hca, &other.hca) || one.id != other.id {
        bad("the protection domain is of another context".to_owned());
    }
    own
}

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
            Role::Parent { td } => unsafe { domain::release(own, td) },
        }
        // SAFETY: contract: the program uses it no more.
        drop(unsafe { PdObject::destroy(pd) });
        0
    })
}
