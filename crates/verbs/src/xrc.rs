//! Extended reliable connections.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;

use device::ids::{QpId, XrcdId};
use iba::{Access, AttrMask, Psn, QpAttr, QpType, Qpn};

use crate::arm::{Arm, On, refused};
use crate::connect::{self, Connect};
use crate::{ConnectOptions, Context, Endpoint, Result};

/// A domain of extended reliable connections (XRC, IBA annex A14): one [`XrcRecvQp`] in it receives
/// for all of its shared queues, of which each request names one. So a process needs one QP for
/// each process that sends to it, and none for each of its own threads.
///
/// ```no_run
/// use verbs::{Access, QpSpec, SendRequest};
///
/// # fn f(context: &verbs::Context, pd: &verbs::Pd, there: verbs::Endpoint) -> verbs::Result<()> {
/// // The side that receives:
/// let cq = context.create_cq(64)?;
/// let xrcd = context.open_xrcd()?;
/// let queue = pd.create_xrc_srq(&xrcd, &cq, 64, 1)?;
/// let receiver = xrcd.create_recv_qp(Access::REMOTE_WRITE)?;
/// receiver.connect(&there)?;
/// let number = queue.number()?; // for those that send
///
/// // The side that sends:
/// let sender = pd.create_qp(&QpSpec::xrc_send(&cq))?;
/// sender.connect(&there)?;
/// let hello = SendRequest::send(1, &[]).inline(b"hello").to_srq(number);
/// sender.post_send(&hello).expect("the queue has room");
/// # Ok(()) }
/// ```
///
/// Clones are the same one.
#[derive(Clone, Debug)]
#[doc(alias = "ibv_xrcd")]
pub struct Xrcd(Arc<Domain>);

#[derive(Debug)]
struct Domain {
    arm: Arm<On<XrcdId>, sysverbs::Xrcd>,
    context: Context,
}

impl Drop for Domain {
    fn drop(&mut self) {
        if let Arm::Soft(on) = &self.arm {
            // Every object in the domain holds it, so the domain is empty.
            let _ = on.lock().close_xrcd(on.id);
        }
    }
}

impl Context {
    /// Opens an XRC domain that nobody else can open.
    ///
    /// # Errors
    ///
    /// [`Kind::NotSupported`](crate::Kind::NotSupported) if the provider has no XRC.
    #[doc(alias = "ibv_open_xrcd")]
    pub fn open_xrcd(&self) -> Result<Xrcd> {
        Xrcd::open(self, None)
    }

    /// Opens the XRC domain of a file: the same one for all who open that file, whatever they open
    /// it for. On a NIC of a library these may be other processes; a software device has domains of
    /// its own.
    ///
    /// # Errors
    ///
    /// As [`open_xrcd`](Self::open_xrcd).
    #[doc(alias = "ibv_open_xrcd")]
    pub fn open_xrcd_of(&self, file: impl AsFd) -> Result<Xrcd> {
        Xrcd::open(self, Some(file.as_fd()))
    }
}

impl Xrcd {
    fn open(context: &Context, file: Option<BorrowedFd<'_>>) -> Result<Self> {
        let arm = match context.arm() {
            Arm::Soft(soft) => {
                let id = soft.alive()?.open_xrcd(soft.id, file, true, false)?;
                Arm::Soft(soft.with(id))
            }
            Arm::Hard(hard) => Arm::Hard(hard.open_xrcd(file).map_err(refused)?),
        };
        Ok(Self(Arc::new(Domain { arm, context: context.clone() })))
    }

    /// The device it is of.
    pub fn context(&self) -> &Context {
        &self.0.context
    }

    pub(crate) fn arm(&self) -> &Arm<On<XrcdId>, sysverbs::Xrcd> {
        &self.0.arm
    }

    /// Creates a QP that receives for the shared queues of the domain, in INIT. `access` says what
    /// its peer may do.
    ///
    /// # Errors
    ///
    /// The device's.
    #[doc(alias("ibv_create_qp_ex", "IBV_QPT_XRC_RECV"))]
    pub fn create_recv_qp(&self, access: Access) -> Result<XrcRecvQp> {
        let (arm, qpn) = match &self.0.arm {
            Arm::Soft(on) => {
                let spec = device::QpSpec::xrc_target(on.id, 0);
                let (id, qpn) = on.alive()?.create_qp(&spec)?;
                (Arm::Soft(on.with(id)), qpn)
            }
            Arm::Hard(xrcd) => {
                let qp = xrcd.create_qp().map_err(refused)?;
                let qpn = qp.qpn();
                (Arm::Hard(qp), qpn)
            }
        };
        let qp = XrcRecvQp(Arc::new(Target { arm, qpn, xrcd: self.clone() }));
        connect::to_init(&*qp.0, access)?;
        Ok(qp)
    }
}

/// The receiving half of an extended reliable connection. It has neither queues nor a protection
/// domain: it takes those of the shared queue that a request names. Its completions are that
/// queue's, and have the number of this QP. Clones are the same one.
#[derive(Clone, Debug)]
#[doc(alias("ibv_qp", "IBV_QPT_XRC_RECV"))]
pub struct XrcRecvQp(Arc<Target>);

#[derive(Debug)]
struct Target {
    arm: Arm<On<QpId>, sysverbs::XrcRecvQp>,
    qpn: Qpn,
    xrcd: Xrcd,
}

impl Drop for Target {
    fn drop(&mut self) {
        if let Arm::Soft(on) = &self.arm {
            // Fails only for a QP that does not exist.
            let _ = on.hca.destroy_qp(on.id);
        }
    }
}

impl Connect for Target {
    fn context(&self) -> &Context {
        self.xrcd.context()
    }

    fn qp_type(&self) -> QpType {
        QpType::XrcRecv
    }

    fn number(&self) -> Qpn {
        self.qpn
    }

    /// It sends no requests.
    fn psn(&self) -> Psn {
        Psn::default()
    }

    fn modify(&self, attr: &QpAttr, mask: AttrMask) -> Result<()> {
        match &self.arm {
            Arm::Soft(on) => on.hca.modify_qp(on.id, attr, mask),
            Arm::Hard(qp) => qp.modify(attr, mask).map_err(refused),
        }
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

    /// Where the QP that sends to it reaches it, at the port's
    /// [default GID](Context::default_gid).
    ///
    /// # Errors
    ///
    /// [`Kind::NotFound`](crate::Kind::NotFound) if the port has none.
    pub fn endpoint(&self) -> Result<Endpoint> {
        connect::endpoint(&*self.0)
    }

    /// Connects it to the QP that sends to it, a [`QpSpec::xrc_send`](crate::QpSpec::xrc_send), as
    /// [`ConnectOptions::default`] says. Both sides call this, in either order.
    ///
    /// # Errors
    ///
    /// [`Kind::Invalid`](crate::Kind::Invalid) if it is connected already.
    pub fn connect(&self, peer: &Endpoint) -> Result<()> {
        self.connect_with(peer, &ConnectOptions::default())
    }

    /// The same with other parameters, of which those that are about sending mean nothing here.
    ///
    /// # Errors
    ///
    /// As [`connect`](Self::connect), and for parameters that the device refuses.
    pub fn connect_with(&self, peer: &Endpoint, options: &ConnectOptions) -> Result<()> {
        connect::connect(&*self.0, peer, options)
    }

    /// Changes state or attributes, as selected by the mask.
    ///
    /// # Errors
    ///
    /// The device's.
    #[doc(alias = "ibv_modify_qp")]
    pub fn modify(&self, attr: &QpAttr, mask: AttrMask) -> Result<()> {
        Connect::modify(&*self.0, attr, mask)
    }

    /// Its state and attributes.
    ///
    /// # Errors
    ///
    /// The device's.
    #[doc(alias = "ibv_query_qp")]
    pub fn query(&self) -> Result<QpAttr> {
        match &self.0.arm {
            Arm::Soft(on) => on.alive()?.query_qp(on.id),
            Arm::Hard(qp) => qp.query().map_err(refused),
        }
    }
}
