//! The QP of an identifier, and how a program has it follow the connection.

use std::ffi::c_int;
use std::mem;

use device::rdma_cm::Ece;
use iba::{AttrMask, QpState};

use super::endpoint::Endpoint;
use super::id::{endpoint, structure};
use super::qp_state::{self, Modify, attr_for, to_error};
use super::{Answer, Failure, call};
use crate::abi::object::{given, room};
use crate::abi::qp::modify as modify_qp;
use crate::abi::qp_attr;
use crate::abi::types::CEnum;
use crate::abi::types::qp::{Qp, QpAttr, QpCap};
use crate::abi::types::rdma::CmId;

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
