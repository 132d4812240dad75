//! Shared receive queues.

use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use iba::Srqn;
use transport::PostError;
use transport::wr::RecvWr;
use verbs_abi::srq::{Srq as CSrq, SrqAttr, SrqInitAttr, SrqInitAttrEx, TmCap};

use crate::context::later_op;
use crate::cq::Cq;
use crate::error::{Error, Result, check};
use crate::pd::Pd;
use crate::post;
use crate::queue::QueueId;
use crate::xrc::Xrcd;

/// `IBV_SRQ_MAX_WR`.
const SRQ_MAX_WR: i32 = 1;
/// `IBV_SRQ_LIMIT`.
const SRQ_LIMIT: i32 = 1 << 1;
/// `IBV_SRQT_XRC`.
const TYPE_XRC: u32 = 1;
/// `IBV_SRQ_INIT_ATTR_TYPE`, `_PD`, `_XRCD` and `_CQ`.
const TYPE_PD_XRCD_AND_CQ: u32 = 0b1111;

/// A shared receive queue. Clones are the same one.
#[derive(Clone, Debug)]
#[doc(alias = "ibv_srq")]
pub struct Srq(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    raw: NonNull<CSrq>,
    id: QueueId,
    max_wr: AtomicU32,
    max_sge: u32,
    /// Of an XRC SRQ: its domain, and where its receives complete.
    xrc: Option<(Xrcd, Cq)>,
    pd: Pd,
}

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Drop for Shared {
    fn drop(&mut self) {
        let destroy = self.pd.context().functions().ibv_destroy_srq;
        // SAFETY: every QP that receives from it holds it, so none is left.
        unsafe { destroy(self.raw.as_ptr()) };
    }
}

impl Pd {
    /// Creates a shared receive queue.
    ///
    /// # Errors
    ///
    /// The library's.
    #[doc(alias = "ibv_create_srq")]
    pub fn create_srq(&self, max_wr: u32, max_sge: u32) -> Result<Srq> {
        let create = self.context().functions().ibv_create_srq;
        let attr = SrqAttr { max_wr, max_sge, srq_limit: 0 };
        let id = QueueId::new();
        let mut init = SrqInitAttr { srq_context: id.cookie(), attr };
        // SAFETY: the domain exists, and the structure is valid.
        let raw = unsafe { create(self.raw(), &raw mut init) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last("ibv_create_srq"))?;
        // What the provider made it for, which may be more.
        let SrqAttr { max_wr, max_sge, .. } = init.attr;
        let max_wr = AtomicU32::new(max_wr);
        Ok(Srq(Arc::new(Shared { raw, id, max_wr, max_sge, xrc: None, pd: self.clone() })))
    }

    /// Creates a shared receive queue that packets name by its number. Its receives complete on
    /// `cq`.
    ///
    /// # Errors
    ///
    /// EINVAL if domain or queue are of another device, or the library's.
    #[doc(alias("ibv_create_srq_ex", "IBV_SRQT_XRC"))]
    pub fn create_xrc_srq(&self, xrcd: &Xrcd, cq: &Cq, max_wr: u32, max_sge: u32) -> Result<Srq> {
        const CALL: &str = "ibv_create_srq_ex";
        let context = self.context();
        if !context.is_same(xrcd.context()) || !context.is_same(cq.context()) {
            return Err(Error::new(CALL, libc::EINVAL));
        }
        let create = later_op!(context, create_srq_ex).ok_or(Error::absent(CALL))?;
        let id = QueueId::new();
        let mut init = SrqInitAttrEx {
            srq_context: id.cookie(),
            attr: SrqAttr { max_wr, max_sge, srq_limit: 0 },
            comp_mask: TYPE_PD_XRCD_AND_CQ,
            srq_type: TYPE_XRC,
            pd: self.raw(),
            xrcd: xrcd.raw(),
            cq: cq.raw(),
            tm_cap: TmCap { max_num_tags: 0, max_ops: 0 },
        };
        // SAFETY: the context is open, the domains and the queue exist, and the structure is valid.
        let raw = unsafe { create(context.raw(), &raw mut init) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last(CALL))?;
        let SrqAttr { max_wr, max_sge, .. } = init.attr;
        let max_wr = AtomicU32::new(max_wr);
        let xrc = Some((xrcd.clone(), cq.clone()));
        Ok(Srq(Arc::new(Shared { raw, id, max_wr, max_sge, xrc, pd: self.clone() })))
    }
}

impl Srq {
    pub(crate) fn raw(&self) -> *mut CSrq {
        self.0.raw.as_ptr()
    }

    /// The domain it is in.
    pub fn pd(&self) -> &Pd {
        &self.0.pd
    }

    /// What events name it by.
    pub fn id(&self) -> QueueId {
        self.0.id
    }

    /// Whether packets name it.
    pub fn is_xrc(&self) -> bool {
        self.0.xrc.is_some()
    }

    /// The number by which packets name it.
    ///
    /// # Errors
    ///
    /// EINVAL for a queue that is not XRC's, or the library's.
    #[doc(alias = "ibv_get_srq_num")]
    pub fn number(&self) -> Result<Srqn> {
        const CALL: &str = "ibv_get_srq_num";
        if !self.is_xrc() {
            return Err(Error::new(CALL, libc::EINVAL));
        }
        let get = later_op!(self.0.pd.context(), get_srq_num).ok_or(Error::absent(CALL))?;
        let mut number = 0;
        // SAFETY: the queue exists, and there is room for a number.
        check(CALL, unsafe { get(self.raw(), &raw mut number) })?;
        Ok(Srqn::new(number))
    }

    /// Asks for one event when fewer than `limit` receives are left.
    ///
    /// # Errors
    ///
    /// The library's.
    #[doc(alias("ibv_modify_srq", "IBV_SRQ_LIMIT"))]
    pub fn arm(&self, limit: u32) -> Result<()> {
        self.modify(SrqAttr { max_wr: 0, max_sge: 0, srq_limit: limit }, SRQ_LIMIT)
    }

    /// Gives it room for `max_wr` receives.
    ///
    /// # Errors
    ///
    /// The library's: many providers cannot.
    #[doc(alias("ibv_modify_srq", "IBV_SRQ_MAX_WR"))]
    pub fn resize(&self, max_wr: u32) -> Result<()> {
        self.modify(SrqAttr { max_wr, max_sge: 0, srq_limit: 0 }, SRQ_MAX_WR)?;
        // ORDERING: it stands in an error alone.
        self.0.max_wr.store(max_wr, Ordering::Relaxed);
        Ok(())
    }

    fn modify(&self, mut attr: SrqAttr, mask: i32) -> Result<()> {
        let modify = self.0.pd.context().functions().ibv_modify_srq;
        // SAFETY: the queue exists, and the structure is valid.
        check("ibv_modify_srq", unsafe { modify(self.raw(), &raw mut attr, mask) })
    }

    /// Posts a receive.
    ///
    /// # Errors
    ///
    /// More elements than the queue was made for, or the library's.
    #[doc(alias = "ibv_post_srq_recv")]
    pub fn post_recv(&self, wr: &RecvWr) -> std::result::Result<(), PostError> {
        let Some(call) = self.0.pd.context().ops().post_srq_recv else {
            return Err(PostError::Provider(libc::EOPNOTSUPP));
        };
        let max_wr = self.0.max_wr.load(Ordering::Relaxed);
        post::recv(wr, self.0.max_sge, max_wr, |wr, bad| {
            // SAFETY: the queue exists, and the request is valid for the call.
            unsafe { call(self.raw(), wr, bad) }
        })
    }

    /// Posts receives as lists of the library's until one is refused: how many, and why no more.
    #[doc(alias("ibv_post_srq_recv", "bad_wr"))]
    pub fn post_recvs(&self, wrs: &[RecvWr]) -> (usize, Option<PostError>) {
        let Some(call) = self.0.pd.context().ops().post_srq_recv else {
            return (0, Some(PostError::Provider(libc::EOPNOTSUPP)));
        };
        // ORDERING: it is a number for words.
        let max_wr = self.0.max_wr.load(Ordering::Relaxed);
        post::recv_lists(wrs, self.0.max_sge, max_wr, |wr, bad| {
            // SAFETY: the queue exists, and the requests are valid for the call.
            unsafe { call(self.raw(), wr, bad) }
        })
    }
}
