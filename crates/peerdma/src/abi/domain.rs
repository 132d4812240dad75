//! Thread domains and parent domains.
//!
//! A thread domain is a promise that one thread at a time uses what is in it, which lets a driver
//! omit locks. The engine has one lock for everything, so there is nothing to omit. A parent domain
//! is another name for a protection domain; its allocators are for the queues that a provider keeps
//! in the program's memory, and this one keeps none: they are never called.

use std::ffi::c_int;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use device::{Kind, Refusal};

use super::boundary::control;
use super::errno;
use super::object::given;
use super::own::context::opened;
use super::own::pd::{self, OwnPd, OwnTd, PdObject, Role, TdObject};
use super::types::context::Context;
use super::types::pd::{ParentDomainInitAttr, Pd, Td, TdInitAttr};

pub(crate) unsafe extern "C" fn alloc_td(context: *mut Context, attr: *mut TdInitAttr) -> *mut Td {
    control("ibv_alloc_td", ptr::null_mut(), || {
        // SAFETY: contract: the context is one of ours.
        let _ = unsafe { opened(context) };
        // SAFETY: contract: the attributes are valid.
        let mask = unsafe { given(attr) }.comp_mask;
        if mask != 0 {
            let what = format!("ibv_alloc_td: comp_mask {mask:#x}");
            return errno::or_null(Err(Refusal::new(Kind::Invalid, what)));
        }
        TdObject::create(Td { context }, OwnTd::default())
    })
}

pub(crate) unsafe extern "C" fn dealloc_td(td: *mut Td) -> c_int {
    control("ibv_dealloc_td", libc::EIO, || {
        // SAFETY: contract: the domain is one of ours.
        let own = unsafe { TdObject::own(td) };
        let parents = own.parents.load(Ordering::Acquire);
        if parents > 0 {
            let what = format!("ibv_dealloc_td: {parents} parent domains name it");
            return errno::or_errno(Err(Refusal::new(Kind::Busy, what)));
        }
        // SAFETY: contract: the program uses it no more.
        let _ = unsafe { TdObject::destroy(td) };
        0
    })
}

/// Bits of [`ParentDomainInitAttr::comp_mask`].
mod mask {
    pub(super) const ALLOCATORS: u32 = 1;
    pub(super) const PD_CONTEXT: u32 = 1 << 1;
    /// Buffers may lie in memory that a confidential guest shares with its host. No device here
    /// needs that, so any memory will do.
    pub(super) const ALLOW_CC_UNPROTECTED_ALLOC: u32 = 1 << 2;
    pub(super) const KNOWN: u32 = ALLOCATORS | PD_CONTEXT | ALLOW_CC_UNPROTECTED_ALLOC;
}

pub(crate) unsafe extern "C" fn alloc_parent_domain(
    context: *mut Context,
    attr: *mut ParentDomainInitAttr,
) -> *mut Pd {
    control("ibv_alloc_parent_domain", ptr::null_mut(), || {
        // SAFETY: contract: the attributes are valid.
        let attr = unsafe { given(attr) };
        // SAFETY: contract: the domains that they name are ours.
        errno::or_null(unsafe { parent(context, attr) })
    })
}

/// Creates a parent domain over a PD and, if there is one, a thread domain of ours.
unsafe fn parent(context: *mut Context, attr: &ParentDomainInitAttr) -> Result<*mut Pd, Refusal> {
    let invalid =
        |what: &str| Err(Refusal::new(Kind::Invalid, format!("ibv_alloc_parent_domain: {what}")));
    if attr.pd.is_null() {
        return invalid("no protection domain");
    }
    if attr.comp_mask & !mask::KNOWN != 0 {
        return invalid(&format!("comp_mask {:#x}", attr.comp_mask));
    }
    // SAFETY: the caller's promise.
    let whole = unsafe { pd::of_context(context, attr.pd) };
    // SAFETY: the caller's promise.
    let td = (!attr.td.is_null()).then(|| unsafe { TdObject::own(attr.td) });
    whole.hca.lock().hold_pd(whole.id)?;
    if let Some(td) = td {
        td.parents.fetch_add(1, Ordering::AcqRel);
    }
    let c = Pd { context, handle: whole.id.handle() };
    let role = Role::Parent { td: attr.td };
    Ok(PdObject::create(c, OwnPd { hca: Arc::clone(&whole.hca), id: whole.id, role }))
}
