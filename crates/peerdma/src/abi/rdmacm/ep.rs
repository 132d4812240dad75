//! Endpoints in one call, for programs that wait: `rdma_create_ep(3)` and `rdma_get_request(3)`.

use std::ffi::c_int;
use std::slice;

use super::addr::{rdma_bind_addr, rdma_resolve_addr, rdma_resolve_route};
use super::event::take_event;
use super::held_event::{hold, release};
use super::id::{self, endpoint, structure};
use super::option::rdma_set_option;
use super::qp::{self, rdma_destroy_qp};
use super::srq::rdma_destroy_srq;
use super::sync::complete;
use super::{Answer, Failure, call};
use crate::abi::object::{given, room};
use crate::abi::own::pd::PdObject;
use crate::abi::types::CEnum;
use crate::abi::types::pd::Pd;
use crate::abi::types::qp::QpInitAttr;
use crate::abi::types::rdma::{AddrInfo, CmEvent, CmId, event_type, rai};

/// How long addresses and routes may take, as of librdmacm.
const PATIENCE_MS: c_int = 2000;

pub(crate) unsafe extern "C" fn rdma_create_ep(
    id: *mut *mut CmId,
    info: *mut AddrInfo,
    pd: *mut Pd,
    attr: *mut QpInitAttr,
) -> c_int {
    call("rdma_create_ep", || {
        let id = room(id);
        // SAFETY: contract: the addresses are valid.
        let info = unsafe { given(info) };
        if !pd.is_null() {
            // SAFETY: contract: the domain is one of ours.
            let _ = unsafe { PdObject::own(pd) };
        }
        let qp_type = info.ai_qp_type as CEnum;
        let (space, no_context) = (info.ai_port_space as CEnum, std::ptr::null_mut());
        // SAFETY: contract: NULL is allowed.
        let made = unsafe { id::create(std::ptr::null_mut(), no_context, space, qp_type) }?;
        let filled = if info.ai_flags & rai::PASSIVE != 0 {
            // SAFETY: contract: the domain is NULL or ours, the attributes are NULL or valid.
            unsafe { passive(made, info, pd, attr) }
        } else {
            // SAFETY: contract: as above.
            unsafe { active(made, info, pd, attr) }
        };
        if let Err(failure) = filled {
            // SAFETY: nobody has it.
            unsafe { rdma_destroy_ep(made) };
            return Err(failure);
        }
        // SAFETY: contract: the program has room for the pointer.
        unsafe { id.write(made) };
        Ok(())
    })
}

/// An endpoint that will listen. The QPs of its requests are made as `attr` says.
unsafe fn passive(id: *mut CmId, info: &AddrInfo, pd: *mut Pd, attr: *mut QpInitAttr) -> Answer {
    // SAFETY: contract: the address is as long as its family says.
    done(unsafe { rdma_bind_addr(id, info.ai_src_addr) })?;
    if !pd.is_null() {
        // SAFETY: the caller's promise.
        unsafe { (*id).pd = pd };
    }
    // SAFETY: the caller's promise.
    if let Some(wanted) = unsafe { attr.as_ref() } {
        let copy = QpInitAttr { qp_type: info.ai_qp_type as CEnum, ..*wanted };
        // SAFETY: the caller's promise.
        unsafe { endpoint(id) }.inner().face.ep_attr = Some(copy);
    }
    Ok(())
}

/// An endpoint that can connect.
unsafe fn active(id: *mut CmId, info: &AddrInfo, pd: *mut Pd, attr: *mut QpInitAttr) -> Answer {
    let (src, dst) = (info.ai_src_addr, info.ai_dst_addr);
    // SAFETY: contract: the addresses are as long as their families say.
    done(unsafe { rdma_resolve_addr(id, src, dst, PATIENCE_MS) })?;
    if info.ai_route_len > 0 {
        let (route, length) = (info.ai_route, info.ai_route_len);
        // SAFETY: contract: the route is as long as it says; level and name are those of a path.
        done(unsafe { rdma_set_option(id, 1, 1, route, length) })?;
        // SAFETY: the caller's promise.
        unsafe { complete(id) }?;
    } else {
        // SAFETY: the caller's promise.
        done(unsafe { rdma_resolve_route(id, PATIENCE_MS) })?;
    }
    // SAFETY: the caller's promise.
    if let Some(wanted) = unsafe { attr.as_mut() } {
        wanted.qp_type = info.ai_qp_type as CEnum;
        // SAFETY: the caller's promise.
        unsafe { qp::create(id, pd, attr) }?;
    }
    if info.ai_connect_len > 0 && !info.ai_connect.is_null() {
        // SAFETY: contract: the data is as long as it says.
        let data = unsafe { slice::from_raw_parts(info.ai_connect.cast(), info.ai_connect_len) };
        // SAFETY: the caller's promise.
        unsafe { endpoint(id) }.inner().terms.connect_data = data.to_vec();
    }
    Ok(())
}

/// A call of C as an answer.
fn done(answer: c_int) -> Answer {
    if answer == 0 { Ok(()) } else { Err(Failure::last()) }
}

pub(crate) unsafe extern "C" fn rdma_destroy_ep(id: *mut CmId) {
    call("rdma_destroy_ep", || {
        // SAFETY: contract: the identifier is one of ours.
        let (has_qp, has_srq) = {
            // SAFETY: contract: as above.
            let c = unsafe { structure(id) };
            (!c.qp.is_null(), !c.srq.is_null())
        };
        if has_qp {
            // SAFETY: contract: as above.
            unsafe { rdma_destroy_qp(id) };
        }
        if has_srq {
            // SAFETY: contract: as above.
            unsafe { rdma_destroy_srq(id) };
        }
        // SAFETY: contract: as above, and the program uses it no more.
        unsafe { id::destroy(id) };
        Ok(())
    });
}

pub(crate) unsafe extern "C" fn rdma_get_request(listen: *mut CmId, id: *mut *mut CmId) -> c_int {
    call("rdma_get_request", || {
        // SAFETY: contract: the identifier is one of ours.
        let endpoint = unsafe { endpoint(listen) };
        let id = room(id);
        if !endpoint.inner().face.is_sync {
            let what = "rdma_get_request: the identifier has a channel: take events from there";
            return Err(Failure::new(libc::EINVAL, what));
        }
        // SAFETY: contract: as above.
        unsafe { release(listen) };
        // SAFETY: contract: as above.
        let channel = unsafe { (*listen).channel };
        // SAFETY: contract: the channel is the identifier's own.
        let event = unsafe { take_event(channel) }?;
        // SAFETY: contract: as above.
        let new = match unsafe { accept_event(listen, event) } {
            Ok(new) => new,
            Err(failure) => {
                // SAFETY: contract: as above; the event was taken just now.
                unsafe { hold(listen, event) };
                return Err(failure);
            }
        };
        // SAFETY: contract: the program has room for the pointer.
        unsafe { id.write(new) };
        Ok(())
    })
}

/// The identifier of a request, with a QP if the listener says how.
unsafe fn accept_event(listen: *mut CmId, event: *mut CmEvent) -> Answer<*mut CmId> {
    // SAFETY: the caller's promise: the event was taken just now.
    let said = unsafe { &*event };
    match (said.event, said.status) {
        (event_type::REJECTED, _) => {
            return Err(Failure::new(libc::ECONNREFUSED, "rdma_get_request: refused"));
        }
        (_, status) if status != 0 => return Err(Failure(status.abs())),
        (event_type::CONNECT_REQUEST, _) => {}
        (other, _) => {
            let what = format!("rdma_get_request: event {other} is no request");
            return Err(Failure::new(libc::EINVAL, what));
        }
    }
    let new = said.id;
    // SAFETY: the caller's promise.
    let wanted = unsafe { endpoint(listen) }
        .inner()
        .face
        .ep_attr
        .as_ref()
        .map(|attr| QpInitAttr { ..*attr });
    if let Some(mut attr) = wanted {
        // SAFETY: the caller's promise.
        let pd = unsafe { (*listen).pd };
        // SAFETY: the caller's promise.
        unsafe { qp::create(new, pd, &raw mut attr) }?;
    }
    // SAFETY: the identifier is the event's, and has no other yet.
    unsafe { hold(new, event) };
    Ok(new)
}
