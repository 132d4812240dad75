//! Multicast groups of datagram QPs (`ibv_attach_mcast(3)`).

use std::ffi::c_int;

use ::device::ids::QpId;
use ::device::{Hca, Refusal};
use iba::Gid;

use super::boundary::control;
use super::errno;
use super::object::given;
use super::own::qp::lookup;
use super::types::device::Gid as CGid;
use super::types::qp::Qp;

/// The LID is InfiniBand's name of the group; RoCE has none and ignores it (`is_valid_mcast_lid` of
/// the kernel).
pub(crate) unsafe extern "C" fn ibv_attach_mcast(
    qp: *mut Qp,
    gid: *const CGid,
    _lid: u16,
) -> c_int {
    // SAFETY: contract: the QP is one of ours, and the GID is valid.
    unsafe { change("ibv_attach_mcast", qp, gid, attach) }
}

pub(crate) unsafe extern "C" fn ibv_detach_mcast(
    qp: *mut Qp,
    gid: *const CGid,
    _lid: u16,
) -> c_int {
    // SAFETY: contract: the QP is one of ours, and the GID is valid.
    unsafe { change("ibv_detach_mcast", qp, gid, detach) }
}

fn attach(hca: &Hca, id: QpId, gid: Gid) -> Result<(), Refusal> {
    hca.alive()?.attach_mcast(id, gid)
}

fn detach(hca: &Hca, id: QpId, gid: Gid) -> Result<(), Refusal> {
    hca.lock().detach_mcast(id, gid)
}

/// The QP is one of ours, and the GID is valid.
unsafe fn change(
    verb: &'static str,
    qp: *mut Qp,
    gid: *const CGid,
    change: fn(&Hca, QpId, Gid) -> Result<(), Refusal>,
) -> c_int {
    control(verb, libc::EIO, || {
        // SAFETY: the caller's promise.
        let own = unsafe { lookup(qp) };
        // SAFETY: the caller's promise.
        let gid = unsafe { given(gid.cast::<[u8; 16]>()) };
        errno::or_errno(change(&own.hca, own.id, Gid(*gid)))
    })
}
