//! Shared receive queues of identifiers.

use std::ffi::c_int;
use std::mem;
use std::ptr;

use iba::QpType;

use super::id::structure;
use super::qp::{create_cqs, destroy_cqs, nic_of};
use super::{Answer, Failure, call};
use crate::abi::object::given_mut;
use crate::abi::srq::{create_srq_ex, ibv_destroy_srq};
use crate::abi::types::CEnum;
use crate::abi::types::pd::Pd;
use crate::abi::types::rdma::CmId;
use crate::abi::types::srq::{SrqInitAttr, SrqInitAttrEx};

/// Bits of [`SrqInitAttrEx::comp_mask`].
const HAS_TYPE: u32 = 1;
const HAS_PD: u32 = 1 << 1;
const HAS_XRCD: u32 = 1 << 2;
const HAS_CQ: u32 = 1 << 3;

/// `IBV_SRQT_BASIC` and `IBV_SRQT_XRC`.
const BASIC: CEnum = 0;
const XRC: CEnum = 1;

pub(crate) unsafe extern "C" fn rdma_create_srq(
    id: *mut CmId,
    pd: *mut Pd,
    attr: *mut SrqInitAttr,
) -> c_int {
    call("rdma_create_srq", || {
        // SAFETY: contract: the identifier is one of ours.
        let qp_type = unsafe { structure(id) }.qp_type;
        // SAFETY: contract: the attributes are valid.
        let basic = unsafe { given_mut(attr) };
        // SAFETY: the structure is made of integers and pointers, for which zero is a value.
        let mut wanted: SrqInitAttrEx = unsafe { mem::zeroed() };
        (wanted.srq_context, wanted.attr) = (basic.srq_context, basic.attr);
        wanted.comp_mask = HAS_TYPE | HAS_PD;
        wanted.srq_type = if qp_type == QpType::XrcRecv as CEnum { XRC } else { BASIC };
        wanted.pd = pd;
        // SAFETY: contract: as above.
        let made = unsafe { create(id, &mut wanted) };
        basic.attr = wanted.attr;
        made
    })
}

pub(crate) unsafe extern "C" fn rdma_create_srq_ex(
    id: *mut CmId,
    attr: *mut SrqInitAttrEx,
) -> c_int {
    call("rdma_create_srq_ex", || {
        // SAFETY: contract: the attributes are valid.
        let attr = unsafe { given_mut(attr) };
        // SAFETY: contract: the identifier is one of ours.
        unsafe { create(id, attr) }
    })
}

unsafe fn create(id: *mut CmId, attr: &mut SrqInitAttrEx) -> Answer {
    // SAFETY: the caller's promise.
    let c = unsafe { structure(id) };
    if attr.comp_mask & HAS_TYPE == 0 {
        return Err(Failure::new(libc::EINVAL, "rdma_create_srq_ex: no type"));
    }
    let nic = nic_of(c, "rdma_create_srq")?;
    if attr.comp_mask & HAS_PD == 0 || attr.pd.is_null() {
        attr.pd = c.pd;
        attr.comp_mask |= HAS_PD;
    }
    if attr.srq_type == XRC {
        if attr.comp_mask & HAS_XRCD == 0 || attr.xrcd.is_null() {
            attr.xrcd = nic.xrcd()?;
        }
        if attr.comp_mask & HAS_CQ == 0 || attr.cq.is_null() {
            // SAFETY: contract: the identifier is bound to an open device.
            unsafe { create_cqs(c, 0, attr.attr.max_wr) }?;
            attr.cq = c.recv_cq;
        }
        attr.comp_mask |= HAS_XRCD | HAS_CQ;
    }
    // SAFETY: contract: what the attributes name is ours.
    let srq = unsafe { create_srq_ex(c.verbs, &raw mut *attr) };
    if srq.is_null() {
        let failure = Failure::last();
        // SAFETY: contract: the queues are ours.
        unsafe { destroy_cqs(c) };
        return Err(failure);
    }
    if c.pd.is_null() {
        c.pd = attr.pd;
    }
    c.srq = srq;
    Ok(())
}

pub(crate) unsafe extern "C" fn rdma_destroy_srq(id: *mut CmId) {
    call("rdma_destroy_srq", || {
        // SAFETY: contract: the identifier is one of ours.
        let c = unsafe { structure(id) };
        let srq = mem::replace(&mut c.srq, ptr::null_mut());
        // SAFETY: contract: the queue is ours, and the program uses it no more.
        let refused = !srq.is_null() && unsafe { ibv_destroy_srq(srq) } != 0;
        if refused {
            tracing::info!(target: "peerdma::refusal", "rdma_destroy_srq: it is in use");
        }
        // SAFETY: contract: as above.
        unsafe { destroy_cqs(c) };
        Ok(())
    });
}
