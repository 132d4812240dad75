//! Queue pairs, as the library has them.

use std::ffi::c_int;
use std::mem;
use std::sync::Arc;

use device::Hca;
use device::ids::QpId;
use transport::wr::SendWr;

use crate::abi::acks::Acks;
use crate::abi::object::Object;
use crate::abi::turn::Turn;
use crate::abi::types::qp::{Qp, QpCap, QpEx};

/// The library's part of a queue pair.
pub(crate) struct OwnQp {
    pub(crate) hca: Arc<Hca>,
    pub(crate) id: QpId,
    pub(crate) acks: Acks,
    pub(crate) batch: Turn<Batch>,
    pub(crate) cap: QpCap,
    pub(crate) sq_sig_all: c_int,
    /// Whether it was created for posting by calls (`IBV_QP_INIT_ATTR_SEND_OPS_FLAGS`).
    pub(crate) is_extended: bool,
}

/// Every QP has room for the extended structure, so that there is one kind of QP.
pub(crate) type QpObject = Object<QpEx, OwnQp>;

impl OwnQp {
    /// The library's part of a QP without queues of its own.
    pub(crate) fn without_queues(hca: &Arc<Hca>, id: QpId) -> Self {
        Self {
            hca: Arc::clone(hca),
            id,
            acks: Acks::default(),
            batch: Turn::default(),
            // SAFETY: the structure is made of integers, for which zero is a value.
            cap: unsafe { mem::zeroed() },
            sq_sig_all: 0,
            is_extended: false,
        }
    }
}

/// The library's part of a QP.
///
/// # Safety
///
/// `qp` is one of ours and is not destroyed before the result is
/// last used.
#[inline]
pub(crate) unsafe fn own<'a>(qp: *mut Qp) -> &'a OwnQp {
    // SAFETY: the caller's promise; every QP is made with the extended structure.
    unsafe { QpObject::own(qp.cast()) }
}

/// The same for a call that would reach the kernel.
///
/// # Safety
///
/// As for [`own`].
pub(crate) unsafe fn lookup<'a>(qp: *mut Qp) -> &'a OwnQp {
    // SAFETY: the caller's promise; every QP is made with the extended structure.
    unsafe { QpObject::lookup(qp.cast()) }
}

/// The requests between `ibv_wr_start` and `ibv_wr_complete`.
#[derive(Default)]
pub(crate) struct Batch {
    pub(crate) requests: Vec<SendWr>,
    /// A call had a bad argument. Then nothing is posted, and `ibv_wr_complete` returns the error:
    /// the calls between have no way to fail (`ibv_wr_post(3)`).
    pub(crate) is_bad: bool,
}
