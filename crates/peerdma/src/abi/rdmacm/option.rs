//! Options, and what two vendors may agree on.

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use iba::QpType;
use libc::size_t;

use super::addr::resolve_route;
use super::endpoint::Endpoint;
use super::id::endpoint;
use super::id_qp::qp;
use super::state::{Inner, State};
use super::{Answer, Failure, call};
use crate::abi::object::{given, room};
use crate::abi::types::qp::Ece;
use crate::abi::types::rdma::{CmId, PathData};

/// Levels and names.
const LEVEL_ID: c_int = 0;
const LEVEL_IB: c_int = 1;
const ID_TOS: c_int = 0;
const ID_REUSEADDR: c_int = 1;
const ID_AFONLY: c_int = 2;
const ID_ACK_TIMEOUT: c_int = 3;
const IB_PATH: c_int = 1;

pub(crate) unsafe extern "C" fn rdma_set_option(
    id: *mut CmId,
    level: c_int,
    optname: c_int,
    optval: *mut c_void,
    optlen: size_t,
) -> c_int {
    call("rdma_set_option", || {
        // SAFETY: contract: the identifier is one of ours.
        let endpoint = unsafe { endpoint(id) };
        let mut inner = endpoint.inner();
        match (level, optname) {
            (LEVEL_ID, ID_TOS) => {
                // SAFETY: contract: the value is as long as said.
                let tos = unsafe { value(optval, optlen) }?;
                set_tos(&mut inner, tos)
            }
            (LEVEL_ID, ID_ACK_TIMEOUT) => {
                let connects = [QpType::Rc as u32, QpType::XrcSend as u32];
                if !connects.contains(&inner.qp_type) {
                    let what = "RDMA_OPTION_ID_ACK_TIMEOUT: the QP type has no acknowledgements";
                    return Err(Failure::new(libc::EINVAL, what));
                }
                // SAFETY: contract: as above.
                inner.options.ack_timeout = Some(unsafe { value(optval, optlen) }?);
                set_service(&inner)
            }
            (LEVEL_ID, ID_REUSEADDR) => {
                // SAFETY: contract: as above.
                let wanted: c_int = unsafe { value(optval, optlen) }?;
                set_reuse_addr(&mut inner, wanted != 0)
            }
            (LEVEL_ID, ID_AFONLY) => {
                // SAFETY: contract: as above.
                let wanted: c_int = unsafe { value(optval, optlen) }?;
                set_af_only(&mut inner, wanted != 0)
            }
            (LEVEL_IB, IB_PATH) => {
                // SAFETY: contract: as above.
                let path: PathData = unsafe { value(optval, optlen) }?;
                set_path(endpoint, &mut inner, &path)
            }
            // As of ucma_set_option_level and below.
            _ => {
                let what = format!("rdma_set_option: level {level} has no option {optname}");
                Err(Failure::new(libc::ENOSYS, what))
            }
        }
    })
}

/// A value of exactly its type's size.
///
/// # Safety
///
/// `optval` has `optlen` bytes, and every value of `T` is one.
unsafe fn value<T: Copy>(optval: *mut c_void, optlen: size_t) -> Answer<T> {
    if optlen != size_of::<T>() || optval.is_null() {
        let size = size_of::<T>();
        let what = format!("rdma_set_option: {optlen} bytes for a value of {size}");
        return Err(Failure::new(libc::EINVAL, what));
    }
    // SAFETY: the caller's promise.
    Ok(unsafe { optval.cast::<T>().read_unaligned() })
}

/// The type of service of what it sends.
pub(super) fn set_tos(inner: &mut Inner, tos: u8) -> Answer {
    inner.options.tos = Some(tos);
    set_service(inner)
}

/// As of rdma_set_reuseaddr: it may be given until the identifier listens, and taken back before it
/// is bound.
pub(super) fn set_reuse_addr(inner: &mut Inner, wanted: bool) -> Answer {
    if inner.state == State::Listening || !wanted && inner.state != State::Idle {
        inner.expect("RDMA_OPTION_ID_REUSEADDR", &[State::Idle])?;
    }
    inner.options.bind.reuse_addr = wanted;
    Ok(())
}

/// Whether a wildcard of IPv6 is one of IPv6 alone.
pub(super) fn set_af_only(inner: &mut Inner, wanted: bool) -> Answer {
    inner.expect("RDMA_OPTION_ID_AFONLY", &[State::Idle, State::Bound])?;
    inner.options.bind.af_only = wanted;
    Ok(())
}

/// A path in place of one that is found.
pub(super) fn set_path(endpoint: &Arc<Endpoint>, inner: &mut Inner, path: &PathData) -> Answer {
    check_path(inner, path)?;
    resolve_route(endpoint, inner, "RDMA_OPTION_IB_PATH")
}

fn set_service(inner: &Inner) -> Answer {
    for end in &inner.ends {
        end.nic.hca.alive()?.cm_set_service(
            end.id,
            inner.options.tos,
            inner.options.ack_timeout,
        )?;
    }
    Ok(())
}

/// A path of RoCE follows from the addresses: a program can only name the one there is.
fn check_path(inner: &Inner, data: &PathData) -> Answer {
    let is_it = inner
        .route
        .path
        .is_some_and(|path| path.sgid.0 == data.path.sgid.raw && path.dgid.0 == data.path.dgid.raw);
    if is_it {
        return Ok(());
    }
    let what = "RDMA_OPTION_IB_PATH: the GIDs are not those of the resolved address";
    Err(Failure::new(libc::EINVAL, what))
}

pub(crate) unsafe extern "C" fn rdma_set_local_ece(id: *mut CmId, ece: *mut Ece) -> c_int {
    call("rdma_set_local_ece", || {
        // SAFETY: contract: the identifier is one of ours.
        let endpoint = unsafe { endpoint(id) };
        // SAFETY: contract: the options are valid.
        let Ece { vendor_id, options, comp_mask } = unsafe { given(ece) };
        let refuse = |what| Err(Failure::new(libc::EINVAL, format!("rdma_set_local_ece: {what}")));
        // SAFETY: contract: as above.
        if unsafe { qp(id) }.is_some() {
            return refuse("the identifier has a QP, which says it");
        }
        if *vendor_id == 0 || *comp_mask != 0 {
            return refuse("no vendor, or a mask that is not 0");
        }
        endpoint.inner().terms.local_ece =
            device::rdma_cm::Ece { vendor_id: *vendor_id, attr_mod: *options };
        Ok(())
    })
}

pub(crate) unsafe extern "C" fn rdma_get_remote_ece(id: *mut CmId, ece: *mut Ece) -> c_int {
    call("rdma_get_remote_ece", || {
        // SAFETY: contract: the identifier is one of ours.
        let endpoint = unsafe { endpoint(id) };
        let ece = room(ece);
        // SAFETY: contract: as above.
        if unsafe { qp(id) }.is_some() {
            let what = "rdma_get_remote_ece: the identifier has a QP, which knows it";
            return Err(Failure::new(libc::EINVAL, what));
        }
        let said = endpoint.inner().terms.remote_ece;
        let answer = Ece { vendor_id: said.vendor_id, options: said.attr_mod, comp_mask: 0 };
        // SAFETY: contract: the program has room for the answer.
        unsafe { ece.write(answer) };
        Ok(())
    })
}
