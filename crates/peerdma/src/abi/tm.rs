//! Operations on the tag list of a shared receive queue.

use std::ffi::c_int;

use device::{TagOp, TagOpKind};
use transport::wr::RecvWr;

use super::boundary::data;
use super::errno;
use super::lists::{Linked, each, sg_list};
use super::srq::SrqObject;
use super::types::srq::{OpsWr, Srq};

/// `IBV_WR_TAG_ADD`, `IBV_WR_TAG_DEL` and `IBV_WR_TAG_SYNC`.
const ADD: u32 = 0;
const DEL: u32 = 1;
const SYNC: u32 = 2;

/// `IBV_OPS_SIGNALED` and `IBV_OPS_TM_SYNC`.
const SIGNALED: c_int = 1;
const TM_SYNC: c_int = 1 << 1;

impl Linked for OpsWr {
    fn next(&self) -> *mut Self {
        self.next
    }
}

pub(crate) unsafe extern "C" fn post_srq_ops(
    srq: *mut Srq,
    first: *mut OpsWr,
    bad: *mut *mut OpsWr,
) -> c_int {
    data("ibv_post_srq_ops", libc::EIO, || {
        // SAFETY: contract: the queue is one of ours.
        let own = unsafe { SrqObject::own(srq) };
        let mut engine = own.hca.lock_to_post();
        let post = |c: &mut OpsWr| {
            // SAFETY: contract: the list that an operation names is valid.
            let op = unsafe { tag_op(c) }?;
            let done = engine.post_srq_op(own.id, op);
            if let Some(handle) = done.map_err(|refusal| errno::of(refusal.kind()))? {
                c.tm.handle = handle;
            }
            Ok(())
        };
        // SAFETY: contract: the list is valid to its end.
        unsafe { each(first, bad, post) }
    })
}

/// An operation in the engine's form. The list it names is valid.
unsafe fn tag_op(c: &OpsWr) -> Result<TagOp, c_int> {
    let refused = |what: &str, value: u32| {
        tracing::info!(target: "peerdma::refusal", "ibv_post_srq_ops: {what} {value:#x}");
        libc::EINVAL
    };
    if c.flags & !(SIGNALED | TM_SYNC) != 0 {
        return Err(refused("flags", c.flags as u32));
    }
    let kind = match c.opcode {
        ADD => {
            let add = &c.tm.add;
            // SAFETY: the caller's promise.
            let sges = unsafe { sg_list(add.sg_list, add.num_sge) }?;
            let wr = RecvWr { wr_id: add.recv_wr_id, sges };
            TagOpKind::Add { wr, tag: add.tag, mask: add.mask }
        }
        DEL => TagOpKind::Del(c.tm.handle),
        SYNC => TagOpKind::Sync,
        opcode => return Err(refused("opcode", opcode)),
    };
    // A sync without a count would do nothing.
    let tells = c.flags & TM_SYNC != 0 || c.opcode == SYNC;
    Ok(TagOp {
        wr_id: c.wr_id,
        signaled: c.flags & SIGNALED != 0,
        unexpected_cnt: tells.then_some(c.tm.unexpected_cnt),
        kind,
    })
}
