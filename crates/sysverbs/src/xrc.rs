//! Extended reliable connections (IBA annex A14): domains, and the QPs that receive for all shared
//! queues of a domain.

use std::ffi::c_int;
use std::mem;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr::NonNull;
use std::sync::Arc;

use iba::{AttrMask, QpAttr, QpType, Qpn};
use verbs_abi::qp as c;
use verbs_abi::srq::{Xrcd as CXrcd, XrcdInitAttr};

use crate::context::{Context, later_op};
use crate::error::{Error, Result};
use crate::qp;

/// `IBV_XRCD_INIT_ATTR_FD` and `_OFLAGS`: both must be given (`ibv_open_xrcd(3)`).
const FD_AND_OFLAGS: u32 = 1 | 1 << 1;
/// `IBV_QP_INIT_ATTR_XRCD`.
const XRCD: u32 = 1 << 1;

/// An XRC domain. Clones are the same one.
#[derive(Clone, Debug)]
#[doc(alias = "ibv_xrcd")]
pub struct Xrcd(Arc<Domain>);

#[derive(Debug)]
struct Domain {
    raw: NonNull<CXrcd>,
    context: Context,
}

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for Domain {}
// SAFETY: as above.
unsafe impl Sync for Domain {}

impl Drop for Domain {
    fn drop(&mut self) {
        if let Some(close) = later_op!(self.context, close_xrcd) {
            // SAFETY: every object of the domain holds it, so none is left.
            unsafe { close(self.raw.as_ptr()) };
        }
    }
}

impl Context {
    /// Opens an XRC domain: that of a file, which all who open the file share, or one of its own.
    ///
    /// # Errors
    ///
    /// The library's; EOPNOTSUPP if the provider has no XRC.
    #[doc(alias = "ibv_open_xrcd")]
    pub fn open_xrcd(&self, file: Option<BorrowedFd<'_>>) -> Result<Xrcd> {
        const CALL: &str = "ibv_open_xrcd";
        let open = later_op!(self, open_xrcd).ok_or(Error::absent(CALL))?;
        let fd: c_int = file.map_or(-1, |file| file.as_raw_fd());
        let mut attr = XrcdInitAttr { comp_mask: FD_AND_OFLAGS, fd, oflags: libc::O_CREAT };
        // SAFETY: the context and the file are open, and the structure is valid.
        let raw = unsafe { open(self.raw(), &raw mut attr) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last(CALL))?;
        Ok(Xrcd(Arc::new(Domain { raw, context: self.clone() })))
    }
}

impl Xrcd {
    pub(crate) fn raw(&self) -> *mut CXrcd {
        self.0.raw.as_ptr()
    }

    /// The device it is of.
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    /// Creates a QP that receives for the shared queues of the domain, in RESET.
    ///
    /// # Errors
    ///
    /// The library's.
    #[doc(alias("ibv_create_qp_ex", "IBV_QPT_XRC_RECV"))]
    pub fn create_qp(&self) -> Result<XrcRecvQp> {
        const CALL: &str = "ibv_create_qp_ex";
        let create = later_op!(self.context(), create_qp_ex).ok_or(Error::absent(CALL))?;
        // SAFETY: the structure is made of integers and pointers, for which zero is a value.
        let mut wanted: c::QpInitAttrEx = unsafe { mem::zeroed() };
        wanted.qp_type = QpType::XrcRecv as u32;
        wanted.comp_mask = XRCD;
        wanted.xrcd = self.raw();
        // SAFETY: the context is open, the domain exists, and the structure is valid.
        let raw = unsafe { create(self.context().raw(), &raw mut wanted) };
        let raw = NonNull::new(raw).ok_or_else(|| Error::last(CALL))?;
        // SAFETY: the library made it a moment ago.
        let qpn = Qpn::new(unsafe { (*raw.as_ptr()).qp_num });
        Ok(XrcRecvQp(Arc::new(Target { raw, qpn, xrcd: self.clone() })))
    }
}

/// The receiving half of an extended reliable connection: it has neither queues nor a protection
/// domain, and takes those of the shared queue that a packet names. Clones are the same one.
#[derive(Clone, Debug)]
#[doc(alias("ibv_qp", "IBV_QPT_XRC_RECV"))]
pub struct XrcRecvQp(Arc<Target>);

#[derive(Debug)]
struct Target {
    raw: NonNull<c::Qp>,
    qpn: Qpn,
    xrcd: Xrcd,
}

// SAFETY: libibverbs may be called from any thread.
unsafe impl Send for Target {}
// SAFETY: as above.
unsafe impl Sync for Target {}

impl Drop for Target {
    fn drop(&mut self) {
        let destroy = self.xrcd.context().functions().ibv_destroy_qp;
        // SAFETY: the QP exists, and whoever uses it holds it.
        unsafe { destroy(self.raw.as_ptr()) };
    }
}

impl XrcRecvQp {
    /// Its number.
    pub fn qpn(&self) -> Qpn {
        self.0.qpn
    }

    /// The domain it is in.
    pub fn xrcd(&self) -> &Xrcd {
        &self.0.xrcd
    }

    /// Changes state or attributes, as selected by the mask.
    ///
    /// # Errors
    ///
    /// The library's.
    #[doc(alias = "ibv_modify_qp")]
    pub fn modify(&self, attr: &QpAttr, mask: AttrMask) -> Result<()> {
        // SAFETY: the QP exists.
        unsafe { qp::modify(self.xrcd().context(), self.0.raw, attr, mask) }
    }

    /// Its state and attributes.
    ///
    /// # Errors
    ///
    /// The library's.
    #[doc(alias = "ibv_query_qp")]
    pub fn query(&self) -> Result<QpAttr> {
        // SAFETY: the QP exists.
        unsafe { qp::query(self.xrcd().context(), self.0.raw) }
    }
}
