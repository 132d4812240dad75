//! Shared receive queues: creation, modification, destruction. [`super::post`] fills them.

use std::ffi::{c_int, c_void};
use std::mem;
use std::ptr;
use std::sync::Arc;

use device::ids::SrqId;
use device::{Hca, Kind, Refusal};

use super::acks::Acks;
use super::boundary::control;
use super::errno;
use super::object::{Object, given, room, same_device};
use super::own::context::opened;
use super::own::cq;
use super::own::pd::{self, PdObject};
use super::types::context::Context;
use super::types::pd::Pd;
use super::types::srq::{Srq, SrqAttr, SrqInitAttr, SrqInitAttrEx};
use super::xrc::XrcdObject;

/// The library's part of a shared receive queue.
pub(crate) struct OwnSrq {
    pub(crate) hca: Arc<Hca>,
    pub(crate) id: SrqId,
    pub(crate) acks: Acks,
}

pub(crate) type SrqObject = Object<Srq, OwnSrq>;

pub(crate) unsafe extern "C" fn ibv_create_srq(pd: *mut Pd, attr: *mut SrqInitAttr) -> *mut Srq {
    control("ibv_create_srq", ptr::null_mut(), || {
        // SAFETY: contract: the attributes are valid.
        let attr = unsafe { given(attr) };
        // SAFETY: contract: the PD is one of ours.
        errno::or_null(unsafe { create(pd, attr.srq_context, attr.attr) })
    })
}

/// Bits of [`SrqInitAttrEx::comp_mask`].
mod mask {
    pub(super) const TYPE: u32 = 1;
    pub(super) const PD: u32 = 1 << 1;
    pub(super) const XRCD: u32 = 1 << 2;
    pub(super) const CQ: u32 = 1 << 3;
    pub(super) const TM: u32 = 1 << 4;
}

/// `IBV_SRQT_XRC` and `IBV_SRQT_TM`.
const TYPE_XRC: u32 = 1;
const TYPE_TM: u32 = 2;

pub(crate) unsafe extern "C" fn create_srq_ex(
    context: *mut Context,
    attr: *mut SrqInitAttrEx,
) -> *mut Srq {
    control("ibv_create_srq_ex", ptr::null_mut(), || {
        // SAFETY: contract: the attributes are valid; only those that the mask names are read.
        let attr = unsafe { given(attr) };
        // SAFETY: contract: the context is one of ours.
        let _ = unsafe { opened(context) };
        if attr.comp_mask & mask::PD != 0 {
            // SAFETY: contract: the mask says that the PD is valid.
            let _ = unsafe { pd::of_context(context, attr.pd) };
        }
        if attr.comp_mask & mask::TYPE != 0 && attr.srq_type == TYPE_XRC {
            // SAFETY: contract: what the mask names is valid.
            return errno::or_null(unsafe { create_xrc(attr) });
        }
        if attr.comp_mask & mask::TYPE != 0 && attr.srq_type == TYPE_TM {
            // SAFETY: contract: what the mask names is valid.
            return errno::or_null(unsafe { create_tm(attr) });
        }
        let is_basic = attr.comp_mask & mask::TYPE == 0 || attr.srq_type == 0;
        let created = if attr.comp_mask & !(mask::TYPE | mask::PD) != 0 || !is_basic {
            let what = format!("ibv_create_srq_ex: comp_mask {:#x}", attr.comp_mask);
            Err(Refusal::new(Kind::NotSupported, what))
        } else if attr.comp_mask & mask::PD == 0 {
            Err(Refusal::new(Kind::Invalid, "ibv_create_srq_ex: a basic SRQ needs a PD"))
        } else {
            // SAFETY: contract: the mask says that the PD is valid, and so it is one of ours.
            unsafe { create(attr.pd, attr.srq_context, attr.attr) }
        };
        errno::or_null(created)
    })
}

/// Creates a queue in a PD of ours. The attributes are granted exactly as requested, so they need
/// not be written back.
unsafe fn create(
    pd: *mut Pd,
    srq_context: *mut c_void,
    wanted: SrqAttr,
) -> Result<*mut Srq, Refusal> {
    // SAFETY: the caller's promise.
    let own = unsafe { PdObject::lookup(pd) };
    // SAFETY: the structure is made of integers and pointers, for which zero is a value; so it is
    // for a mutex and a condition.
    let mut c: Srq = unsafe { mem::zeroed() };
    // SAFETY: the caller's promise.
    c.context = unsafe { (*pd).context };
    c.srq_context = srq_context;
    c.pd = pd;
    let boxed = SrqObject::reserve(c);
    let cookie = boxed.address() as u64;
    let SrqAttr { max_wr, max_sge, srq_limit } = wanted;
    let id = own.hca.alive()?.create_srq(own.id, max_wr, max_sge, srq_limit, cookie)?;
    let hca = Arc::clone(&own.hca);
    Ok(boxed.create(|c| c.handle = id.handle(), OwnSrq { hca, id, acks: Acks::default() }))
}

/// Creates a queue that XRC packets name. The attributes that the mask names are valid.
unsafe fn create_xrc(attr: &SrqInitAttrEx) -> Result<*mut Srq, Refusal> {
    use mask::{CQ, PD, TYPE, XRCD};
    if attr.comp_mask != TYPE | PD | XRCD | CQ {
        let what = format!(
            "ibv_create_srq_ex: comp_mask {:#x}; XRC needs a PD, a domain and a CQ",
            attr.comp_mask
        );
        return Err(Refusal::new(Kind::Invalid, what));
    }
    // SAFETY: the caller's promise.
    let xrcd = unsafe { XrcdObject::lookup(attr.xrcd) };
    // SAFETY: the caller's promise.
    let cq = unsafe { cq::lookup(attr.cq) };
    // SAFETY: the caller's promise.
    let pd = unsafe { PdObject::lookup(attr.pd) };
    same_device(&pd.hca, &xrcd.hca, "the XRC domain");
    same_device(&pd.hca, &cq.hca, "the CQ");
    // SAFETY: the caller's promise.
    let srq = unsafe { create(attr.pd, attr.srq_context, attr.attr) }?;
    // SAFETY: it was created just now.
    let own = unsafe { SrqObject::lookup(srq) };
    let made = own.hca.lock().make_srq_xrc(own.id, xrcd.id, cq.id);
    if let Err(refusal) = made {
        // SAFETY: it was created just now, and nobody has it.
        unsafe { ibv_destroy_srq(srq) };
        return Err(refusal);
    }
    Ok(srq)
}

/// Creates a queue that matches tags. The attributes that the mask names are valid.
unsafe fn create_tm(attr: &SrqInitAttrEx) -> Result<*mut Srq, Refusal> {
    use mask::{CQ, PD, TM, TYPE};
    if attr.comp_mask != TYPE | PD | CQ | TM {
        let what = format!(
            "ibv_create_srq_ex: comp_mask {:#x}; tag matching needs a PD, a CQ and its sizes",
            attr.comp_mask
        );
        return Err(Refusal::new(Kind::Invalid, what));
    }
    // SAFETY: the caller's promise.
    let cq = unsafe { cq::lookup(attr.cq) };
    // SAFETY: the caller's promise.
    let pd = unsafe { PdObject::lookup(attr.pd) };
    same_device(&pd.hca, &cq.hca, "the CQ");
    // SAFETY: the caller's promise.
    let srq = unsafe { create(attr.pd, attr.srq_context, attr.attr) }?;
    // SAFETY: it was created just now.
    let own = unsafe { SrqObject::lookup(srq) };
    let (tags, ops) = (attr.tm_cap.max_num_tags, attr.tm_cap.max_ops);
    let made = own.hca.lock().make_srq_tm(own.id, cq.id, tags, ops);
    if let Err(refusal) = made {
        // SAFETY: it was created just now, and nobody has it.
        unsafe { ibv_destroy_srq(srq) };
        return Err(refusal);
    }
    Ok(srq)
}

/// `IBV_SRQ_MAX_WR`.
const MAX_WR: c_int = 1;
/// `IBV_SRQ_LIMIT`.
const LIMIT: c_int = 1 << 1;

pub(crate) unsafe extern "C" fn ibv_modify_srq(
    srq: *mut Srq,
    attr: *mut SrqAttr,
    mask: c_int,
) -> c_int {
    control("ibv_modify_srq", libc::EIO, || {
        if mask & !(MAX_WR | LIMIT) != 0 {
            return libc::EINVAL;
        }
        // SAFETY: contract: the queue is one of ours.
        let own = unsafe { SrqObject::lookup(srq) };
        // SAFETY: contract: the attributes are valid.
        let attr = unsafe { given(attr) };
        let max_wr = (mask & MAX_WR != 0).then_some(attr.max_wr);
        let limit = (mask & LIMIT != 0).then_some(attr.srq_limit);
        let engine = own.hca.alive();
        errno::or_errno(engine.and_then(|mut engine| engine.modify_srq(own.id, max_wr, limit)))
    })
}

pub(crate) unsafe extern "C" fn ibv_query_srq(srq: *mut Srq, attr: *mut SrqAttr) -> c_int {
    control("ibv_query_srq", libc::EIO, || {
        // SAFETY: contract: the queue is one of ours.
        let own = unsafe { SrqObject::lookup(srq) };
        let attr = room(attr);
        let found = own.hca.alive().and_then(|mut engine| engine.query_srq(own.id));
        errno::or_errno(found.map(|(max_wr, max_sge, srq_limit)| {
            // SAFETY: contract: the program has room for the attributes.
            unsafe { attr.write(SrqAttr { max_wr, max_sge, srq_limit }) };
        }))
    })
}

pub(crate) unsafe extern "C" fn ibv_destroy_srq(srq: *mut Srq) -> c_int {
    control("ibv_destroy_srq", libc::EIO, || {
        // SAFETY: contract: the queue is one of ours.
        let own = unsafe { SrqObject::lookup(srq) };
        let mut engine = own.hca.lock();
        if let Err(refusal) = engine.destroy_srq(own.id) {
            return errno::of(refusal.kind());
        }
        let is_husk = engine.is_husk();
        drop(engine);
        if !is_husk {
            own.acks.wait();
        }
        // SAFETY: contract: the program uses it no more.
        drop(unsafe { SrqObject::destroy(srq) });
        0
    })
}

pub(crate) unsafe extern "C" fn get_srq_num(srq: *mut Srq, number: *mut u32) -> c_int {
    control("ibv_get_srq_num", libc::EIO, || {
        // SAFETY: contract: the queue is one of ours.
        let own = unsafe { SrqObject::own(srq) };
        let number = room(number);
        let found = own.hca.lock().srq_number(own.id);
        errno::or_errno(found.map(|found| {
            // SAFETY: contract: the program has room for the number.
            unsafe { number.write(found) };
        }))
    })
}
