//! QPs of identifiers, with the queues that the program did not bring.

use std::ffi::c_int;
use std::mem;
use std::ptr;
use std::sync::Arc;

use iba::QpType;

use super::id::{IdObject, endpoint, structure};
use super::id_qp::mover;
use super::nic::Nic;
use super::qp_state::prepare;
use super::{Answer, Failure, call, verb};
use crate::abi::cq::{
    ibv_create_comp_channel, ibv_create_cq, ibv_destroy_comp_channel, ibv_destroy_cq,
};
use crate::abi::object::given_mut;
use crate::abi::own::pd::PdObject;
use crate::abi::qp::{create_qp_ex, ibv_destroy_qp};
use crate::abi::types::CEnum;
use crate::abi::types::context::Context;
use crate::abi::types::cq::{CompChannel, Cq};
use crate::abi::types::pd::Pd;
use crate::abi::types::qp::{QpInitAttr, QpInitAttrEx};
use crate::abi::types::rdma::CmId;

/// Bits of [`QpInitAttrEx::comp_mask`].
const HAS_PD: u32 = 1;
const HAS_XRCD: u32 = 1 << 1;

pub(crate) unsafe extern "C" fn rdma_create_qp(
    id: *mut CmId,
    pd: *mut Pd,
    attr: *mut QpInitAttr,
) -> c_int {
    // SAFETY: contract: the identifier and the domain are ours, the attributes valid.
    call("rdma_create_qp", || unsafe { create(id, pd, attr) })
}

/// Makes a QP for an identifier.
///
/// # Safety
///
/// `id` and `pd` are ours, `pd` or NULL; `attr` is valid.
pub(super) unsafe fn create(id: *mut CmId, pd: *mut Pd, attr: *mut QpInitAttr) -> Answer {
    // SAFETY: the structure is made of integers and pointers, for which zero is a value.
    let mut wanted: QpInitAttrEx = unsafe { mem::zeroed() };
    // SAFETY: the caller's promise.
    let basic = unsafe { given_mut(attr) };
    wanted.qp_context = basic.qp_context;
    (wanted.send_cq, wanted.recv_cq, wanted.srq) = (basic.send_cq, basic.recv_cq, basic.srq);
    (wanted.cap, wanted.qp_type, wanted.sq_sig_all) = (basic.cap, basic.qp_type, basic.sq_sig_all);
    wanted.pd = pd;
    wanted.comp_mask = HAS_PD;
    // SAFETY: the caller's promise.
    unsafe { create_ex(id, &mut wanted) }?;
    // The program learns which queues the QP has, and its sizes. After a failure they are gone, and
    // its attributes as they were.
    (basic.send_cq, basic.recv_cq, basic.srq) = (wanted.send_cq, wanted.recv_cq, wanted.srq);
    basic.cap = wanted.cap;
    Ok(())
}

pub(crate) unsafe extern "C" fn rdma_create_qp_ex(id: *mut CmId, attr: *mut QpInitAttrEx) -> c_int {
    call("rdma_create_qp_ex", || {
        // SAFETY: contract: the attributes are valid.
        let attr = unsafe { given_mut(attr) };
        // SAFETY: contract: the identifier is one of ours.
        unsafe { create_ex(id, attr) }
    })
}

unsafe fn create_ex(id: *mut CmId, attr: &mut QpInitAttrEx) -> Answer {
    // SAFETY: the caller's promise.
    let c = unsafe { structure(id) };
    let refuse = |what: &str| Err(Failure::new(libc::EINVAL, format!("rdma_create_qp: {what}")));
    if !c.qp.is_null() {
        return refuse("the identifier has a QP");
    }
    let nic = nic_of(c, "rdma_create_qp")?;
    if attr.comp_mask & HAS_PD == 0 || attr.pd.is_null() {
        attr.comp_mask |= HAS_PD;
        attr.pd = c.pd;
    } else {
        // SAFETY: contract: the domain is one of ours.
        let _ = unsafe { PdObject::own(attr.pd) };
        // SAFETY: it is, and alive.
        if unsafe { (*attr.pd).context } != c.verbs {
            return refuse("the PD is of another device, or another opening of it");
        }
    }
    let differ = |own: *mut Cq, given: *mut Cq| !own.is_null() && !given.is_null() && own != given;
    if differ(c.recv_cq, attr.recv_cq) || differ(c.send_cq, attr.send_cq) {
        return refuse("the identifier has other CQs");
    }
    if c.qp_type == QpType::XrcRecv as CEnum
        && (attr.comp_mask & HAS_XRCD == 0 || attr.xrcd.is_null())
    {
        attr.xrcd = nic.xrcd()?;
        attr.comp_mask |= HAS_XRCD;
    }
    let needs = |given: *mut Cq, own: *mut Cq, size| {
        if given.is_null() && own.is_null() { size } else { 0 }
    };
    let send = needs(attr.send_cq, c.send_cq, attr.cap.max_send_wr);
    let receive = needs(attr.recv_cq, c.recv_cq, attr.cap.max_recv_wr);
    // SAFETY: contract: the identifier is bound to an open device.
    unsafe { create_cqs(c, send, receive) }?;
    if attr.send_cq.is_null() {
        attr.send_cq = c.send_cq;
    }
    if attr.recv_cq.is_null() {
        attr.recv_cq = c.recv_cq;
    }
    if attr.srq.is_null() {
        attr.srq = c.srq;
    }
    // SAFETY: contract: what the attributes name is ours.
    let qp = unsafe { create_qp_ex(c.verbs, &raw mut *attr) };
    if qp.is_null() {
        let failure = Failure::last();
        // SAFETY: contract: the queues are ours.
        unsafe { destroy_cqs(c) };
        return Err(failure);
    }
    // SAFETY: contract: the identifier is one of ours.
    let endpoint = unsafe { endpoint(id) };
    // SAFETY: it was made just now.
    let made = unsafe { &*qp };
    // SAFETY: as above.
    if let Err(failure) = prepare(&endpoint.inner(), &unsafe { mover(made) }) {
        // SAFETY: contract: nobody has it.
        unsafe { ibv_destroy_qp(qp) };
        // SAFETY: contract: the queues are ours.
        unsafe { destroy_cqs(c) };
        return Err(failure);
    }
    // A QP of XRC that receives has no domain of its own.
    if !attr.pd.is_null() {
        c.pd = attr.pd;
    }
    c.qp = qp;
    // What the program said of a vendor gives way to what the QP says (librdmacm: `init_ece`),
    // which is nothing.
    endpoint.inner().terms.local_ece = device::rdma_cm::Ece::default();
    Ok(())
}

/// The NIC of an identifier.
///
/// # Errors
/// EINVAL if it has none.
pub(super) fn nic_of(c: &CmId, call: &str) -> Answer<Arc<Nic>> {
    // SAFETY: a reference to the C part of one of ours is as good as the pointer.
    let endpoint = unsafe { IdObject::own((&raw const *c).cast_mut()) };
    Ok(endpoint.inner().end(call)?.nic)
}

/// Makes a channel and a queue for each size that is not 0.
///
/// # Safety
///
/// The identifier is bound to an open device.
pub(super) unsafe fn create_cqs(c: &mut CmId, send: u32, receive: u32) -> Answer {
    let id = &raw mut *c;
    for (size, channel, cq) in [
        (receive, &raw mut c.recv_cq_channel, &raw mut c.recv_cq),
        (send, &raw mut c.send_cq_channel, &raw mut c.send_cq),
    ] {
        if size == 0 {
            continue;
        }
        // SAFETY: the caller's promise.
        if let Err(failure) = unsafe { create_cq(c.verbs, id, size, channel, cq) } {
            // SAFETY: contract: what there is is ours.
            unsafe { destroy_cqs(c) };
            return Err(failure);
        }
    }
    Ok(())
}

unsafe fn create_cq(
    context: *mut Context,
    id: *mut CmId,
    size: u32,
    channel: *mut *mut CompChannel,
    cq: *mut *mut Cq,
) -> Answer {
    // SAFETY: the caller's promise.
    let made = unsafe { ibv_create_comp_channel(context) };
    if made.is_null() {
        return Err(Failure::last());
    }
    // SAFETY: the caller's promise.
    unsafe { channel.write(made) };
    let size = c_int::try_from(size).unwrap_or(c_int::MAX);
    // SAFETY: the caller's promise.
    let queue = unsafe { ibv_create_cq(context, size, id.cast(), made, 0) };
    if queue.is_null() {
        return Err(Failure::last());
    }
    // SAFETY: the caller's promise.
    unsafe { cq.write(queue) };
    Ok(())
}

/// Destroys the queues that the library made for an identifier.
///
/// # Safety
///
/// Nobody uses them any more.
pub(super) unsafe fn destroy_cqs(c: &mut CmId) {
    // The queues of an SRQ of XRC are the SRQ's.
    if c.qp_type == QpType::XrcRecv as CEnum && !c.srq.is_null() {
        return;
    }
    // A program may have put one queue in both places.
    if c.send_cq == c.recv_cq {
        c.send_cq = ptr::null_mut();
    }
    if c.send_cq_channel == c.recv_cq_channel {
        c.send_cq_channel = ptr::null_mut();
    }
    for cq in [&mut c.recv_cq, &mut c.send_cq] {
        let cq = mem::replace(cq, ptr::null_mut());
        if !cq.is_null() {
            // SAFETY: the caller's promise.
            unsafe { ibv_destroy_cq(cq) };
        }
    }
    for channel in [&mut c.recv_cq_channel, &mut c.send_cq_channel] {
        let channel = mem::replace(channel, ptr::null_mut());
        if !channel.is_null() {
            // SAFETY: the caller's promise.
            unsafe { ibv_destroy_comp_channel(channel) };
        }
    }
}

pub(crate) unsafe extern "C" fn rdma_destroy_qp(id: *mut CmId) {
    call("rdma_destroy_qp", || {
        // SAFETY: contract: the identifier is one of ours.
        let c = unsafe { structure(id) };
        let qp = mem::replace(&mut c.qp, ptr::null_mut());
        // SAFETY: contract: the QP is ours, and the program uses it no more.
        let answer = if qp.is_null() { Ok(()) } else { verb(unsafe { ibv_destroy_qp(qp) }) };
        // SAFETY: contract: as above.
        unsafe { destroy_cqs(c) };
        answer
    });
}
