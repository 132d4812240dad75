//! A multicast group that an identifier joined, and the QP that is attached to it.

use std::ffi::c_void;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

use iba::{Gid, QKey, Qpn};

use super::{Answer, verb};
use crate::abi::acks::Acks;
use crate::abi::mcast::{ibv_attach_mcast, ibv_detach_mcast};
use crate::abi::types::ah::AhAttr;
use crate::abi::types::device::Gid as CGid;
use crate::abi::types::qp::Qp;
use crate::abi::types::rdma::UDP_QKEY;

/// The Q_Key of every group.
pub(super) const QKEY: QKey = QKey(UDP_QKEY);

/// A group that was joined.
pub(super) struct Join {
    pub(super) acks: Acks,
    /// The program's context, which the event brings back.
    pub(super) context: *mut c_void,
    /// Where to send to reach the group.
    pub(super) address: AhAttr,
    pub(super) gid: Gid,
    /// The identifier only sends to the group.
    is_send_only: bool,
    /// The QP number that is attached, once the event was taken.
    attached: Mutex<Option<Qpn>>,
}

impl Join {
    pub(super) fn new(gid: Gid, address: AhAttr, is_send_only: bool, context: *mut c_void) -> Self {
        let acks = Acks::default();
        Self { acks, context, address, gid, is_send_only, attached: Mutex::default() }
    }

    /// Attaches a QP to the group, unless the identifier only sends to it.
    pub(super) fn attach(&self, qp: Option<&Qp>) -> Answer {
        let Some(qp) = qp.filter(|_| !self.is_send_only) else { return Ok(()) };
        let gid = CGid { raw: self.gid.0 };
        // SAFETY: contract: the QP is one of ours.
        verb(unsafe { ibv_attach_mcast((&raw const *qp).cast_mut(), &raw const gid, 0) })?;
        tracing::info!(target: "peerdma::cm", "attached to {}", self.gid.to_ip());
        *self.attached() = Some(Qpn::new(qp.qp_num));
        Ok(())
    }

    /// Detaches a QP from the group, if it is the one that was attached.
    pub(super) fn detach(&self, qp: Option<&Qp>) {
        let attached = self.attached().take();
        let Some(qp) = qp.filter(|qp| attached == Some(Qpn::new(qp.qp_num))) else { return };
        let gid = CGid { raw: self.gid.0 };
        // The program may have detached the QP itself: then this fails, and nothing is lost.
        // SAFETY: contract: the QP is one of ours.
        unsafe { ibv_detach_mcast((&raw const *qp).cast_mut(), &raw const gid, 0) };
    }

    fn attached(&self) -> MutexGuard<'_, Option<Qpn>> {
        self.attached.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Join {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.gid.fmt(f)
    }
}

// SAFETY: the context is the program's and is only handed back; the rest synchronizes itself.
unsafe impl Send for Join {}
// SAFETY: as above.
unsafe impl Sync for Join {}
