//! Connections: asking, accepting, refusing, ending, and the QP on its way.

use std::ffi::{c_int, c_void};
use std::mem;
use std::slice;

use device::cm::{ConnParam as Param, Ece, RejReason};
use iba::{AttrMask, QKey, QpState, Qpn};

use super::endpoint::{Endpoint, Inner, State};
use super::event::take_event;
use super::id::{endpoint, release_event, structure};
use super::qp_state::{self, MOST, Modify, attr_for, to_error, to_rts};
use super::{Answer, Failure, call};
use crate::abi::object::{given, room};
use crate::abi::qp::modify as modify_qp;
use crate::abi::qp_attr;
use crate::abi::types::CEnum;
use crate::abi::types::qp::{Qp, QpAttr, QpCap};
use crate::abi::types::rdma::{CmId, ConnParam, UDP_QKEY, event_type, port_space};

/// `CM_REJ_VENDOR_OPTION_NOT_SUPPORTED` (IBA table 109).
const VENDOR_OPTION_NOT_SUPPORTED: RejReason = RejReason(35);

/// Waits for the event of a call, if the identifier is synchronous.
///
/// # Errors
/// ECONNREFUSED if the peer refused, else the status of the event.
///
/// # Safety
///
/// `id` is one of ours, and its endpoint's `inner` is not locked.
pub(super) unsafe fn complete(id: *mut CmId) -> Answer {
    // SAFETY: the caller's promise.
    if !unsafe { endpoint(id) }.inner().face.is_sync {
        return Ok(());
    }
    // SAFETY: the caller's promise.
    unsafe { release_event(id) };
    // SAFETY: the caller's promise.
    let channel = unsafe { (*id).channel };
    // SAFETY: contract: the channel is the identifier's own.
    let event = unsafe { take_event(channel) }?;
    // SAFETY: the caller's promise; nobody else has the field of a synchronous identifier.
    unsafe { (*id).event = event };
    // SAFETY: the event was made just now.
    let event = unsafe { &*event };
    match (event.status, event.event) {
        (0, _) => Ok(()),
        (_, event_type::REJECTED) => {
            Err(Failure::new(libc::ECONNREFUSED, "the peer refused the connection"))
        }
        (status, _) => Err(Failure(status.abs())),
    }
}

/// What the program says, for the engine. The identifier is bound to a NIC.
///
/// # Safety
///
/// The private data of `param` is as long as it says.
unsafe fn param_of(inner: &Inner, param: Option<&ConnParam>, qp: Option<&Qp>) -> Param {
    let mut all = Param {
        private_data: inner.terms.connect_data.clone(),
        retry_count: 7,
        rnr_retry_count: 7,
        // A datagram QP of the connection manager has this Q_Key, whoever made it (`cma_set_qkey`
        // of the kernel).
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

/// What a side says of READs and atomics.
#[derive(Clone, Copy)]
pub(super) struct Said {
    pub(super) initiator_depth: u8,
    pub(super) responder_resources: u8,
}

impl Said {
    fn of(param: &ConnParam) -> Self {
        let ConnParam { initiator_depth, responder_resources, .. } = *param;
        Self { initiator_depth, responder_resources }
    }

    /// Each is a number, or as many as possible.
    fn numbers(said: Option<Self>) -> (Option<u8>, Option<u8>) {
        let number = |said: u8| Some(said).filter(|said| *said != MOST);
        let depth = said.and_then(|said| number(said.initiator_depth));
        (depth, said.and_then(|said| number(said.responder_resources)))
    }
}

/// Asks the peer for a connection.
///
/// # Errors
/// EINVAL unless the route is resolved.
pub(super) fn ask(inner: &mut Inner, said: Option<Said>, all: Param) -> Answer {
    inner.expect("rdma_connect", &[State::RouteResolved])?;
    let end = inner.end("rdma_connect")?;
    let (depth, resources) = Said::numbers(said);
    inner.terms.initiator_depth = depth.unwrap_or(end.nic.max_initiator_depth);
    inner.terms.responder_resources = resources.unwrap_or(end.nic.max_responder_resources);
    let all = Param { ece: inner.terms.local_ece, ..agreed(inner, all) };
    end.nic.hca.alive()?.cm_connect(end.id, &all)?;
    inner.state = State::Connecting;
    inner.terms.connect_data.clear();
    Ok(())
}

/// Accepts the request for which the endpoint was made. `modify` is of its QP, if it has one.
///
/// # Errors
/// EINVAL if nobody asked.
pub(super) fn answer(
    endpoint: &Endpoint,
    inner: &mut Inner,
    said: Option<Said>,
    all: Param,
    modify: Option<Modify<'_>>,
) -> Answer {
    inner.expect("rdma_accept", &[State::Connecting])?;
    let end = inner.end("rdma_accept")?;
    let (depth, resources) = Said::numbers(said);
    let (wanted, most) = (inner.terms.initiator_depth, end.nic.max_initiator_depth);
    inner.terms.initiator_depth = depth.unwrap_or_else(|| wanted.min(most));
    let (wanted, most) = (inner.terms.responder_resources, end.nic.max_responder_resources);
    inner.terms.responder_resources = resources.unwrap_or_else(|| wanted.min(most));
    if let Some(modify) = modify
        && !inner.is_ud()
    {
        to_rts(inner, modify, inner.terms.responder_resources, inner.terms.initiator_depth)?;
    }
    // The vendor is the one that asked (librdmacm: `ucma_copy_ece_param_to_kern_rep`).
    let ece = Ece { vendor_id: inner.terms.remote_ece.vendor_id, ..inner.terms.local_ece };
    let all = Param { ece, ..agreed(inner, all) };
    // What comes of it may come before the call returns.
    endpoint.set_open(true);
    let accepted = end.nic.hca.alive().and_then(|mut engine| engine.cm_accept(end.id, &all));
    if let Err(refusal) = accepted {
        endpoint.set_open(false);
        if let Some(modify) = modify {
            to_error(modify);
        }
        return Err(refusal.into());
    }
    Ok(())
}

/// The numbers of READs and atomics as they are known by now.
fn agreed(inner: &Inner, all: Param) -> Param {
    Param {
        responder_resources: inner.terms.responder_resources,
        initiator_depth: inner.terms.initiator_depth,
        ..all
    }
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
        ask(&mut inner, param.map(Said::of), all)?;
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
        answer(endpoint, &mut inner, param.map(Said::of), all, modify)?;
        let is_ud = inner.is_ud();
        let is_sync = inner.face.is_sync;
        drop(inner);
        if is_ud {
            // Nobody confirms an answer about a service.
            if is_sync {
                // SAFETY: contract: as above.
                unsafe { release_event(id) };
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

/// Refuses the request for which the endpoint was made.
pub(super) fn refuse(call: &str, inner: &Inner, reason: RejReason, data: &[u8]) -> Answer {
    inner.expect(call, &[State::Connecting])?;
    let end = inner.end(call)?;
    end.nic.hca.alive()?.cm_reject(end.id, reason, &[], data)?;
    Ok(())
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

/// The QP of the active side, if the identifier has one, follows the response.
///
/// # Safety
///
/// `id` is one of ours.
pub(super) unsafe fn follow(id: *mut CmId, endpoint: &Endpoint, ece: Ece) -> Answer {
    // SAFETY: the caller's promise.
    let qp = unsafe { qp(id) };
    // SAFETY: contract: the QP is one of ours.
    let modify = qp.map(|qp| unsafe { mover(qp) });
    qp_state::follow(endpoint, modify.as_ref().map(|modify| modify as Modify<'_>), ece)
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
        // One that ended already, or never began, has ended: as of `rdma_disconnect` of the kernel.
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

pub(crate) unsafe extern "C" fn rdma_init_qp_attr(
    id: *mut CmId,
    attr: *mut QpAttr,
    mask: *mut c_int,
) -> c_int {
    call("rdma_init_qp_attr", || {
        // SAFETY: contract: the identifier is one of ours.
        let endpoint = unsafe { endpoint(id) };
        let mask = room(mask);
        // SAFETY: contract: the attributes are valid as far as the state; the others are integers.
        let state = unsafe { given(attr) }.qp_state;
        let Some(state) = QpState::from_code(state) else {
            let what = format!("rdma_init_qp_attr: there is no QP state {state}");
            return Err(Failure::new(libc::EINVAL, what));
        };
        let (found, bits) = attr_for(&endpoint.inner(), state)?;
        // SAFETY: the structure is made of integers, for which zero is a value.
        let no_sizes: QpCap = unsafe { mem::zeroed() };
        let found = QpAttr { qp_state: state as CEnum, ..qp_attr::to_c(&found, no_sizes) };
        // SAFETY: contract: the program has room for the attributes.
        unsafe { attr.write(found) };
        // SAFETY: contract: the program has room for the mask.
        unsafe { mask.write(bits.bits().cast_signed()) };
        Ok(())
    })
}

/// How a QP is modified.
///
/// # Safety
///
/// `qp` is one of ours, and outlives the result.
pub(super) unsafe fn mover(qp: &Qp) -> impl Fn(&iba::QpAttr, AttrMask) -> Answer {
    let qp = (&raw const *qp).cast_mut();
    // SAFETY: the caller's promise.
    move |attr, mask| Ok(unsafe { modify_qp(qp, attr, mask) }?)
}

/// Moves the QP of an identifier, if it has one, to the error state.
///
/// # Safety
///
/// `id` is one of ours.
pub(super) unsafe fn to_error_of(id: *mut CmId) {
    // SAFETY: the caller's promise.
    if let Some(qp) = unsafe { qp(id) } {
        // SAFETY: contract: the QP is one of ours.
        to_error(&unsafe { mover(qp) });
    }
}

/// The QP of an identifier.
///
/// # Safety
///
/// `id` is one of ours.
pub(super) unsafe fn qp<'a>(id: *mut CmId) -> Option<&'a Qp> {
    // SAFETY: the caller's promise.
    let qp = unsafe { structure(id) }.qp;
    // SAFETY: contract: it is NULL or one of ours.
    unsafe { qp.as_ref() }
}
