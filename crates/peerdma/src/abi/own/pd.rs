//! Protection domains and thread domains, as the library has them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use device::Hca;
use device::ids::PdId;

use super::context::opened;
use crate::abi::object::{Object, bad};
use crate::abi::types::context::Context;
use crate::abi::types::pd::{Pd, Td};

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

/// The library's part of a protection domain, which must belong to the same opening as the context.
///
/// # Safety
///
/// Both are null, or objects of ours, alive or destroyed.
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

/// The library's part of a thread domain.
#[derive(Default)]
pub(crate) struct OwnTd {
    /// Parent domains that name it.
    pub(crate) parents: AtomicU32,
}

pub(crate) type TdObject = Object<Td, OwnTd>;

/// Undoes what a parent domain counted.
///
/// # Safety
///
/// The thread domain is NULL or one of ours.
pub(crate) unsafe fn release(own: &OwnPd, td: *mut Td) {
    own.hca.lock().release_pd(own.id);
    if !td.is_null() {
        // SAFETY: the caller's promise: it cannot be freed while it is counted.
        unsafe { TdObject::own(td) }.parents.fetch_sub(1, Ordering::AcqRel);
    }
}
