//! A library's post, called as C programs call it.
#![allow(unsafe_code, reason = "structures of C")]

use std::ffi::c_void;
use std::ptr;

use verbs_abi::ops::ContextOps;
use verbs_abi::qp::Qp;
use verbs_abi::wr::{SendWr, Sge};

use crate::Outcome;

/// A WRITE, which can be posted again and again. Each time the request is built for the call, as C
/// programs do.
pub(crate) struct Write {
    qp: *mut Qp,
    sge: Sge,
    remote: (u64, u32),
}

impl Write {
    /// # Safety
    ///
    /// `qp` is a library's QP, which exists for as long as this.
    pub(crate) unsafe fn new(qp: *mut c_void, sge: Sge, remote: (u64, u32)) -> Self {
        Self { qp: qp.cast(), sge, remote }
    }

    /// Posts it, as the inline function of the header does.
    #[inline]
    pub(crate) fn post(&self, is_signaled: bool) -> Outcome<()> {
        const SIGNALED: u32 = 1 << 1;
        let mut sge = Sge { ..self.sge };
        // SAFETY: the structure is made of integers and pointers, for which zero is a value.
        let mut wr: SendWr = unsafe { std::mem::zeroed() };
        // IBV_WR_RDMA_WRITE is 0.
        (wr.sg_list, wr.num_sge) = (&raw mut sge, 1);
        (wr.wr.rdma.remote_addr, wr.wr.rdma.rkey) = self.remote;
        wr.send_flags = if is_signaled { SIGNALED } else { 0 };
        let mut bad = ptr::null_mut();
        // SAFETY: the QP exists, as `new` was promised, and its context with it.
        let context = unsafe { (*self.qp).context };
        // SAFETY: as above.
        let ops = unsafe { &raw const (*context).ops };
        // SAFETY: the field is this structure under another type (`verbs_abi::context::OpsRoom`).
        let post = unsafe { (*ops.cast::<ContextOps>()).post_send }.ok_or("no post_send")?;
        // SAFETY: as above, and the request is valid until the call returns.
        match unsafe { post(self.qp, &raw mut wr, &raw mut bad) } {
            0 => Ok(()),
            errno => Err(std::io::Error::from_raw_os_error(errno).into()),
        }
    }
}
