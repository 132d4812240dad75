//! Queue pairs.

use std::collections::VecDeque;
use std::ffi::c_int;
use std::mem;
use std::ptr::{self, NonNull};
use std::sync::{Arc, Mutex, PoisonError};

use iba::{AttrMask, CompCntrOps, Gid, QpAttr, QpCap, QpType, Qpn};
use transport::PostError;
use transport::wr::{Data, RecvWr, SendWr};
use verbs_abi::comp_cntr::QpAttachCompCntrAttr;
use verbs_abi::device::Gid as CGid;
use verbs_abi::ops::{ContextOps, PostRecv, PostSend};
use verbs_abi::qp as c;

use crate::ah::Ah;
use crate::attr;
use crate::calls::{self, Calls};
use crate::comp_cntr::CompCntr;
use crate::context::Context;
use crate::cq::Cq;
use crate::error::{Error, Result, check};
use crate::mw::Mw;
use crate::pd::Pd;
use crate::post;
use crate::srq::Srq;

/// The parameters of a new QP.
#[derive(Clone, Debug)]
#[doc(alias = "ibv_qp_init_attr")]
#[expect(clippy::exhaustive_structs, reason = "callers build it")]
pub struct QpInit {
    /// The service.
    pub qp_type: QpType,
    /// Where sends complete.
    pub send_cq: Cq,
    /// Where receives complete.
    pub recv_cq: Cq,
    /// The shared receive queue, if the QP has none of its own.
    pub srq: Option<Srq>,
    /// The capacities.
    pub cap: QpCap,
    /// Whether every send completes, flagged or not.
    pub sq_sig_all: bool,
}

/// A queue pair. Clones are the same one.
#[derive(Clone, Debug)]
#[doc(alias = "ibv_qp")]
pub struct Qp(Arc<Pair>);

#[derive(Debug)]
struct Pair {
    raw: NonNull<c::Qp>,
    qpn: Qpn,
    init: QpInit,
    /// The context's operations for requests: they are looked up once, and not at each request.
    post_send: Option<PostSend>,
    post_recv: Option<PostRecv>,
    /// Its plain operations ([`post::plain_ops`]).
    plain: u16,
    /// How it posts what `ibv_post_send` does not have, if it does.
    calls: Option<Calls>,
    /// Address handles of the last requests, as many as the send queue holds: a handle that is not
    /// among them is named by no request.
    handles: Mutex<VecDeque<Ah>>,
    /// Counters that it is attached to, which it must not outlive.
    counters: Mutex<Vec<CompCntr>>,
    pd: Pd,
}

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for Pair {}
// SAFETY: as above.
unsafe impl Sync for Pair {}

impl Drop for Pair {
    fn drop(&mut self) {
        let destroy = self.pd.context().functions().ibv_destroy_qp;
        // SAFETY: the QP exists, and whoever uses it holds it.
        unsafe { destroy(self.raw.as_ptr()) };
    }
}

impl Pd {
    /// Creates a QP, in RESET.
    ///
    /// # Errors
    ///
    /// EINVAL if a queue is of another device, for an SRQ that the QP cannot have, and for an
    /// XRC_RECV QP ([`Xrcd::create_qp`](crate::Xrcd::create_qp)); otherwise the library's.
    #[doc(alias = "ibv_create_qp")]
    pub fn create_qp(&self, init: &QpInit) -> Result<Qp> {
        const CALL: &str = "ibv_create_qp";
        let context = self.context();
        let is_here = context.is_same(init.send_cq.context())
            && context.is_same(init.recv_cq.context())
            && init.srq.as_ref().is_none_or(|srq| context.is_same(srq.pd().context()));
        // An XRC SRQ is named by packets, and an XRC_SEND QP receives nothing.
        let takes = init.srq.as_ref();
        let fits = takes.is_none_or(|srq| !srq.is_xrc() && init.qp_type != QpType::XrcSend);
        if !is_here || !fits || init.qp_type == QpType::XrcRecv {
            return Err(Error::new(CALL, libc::EINVAL));
        }
        let mut c_init = c::QpInitAttr {
            qp_context: ptr::null_mut(),
            send_cq: init.send_cq.raw(),
            recv_cq: init.recv_cq.raw(),
            srq: init.srq.as_ref().map_or(ptr::null_mut(), Srq::raw),
            cap: attr::cap_to_c(&init.cap),
            qp_type: init.qp_type as u32,
            sq_sig_all: c_int::from(init.sq_sig_all),
        };
        let (raw, calls) = match calls::create(self, &mut c_init) {
            Some((raw, calls)) => (raw, Some(calls)),
            None => {
                let create = context.functions().ibv_create_qp;
                // SAFETY: the domain and the queues exist, and the structure is valid.
                let raw = unsafe { create(self.raw(), &raw mut c_init) };
                (NonNull::new(raw).ok_or_else(|| Error::last(CALL))?, None)
            }
        };
        // SAFETY: the library made it a moment ago.
        let qpn = Qpn::new(unsafe { (*raw.as_ptr()).qp_num });
        // What the provider made it for, which may be more.
        let init = QpInit { cap: attr::cap_from_c(&c_init.cap), ..init.clone() };
        let (handles, counters, pd) = (Mutex::default(), Mutex::default(), self.clone());
        let &ContextOps { post_send, post_recv, .. } = context.ops();
        let plain = post::plain_ops(init.qp_type);
        Ok(Qp(Arc::new(Pair {
            raw,
            qpn,
            init,
            post_send,
            post_recv,
            plain,
            calls,
            handles,
            counters,
            pd,
        })))
    }
}

impl Qp {
    /// The library's own, which exists as long as this.
    pub fn raw(&self) -> *mut c::Qp {
        self.0.raw.as_ptr()
    }

    /// Its number.
    pub fn qpn(&self) -> Qpn {
        self.0.qpn
    }

    /// The domain it is in.
    pub fn pd(&self) -> &Pd {
        &self.0.pd
    }

    /// Makes a counter count these operations until the QP is destroyed.
    ///
    /// # Errors
    ///
    /// EINVAL for a counter of another device; otherwise the library's.
    #[doc(alias = "ibv_qp_attach_comp_cntr")]
    pub fn attach_comp_cntr(&self, cntr: &CompCntr, ops: CompCntrOps) -> Result<()> {
        const CALL: &str = "ibv_qp_attach_comp_cntr";
        let context = self.pd().context();
        if !context.is_same(cntr.context()) {
            return Err(Error::new(CALL, libc::EINVAL));
        }
        let attach = context.functions().ibv_qp_attach_comp_cntr.ok_or(Error::absent(CALL))?;
        let mut attr = QpAttachCompCntrAttr { comp_mask: 0, op_mask: ops.bits() };
        let mut held = self.0.counters.lock().unwrap_or_else(PoisonError::into_inner);
        // SAFETY: both exist, of one device, and the structure is valid.
        check(CALL, unsafe { attach(self.raw(), cntr.raw(), &raw mut attr) })?;
        held.push(cntr.clone());
        Ok(())
    }

    /// Changes state or attributes, as selected by the mask.
    ///
    /// # Errors
    ///
    /// The library's.
    #[doc(alias = "ibv_modify_qp")]
    pub fn modify(&self, attr: &QpAttr, mask: AttrMask) -> Result<()> {
        // SAFETY: the QP exists.
        unsafe { modify(self.0.pd.context(), self.0.raw, attr, mask) }
    }

    /// Its state and attributes.
    ///
    /// # Errors
    ///
    /// The library's.
    #[doc(alias = "ibv_query_qp")]
    pub fn query(&self) -> Result<QpAttr> {
        // SAFETY: the QP exists.
        unsafe { query(self.0.pd.context(), self.0.raw) }
    }

    /// Posts a send. A datagram brings its address handle, a request that binds a window brings the
    /// window.
    ///
    /// # Errors
    ///
    /// What the QP was not created for, [`PostError::Absent`] for a FLUSH or an ATOMIC WRITE that
    /// the device or its library does not have, or [`PostError::Provider`] with the library's
    /// number.
    #[doc(alias = "ibv_post_send")]
    #[inline]
    pub fn post_send(
        &self,
        wr: &SendWr,
        ah: Option<&Ah>,
        window: Option<&Mw>,
    ) -> std::result::Result<(), PostError> {
        if let Data::Sges(list) = &wr.data
            && let Some(call) = self.0.post_send
            && post::is_among(self.0.plain, wr.opcode)
            && list.len() <= self.0.init.cap.max_send_sge as usize
            && ah.is_none()
        {
            let max_wr = self.0.init.cap.max_send_wr;
            return post::plain(wr, list, max_wr, |wr, bad| {
                // SAFETY: the QP exists, and the request is valid for the call.
                unsafe { call(self.raw(), wr, bad) }
            });
        }
        self.post_any(wr, ah, window)
    }

    /// Posts the plain requests at the front of `wrs` as lists of the library's: how many, and why
    /// no more, unless they end or the next is not plain. A plain request has no address handle,
    /// and binds no window.
    #[doc(alias("ibv_post_send", "bad_wr"))]
    pub fn post_plain_sends<'wr>(
        &self,
        wrs: impl Iterator<Item = &'wr SendWr>,
    ) -> (usize, Option<PostError>) {
        let Some(call) = self.0.post_send else {
            return (0, Some(PostError::Provider(libc::EOPNOTSUPP)));
        };
        let QpCap { max_send_sge, max_send_wr, .. } = self.0.init.cap;
        let lists = wrs.map_while(|wr| match &wr.data {
            Data::Sges(list) if post::is_among(self.0.plain, wr.opcode) => {
                (list.len() <= max_send_sge as usize).then_some((wr, list))
            }
            _ => None,
        });
        post::plain_lists(lists, max_send_wr, |wr, bad| {
            // SAFETY: the QP exists, and the requests are valid for the call.
            unsafe { call(self.raw(), wr, bad) }
        })
    }

    /// Posts what is not a plain request, or is to be refused.
    #[inline(never)]
    fn post_any(
        &self,
        wr: &SendWr,
        ah: Option<&Ah>,
        window: Option<&Mw>,
    ) -> std::result::Result<(), PostError> {
        let max_wr = self.0.init.cap.max_send_wr;
        if calls::may_have(self.0.init.qp_type, wr.opcode) {
            let calls = self.0.calls.as_ref().ok_or(PostError::Absent(wr.opcode))?;
            return calls.post(wr, max_wr);
        }
        self.check_send(wr)?;
        let context = self.0.pd.context();
        let is_here = ah.is_none_or(|ah| context.is_same(ah.pd().context()))
            && window.is_none_or(|window| context.is_same(window.region().pd().context()));
        if !is_here {
            return Err(PostError::OtherDevice);
        }
        let Some(call) = self.0.post_send else {
            return Err(PostError::Provider(libc::EOPNOTSUPP));
        };
        let post = || {
            let posted = post::send(wr, ah, window, |wr, bad| {
                // SAFETY: the QP exists, and the request is valid for the call.
                unsafe { call(self.raw(), wr, bad) }
            });
            posted.map_err(|errno| post::refused(errno, max_wr))
        };
        if let (Some(window), Data::Bind(bind)) = (window, &wr.data) {
            return window.bind(bind.key, post);
        }
        let Some(ah) = ah else { return post() };
        // Requests are counted in the order in which they are posted.
        let mut handles = self.0.handles.lock().unwrap_or_else(PoisonError::into_inner);
        post()?;
        handles.push_back(ah.clone());
        if handles.len() > max_wr as usize {
            handles.pop_front();
        }
        Ok(())
    }

    /// What a provider need not look at.
    fn check_send(&self, wr: &SendWr) -> std::result::Result<(), PostError> {
        let QpInit { qp_type, cap, .. } = &self.0.init;
        if !post::has(*qp_type, wr.opcode) {
            return Err(PostError::Opcode { qp_type: *qp_type, opcode: wr.opcode });
        }
        if *qp_type == QpType::Ud && wr.ud.is_none() {
            return Err(PostError::NoDestination);
        }
        match &wr.data {
            Data::Sges(list) if list.len() > cap.max_send_sge as usize => {
                Err(PostError::Sges { count: list.len(), max: cap.max_send_sge })
            }
            Data::Inline(bytes)
                if bytes.len() > cap.max_inline_data as usize || wr.opcode.is_read_like() =>
            {
                let max = if wr.opcode.is_read_like() { 0 } else { cap.max_inline_data };
                Err(PostError::Inline { length: bytes.len(), max })
            }
            _ => Ok(()),
        }
    }

    /// Posts a receive.
    ///
    /// # Errors
    ///
    /// As [`post_send`](Self::post_send), and [`PostError::HasSrq`].
    #[doc(alias = "ibv_post_recv")]
    #[inline]
    pub fn post_recv(&self, wr: &RecvWr) -> std::result::Result<(), PostError> {
        let QpInit { cap, srq, qp_type, .. } = &self.0.init;
        if srq.is_some() || *qp_type == QpType::XrcSend {
            return Err(PostError::HasSrq);
        }
        let Some(call) = self.0.post_recv else {
            return Err(PostError::Provider(libc::EOPNOTSUPP));
        };
        post::recv(wr, cap.max_recv_sge, cap.max_recv_wr, |wr, bad| {
            // SAFETY: the QP exists, and the request is valid for the call.
            unsafe { call(self.raw(), wr, bad) }
        })
    }

    /// Posts receives as lists of the library's until one is refused: how many, and why no more.
    #[doc(alias("ibv_post_recv", "bad_wr"))]
    pub fn post_recvs(&self, wrs: &[RecvWr]) -> (usize, Option<PostError>) {
        let QpInit { cap, srq, qp_type, .. } = &self.0.init;
        if srq.is_some() || *qp_type == QpType::XrcSend {
            return (0, Some(PostError::HasSrq));
        }
        let Some(call) = self.0.post_recv else {
            return (0, Some(PostError::Provider(libc::EOPNOTSUPP)));
        };
        post::recv_lists(wrs, cap.max_recv_sge, cap.max_recv_wr, |wr, bad| {
            // SAFETY: the QP exists, and the requests are valid for the call.
            unsafe { call(self.raw(), wr, bad) }
        })
    }

    /// Joins a multicast group: datagrams of it are received, too.
    ///
    /// # Errors
    ///
    /// The library's.
    #[doc(alias = "ibv_attach_mcast")]
    pub fn attach_mcast(&self, group: Gid) -> Result<()> {
        let attach = self.0.pd.context().functions().ibv_attach_mcast;
        let group = CGid { raw: group.0 };
        // SAFETY: the QP exists, and the GID is valid for the call.
        check("ibv_attach_mcast", unsafe { attach(self.raw(), &raw const group, 0) })
    }

    /// Leaves a multicast group.
    ///
    /// # Errors
    ///
    /// The library's.
    #[doc(alias = "ibv_detach_mcast")]
    pub fn detach_mcast(&self, group: Gid) -> Result<()> {
        let detach = self.0.pd.context().functions().ibv_detach_mcast;
        let group = CGid { raw: group.0 };
        // SAFETY: the QP exists, and the GID is valid for the call.
        check("ibv_detach_mcast", unsafe { detach(self.raw(), &raw const group, 0) })
    }
}

/// Changes state or attributes of a QP of the context, as selected by the mask.
///
/// # Safety
///
/// The QP exists.
pub(crate) unsafe fn modify(
    context: &Context,
    qp: NonNull<c::Qp>,
    attr: &QpAttr,
    mask: AttrMask,
) -> Result<()> {
    let modify = context.functions().ibv_modify_qp;
    let mut attr = attr::to_c(attr);
    let mask = mask.bits().cast_signed();
    // SAFETY: the caller's promise, and the structure is valid.
    check("ibv_modify_qp", unsafe { modify(qp.as_ptr(), &raw mut attr, mask) })
}

/// State and attributes of a QP of the context.
///
/// # Safety
///
/// The QP exists.
pub(crate) unsafe fn query(context: &Context, qp: NonNull<c::Qp>) -> Result<QpAttr> {
    let query = context.functions().ibv_query_qp;
    // SAFETY: the structure is made of integers, for which zero is a value.
    let mut attr: c::QpAttr = unsafe { mem::zeroed() };
    // SAFETY: the structure is made of integers and pointers, for which zero is a value.
    let mut init: c::QpInitAttr = unsafe { mem::zeroed() };
    // A provider may answer only what is asked for.
    let mask = (AttrMask::RATE_LIMIT.bits() - 1) & 0x1f_ffff;
    let mask = mask.cast_signed();
    // SAFETY: the caller's promise, and there is room for both structures.
    let done = unsafe { query(qp.as_ptr(), &raw mut attr, mask, &raw mut init) };
    check("ibv_query_qp", done)?;
    Ok(attr::from_c(&attr))
}
