//! Connections as programs make and end them.

use std::ffi::{c_int, c_void};
use std::slice;

use device::rdma_cm::{ConnParam as Param, RejReason};
use iba::{QKey, Qpn};

use super::handshake::{Depths, answer, ask, refuse};
use super::held_event::release;
use super::id::endpoint;
use super::id_qp::{mover, qp, to_error_of};
use super::qp_state::{MOST, Modify};
use super::state::{Inner, State};
use super::sync::complete;
use super::{Answer, Failure, call};
use crate::abi::types::CEnum;
use crate::abi::types::qp::Qp;
use crate::abi::types::rdma::{CmId, ConnParam, UDP_QKEY, port_space};

/// `CM_REJ_VENDOR_OPTION_NOT_SUPPORTED` (IBA table 109).
const VENDOR_OPTION_NOT_SUPPORTED: RejReason = RejReason(35);

/// The parameters of the program as the engine takes them. The identifier is bound to a NIC.
///
/// # Safety
///
/// The private data of `param` is as long as it says.
unsafe fn param_of(inner: &Inner, param: Option<&ConnParam>, qp: Option<&Qp>) -> Param {
    let mut all = Param {
        private_data: inner.terms.connect_data.clone(),
        retry_count: 7,
        rnr_retry_count: 7,
        // Every datagram QP of the connection manager has this Q_Key (`cma_set_qkey` of the
        // kernel).
        qkey: QKey(if inner.is_ud() { UDP_QKEY } else { 0 }),
        ..Param::default()
    };
    if let Some(param) = param {
        all.flow_control = param.flow_control != 0;
        all.retry_count = param.retry_count;
        all.rnr_retry_count = param.rnr_retry_count;
        all.srq = param.srq != 0;
        all.qpn = Qpn::new(param.qp_num);
        // SAFETY: the caller's promise.
        all.private_data.extend(unsafe { bytes(param.private_data, param.private_data_len) });
    }
    if let Some(qp) = qp {
        all.qpn = Qpn::new(qp.qp_num);
        all.srq = !qp.srq.is_null();
    }
    all
}

/// Private data, or none.
///
/// # Safety
///
/// `data` is NULL or has `length` bytes.
unsafe fn bytes<'a>(data: *const c_void, length: u8) -> &'a [u8] {
    if data.is_null() || length == 0 {
        return &[];
    }
    // SAFETY: the caller's promise.
    unsafe { slice::from_raw_parts(data.cast(), length.into()) }
}

/// Checks what the program says of READs and atomics (librdmacm: `ucma_valid_param`).
fn check(call: &str, inner: &Inner, param: Option<&ConnParam>, has_qp: bool) -> Answer {
    if inner.port_space != port_space::TCP {
        return Ok(());
    }
    let refuse = |what: String| Err(Failure::new(libc::EINVAL, format!("{call}: {what}")));
    let Some(nic) = &inner.nic else { return refuse("the identifier has no device".to_owned()) };
    let Some(param) = param else {
        return if has_qp { Ok(()) } else { refuse("neither a QP nor its number".to_owned()) };
    };
    let ConnParam { responder_resources: resources, initiator_depth: depth, .. } = *param;
    if resources != MOST && resources > nic.max_responder_resources {
        let most = nic.max_responder_resources;
        return refuse(format!("responder_resources {resources}; the device has {most}"));
    }
    if depth != MOST && depth > nic.max_initiator_depth {
        let most = nic.max_initiator_depth;
        return refuse(format!("initiator_depth {depth}; the device has {most}"));
    }
    Ok(())
}

/// What the program says of READs and atomics.
fn depths(param: &ConnParam) -> Depths {
    let ConnParam { initiator_depth, responder_resources, .. } = *param;
    Depths { initiator_depth, responder_resources }
}

pub(crate) unsafe extern "C" fn rdma_connect(id: *mut CmId, param: *mut ConnParam) -> c_int {
    call("rdma_connect", || {
        // SAFETY: contract: the identifier is one of ours.
        let endpoint = unsafe { endpoint(id) };
        // SAFETY: contract: as above.
        let qp = unsafe { qp(id) };
        // SAFETY: contract: the parameters are NULL or valid.
        let param = unsafe { param.as_ref() };
        let mut inner = endpoint.inner();
        check("rdma_connect", &inner, param, qp.is_some())?;
        // SAFETY: contract: the private data is as long as it says.
        let all = unsafe { param_of(&inner, param, qp) };
        ask(&mut inner, param.map(depths), all)?;
        drop(inner);
        // SAFETY: contract: as above.
        unsafe { complete(id) }
    })
}

pub(crate) unsafe extern "C" fn rdma_accept(id: *mut CmId, param: *mut ConnParam) -> c_int {
    call("rdma_accept", || {
        // SAFETY: contract: the identifier is one of ours.
        let endpoint = unsafe { endpoint(id) };
        // SAFETY: contract: as above.
        let qp = unsafe { qp(id) };
        // SAFETY: contract: the parameters are NULL or valid.
        let param = unsafe { param.as_ref() };
        let mut inner = endpoint.inner();
        if qp.is_none() && param.is_none() {
            return Err(Failure::new(libc::EINVAL, "rdma_accept: neither a QP nor its number"));
        }
        check("rdma_accept", &inner, param, qp.is_some())?;
        // SAFETY: contract: the private data is as long as it says.
        let all = unsafe { param_of(&inner, param, qp) };
        // SAFETY: contract: the QP is one of ours.
        let modify = qp.map(|qp| unsafe { mover(qp) });
        let modify = modify.as_ref().map(|modify| modify as Modify<'_>);
        answer(endpoint, &mut inner, param.map(depths), all, modify)?;
        let is_ud = inner.is_ud();
        let is_sync = inner.face.is_sync;
        drop(inner);
        if is_ud {
            // No peer confirms the answer to a service request (SIDR): there is no event.
            if is_sync {
                // SAFETY: contract: as above.
                unsafe { release(id) };
            }
            return Ok(());
        }
        // SAFETY: contract: as above.
        unsafe { complete(id) }
    })
}

pub(crate) unsafe extern "C" fn rdma_reject(
    id: *mut CmId,
    private_data: *const c_void,
    private_data_len: u8,
) -> c_int {
    call("rdma_reject", || {
        // SAFETY: contract: the private data is NULL or as long as said.
        let data = unsafe { bytes(private_data, private_data_len) };
        // SAFETY: contract: the identifier is one of ours.
        unsafe { reject("rdma_reject", id, RejReason::CONSUMER_DEFINED, data) }
    })
}

pub(crate) unsafe extern "C" fn rdma_reject_ece(
    id: *mut CmId,
    private_data: *const c_void,
    private_data_len: u8,
) -> c_int {
    call("rdma_reject_ece", || {
        // SAFETY: contract: the private data is NULL or as long as said.
        let data = unsafe { bytes(private_data, private_data_len) };
        // SAFETY: contract: the identifier is one of ours.
        unsafe { reject("rdma_reject_ece", id, VENDOR_OPTION_NOT_SUPPORTED, data) }
    })
}

unsafe fn reject(call: &str, id: *mut CmId, reason: RejReason, data: &[u8]) -> Answer {
    // SAFETY: the caller's promise.
    refuse(call, &unsafe { endpoint(id) }.inner(), reason, data)
}

pub(crate) unsafe extern "C" fn rdma_establish(id: *mut CmId) -> c_int {
    call("rdma_establish", || {
        // SAFETY: contract: the identifier is one of ours.
        if unsafe { qp(id) }.is_some() {
            let what = "rdma_establish: the identifier has a QP, which is established by itself";
            return Err(Failure::new(libc::EINVAL, what));
        }
        // SAFETY: contract: as above.
        let inner = unsafe { endpoint(id) }.inner();
        inner.expect("rdma_establish", &[State::Connecting])?;
        let end = inner.end("rdma_establish")?;
        end.nic.hca.alive()?.cm_ready(end.id, &[])?;
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn rdma_disconnect(id: *mut CmId) -> c_int {
    call("rdma_disconnect", || {
        // SAFETY: contract: the identifier is one of ours.
        let endpoint = unsafe { endpoint(id) };
        let inner = endpoint.inner();
        inner.expect("rdma_disconnect", &[State::Connecting])?;
        let end = inner.end("rdma_disconnect")?;
        // SAFETY: contract: as above.
        unsafe { to_error_of(id) };
        // A connection that has ended already, or never began, is no error, as in the kernel's
        // `rdma_disconnect`.
        let _ = end.nic.hca.alive()?.cm_disconnect(end.id);
        drop(inner);
        // SAFETY: contract: as above.
        unsafe { complete(id) }
    })
}

/// `IBV_EVENT_COMM_EST`.
const COMM_EST: CEnum = 4;

pub(crate) unsafe extern "C" fn rdma_notify(id: *mut CmId, event: CEnum) -> c_int {
    call("rdma_notify", || {
        // SAFETY: contract: the identifier is one of ours.
        let inner = unsafe { endpoint(id) }.inner();
        inner.expect("rdma_notify", &[State::Connecting])?;
        if event != COMM_EST {
            let what = format!("rdma_notify: event {event}; only IBV_EVENT_COMM_EST has a meaning");
            return Err(Failure::new(libc::EINVAL, what));
        }
        let end = inner.end("rdma_notify")?;
        end.nic.hca.alive()?.cm_established(end.id)?;
        Ok(())
    })
}
