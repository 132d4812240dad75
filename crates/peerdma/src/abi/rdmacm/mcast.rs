//! Joining and leaving multicast groups. An IP group is a GID, and no subnet administrator needs to
//! be asked (`cma_iboe_join_multicast` of the kernel).

use std::ffi::{c_int, c_void};
use std::sync::Arc;

use iba::Gid;
use libc::sockaddr;

use super::endpoint::What;
use super::id::endpoint;
use super::id_qp::qp;
use super::join::Join;
use super::sockaddr::read;
use super::state::{Inner, State};
use super::sync::complete;
use super::{Answer, Failure, call};
use crate::abi::ah;
use crate::abi::object::given;
use crate::abi::types::ah::AhAttr;
use crate::abi::types::rdma::{CmId, JoinMcAttrEx};

/// Bits of [`JoinMcAttrEx::comp_mask`], and the flags there are.
const HAS_ADDRESS: u32 = 1;
const HAS_FLAGS: u32 = 1 << 1;
const FULL_MEMBER: u32 = 0;
const SEND_ONLY: u32 = 1;

pub(crate) unsafe extern "C" fn rdma_join_multicast(
    id: *mut CmId,
    addr: *mut sockaddr,
    context: *mut c_void,
) -> c_int {
    call("rdma_join_multicast", || {
        // SAFETY: contract: the address is as long as its family says.
        let group = Gid::from(unsafe { read("rdma_join_multicast", addr) }?.ip());
        // SAFETY: contract: the identifier is one of ours.
        unsafe { join(id, group, FULL_MEMBER, context) }
    })
}

pub(crate) unsafe extern "C" fn rdma_join_multicast_ex(
    id: *mut CmId,
    attr: *mut JoinMcAttrEx,
    context: *mut c_void,
) -> c_int {
    call("rdma_join_multicast_ex", || {
        // SAFETY: contract: the attributes are valid.
        let JoinMcAttrEx { comp_mask, join_flags, addr } = unsafe { given(attr) };
        let refuse = |errno, what: String| {
            Err(Failure::new(errno, format!("rdma_join_multicast_ex: {what}")))
        };
        if comp_mask & !(HAS_ADDRESS | HAS_FLAGS) != 0 {
            return refuse(libc::ENOTSUP, format!("comp_mask {comp_mask:#x}"));
        }
        if *comp_mask != HAS_ADDRESS | HAS_FLAGS || *join_flags > SEND_ONLY {
            let what = format!("comp_mask {comp_mask:#x}, join_flags {join_flags}");
            return refuse(libc::EINVAL, what);
        }
        // SAFETY: contract: the address is as long as its family says.
        let group = Gid::from(unsafe { read("rdma_join_multicast_ex", *addr) }?.ip());
        // SAFETY: contract: the identifier is one of ours.
        unsafe { join(id, group, *join_flags, context) }
    })
}

/// Joins a group. The event attaches the QP.
///
/// # Errors
/// EINVAL, as of the kernel, if the identifier is not of datagrams, or bound to no NIC, or past
/// resolving an address.
unsafe fn join(id: *mut CmId, group: Gid, flags: u32, context: *mut c_void) -> Answer {
    // SAFETY: the caller's promise.
    let endpoint = unsafe { endpoint(id) };
    let mut inner = endpoint.inner();
    if !inner.is_ud() {
        return Err(Failure::new(libc::EINVAL, "rdma_join_multicast: groups are for UD"));
    }
    inner.expect("rdma_join_multicast", &[State::Bound, State::AddrResolved])?;
    if !group.is_multicast() {
        let what = format!("rdma_join_multicast: {} is no group", group.to_ip());
        return Err(Failure::new(libc::EINVAL, what));
    }
    let to = address(&inner, group)?;
    let joined = Arc::new(Join::new(group, to, flags == SEND_ONLY, context));
    inner.face.joins.push(Arc::clone(&joined));
    endpoint.post(What::Join(joined));
    drop(inner);
    // SAFETY: the caller's promise.
    unsafe { complete(id) }
}

/// Where to send to reach a group.
fn address(inner: &Inner, group: Gid) -> Answer<AhAttr> {
    let end = inner.end("rdma_join_multicast")?;
    let own = inner.route.local.map(|local| Gid::from(local.ip()));
    let gids = end.nic.hca.lock().gids();
    let from = gids.iter().find(|entry| Some(entry.gid) == own).or_else(|| {
        gids.iter().find(|entry| entry.gid.to_ip().is_ipv4() == group.to_ip().is_ipv4())
    });
    Ok(ah::attr_of(&iba::Av {
        dgid: group,
        sgid_index: from.and_then(|entry| u8::try_from(entry.index).ok()).unwrap_or(0),
        // Groups do not leave the network, as of `cma_iboe_join_multicast`.
        hop_limit: 1,
        traffic_class: inner.options.tos.unwrap_or(0),
        port_num: 1,
        is_global: true,
        ..iba::Av::default()
    }))
}

pub(crate) unsafe extern "C" fn rdma_leave_multicast(id: *mut CmId, addr: *mut sockaddr) -> c_int {
    call("rdma_leave_multicast", || {
        // SAFETY: contract: the address is as long as its family says.
        let group = Gid::from(unsafe { read("rdma_leave_multicast", addr) }?.ip());
        // SAFETY: contract: the identifier is one of ours.
        let endpoint = unsafe { endpoint(id) };
        let mut inner = endpoint.inner();
        // The newest join of a group is left first, as of librdmacm.
        let Some(place) = inner.face.joins.iter().rposition(|join| join.gid == group) else {
            let what = format!("rdma_leave_multicast: {} was not joined", group.to_ip());
            return Err(Failure::new(libc::EADDRNOTAVAIL, what));
        };
        let join = inner.face.joins.remove(place);
        drop(inner);
        // SAFETY: contract: as above.
        join.detach(unsafe { qp(id) });
        endpoint.forget(&join);
        join.acks.wait();
        Ok(())
    })
}
