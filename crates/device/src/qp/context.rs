//! What the device knows about a QP besides its protocol state.

use std::time::Duration;

use iba::{Av, Mtu, QpAttr, QpType, Qpn, WcFlags};
use transport::env::Side;
use transport::{Early, Time};

use crate::carrier::Route;
use crate::carrier::shm::RingPosition;
use crate::engine::early::KeptPayload;
use crate::ids::{CqId, CtxId, PdId, QpId, RwqTableId, SrqId, XrcdId};
use crate::objects::charges::Charge;
use crate::objects::comp_cntr::QpCntrs;
use crate::objects::uses::{Use, Uses};
use crate::rss::RxHash;

/// How long a packet waits for a receive before it is dropped.
const STARVED: Duration = Duration::from_millis(100);

/// The role of an entry in the table of QPs that is no QP with two queues.
#[derive(Debug)]
pub(crate) enum Role {
    /// A work queue, and its uses in indirection tables.
    Wq { uses: Uses },
    /// A QP that only spreads frames over work queues.
    Rss { table: RwqTableId, hash: RxHash },
}

/// What the engine knows about a QP besides its protocol state.
#[derive(Debug)]
pub(crate) struct QpContext {
    pub(crate) id: QpId,
    pub(crate) qpn: Qpn,
    pub(crate) qp_type: QpType,
    pub(crate) ctx: CtxId,
    /// The domain of the keys that peers name. The lists of the program's requests may have another
    /// one ([`QpContext::pd_of`]).
    pub(crate) pd: PdId,
    /// The domain of the shared queue that its receives come from.
    pub(crate) srq_pd: Option<PdId>,
    /// Whether that queue matches tags.
    pub(crate) has_tags: bool,
    pub(crate) send_cq: CqId,
    pub(crate) recv_cq: CqId,
    pub(crate) srq: Option<SrqId>,
    /// The XRC domain of an XRC_RECV QP, whose other objects are those of the last queue that a
    /// packet named.
    pub(crate) xrcd: Option<XrcdId>,
    pub(crate) cookie: u64,
    /// The counters of its operations.
    pub(crate) cntrs: QpCntrs,
    /// Contexts and cookies of further handles of an XRC_RECV QP.
    pub(crate) others: Vec<Handle>,
    /// These four follow the attributes of the QP ([`QpContext::follow`]): its environment needs
    /// them while the QP itself is borrowed.
    pub(crate) dest_qpn: Qpn,
    /// Its port, from 1; 0 before it has one.
    pub(crate) port: u8,
    pub(crate) av: Av,
    pub(crate) path_mtu: Mtu,
    pub(crate) route: Route,
    /// Its ordinal among the QPs of this NIC in this process, from 1 in the order of creation.
    pub(crate) ordinal: u64,
    /// The work request that packets are sent for.
    pub(crate) wr_id: u64,
    /// Its place from the end of the send queue, from 1.
    pub(crate) wr_behind: usize,
    /// Where in the ring to the peer the last packet ends.
    pub(crate) ring_position: RingPosition,
    /// Whether the peer had not yet taken that packet when a timer last fired.
    pub(crate) peer_is_behind: bool,
    /// Whether a receive completed that the program has not yet had the chance to answer.
    pub(crate) has_received: bool,
    /// Whether it is among the QPs that hold an acknowledgement (`engine::unasked_acks`).
    pub(crate) is_noted: bool,
    /// Why it was moved to the error state by no failure of its own, if whoever did it says so.
    pub(crate) ended: Option<&'static str>,
    /// The flags of the completions of its receives besides those of the message.
    pub(crate) recv_flags: WcFlags,
    /// The objects that it uses.
    pub(crate) _holds: Vec<Use>,
    /// Its role, if it is not a QP with two queues.
    pub(crate) role: Option<Box<Role>>,
    /// Since when packets of an unreliable QP have found no receive.
    pub(crate) starved_since: Option<Time>,
    /// Packets that overtook a lost one.
    pub(crate) early: Early<KeptPayload>,
    pub(crate) _charge: Charge,
}

/// A further handle of a QP.
#[derive(Debug)]
pub(crate) struct Handle {
    pub(crate) ctx: CtxId,
    pub(crate) cookie: u64,
    pub(crate) charge: Charge,
}

impl QpContext {
    /// The domain of the lists of a side's requests. Receives of a shared queue are in the queue's
    /// (IBA 10.2.9), and so are the READs that tag matching posts for tagged messages: a QP over
    /// such a queue has no sends of the program.
    #[inline]
    pub(crate) fn pd_of(&self, side: Side) -> PdId {
        match (side, self.srq_pd) {
            (Side::Recv, Some(pd)) => pd,
            (Side::Send, Some(pd)) if self.has_tags => pd,
            _ => self.pd,
        }
    }

    /// Copies the attributes that the environment of the QP needs. A datagram QP has no path MTU of
    /// its own: it uses that of the port.
    pub(crate) fn follow(&mut self, attr: &QpAttr, port_mtu: Mtu) {
        (self.dest_qpn, self.av, self.port) = (attr.dest_qpn, attr.av, attr.port_num);
        self.path_mtu = if self.qp_type.is_connected() { attr.path_mtu } else { port_mtu };
    }

    /// Whether it is a work queue.
    pub(crate) fn is_wq(&self) -> bool {
        matches!(self.role.as_deref(), Some(Role::Wq { .. }))
    }

    /// Whether it spreads frames over work queues.
    pub(crate) fn is_rss(&self) -> bool {
        matches!(self.role.as_deref(), Some(Role::Rss { .. }))
    }

    /// Whether a packet for the QP waits in its carrier for a receive that the program has not
    /// posted yet. The background thread empties carriers while the program is not running, and
    /// would soon use up the receives of a program that posts new ones only when it has seen others
    /// filled.
    pub(crate) fn waits_for_receive(&mut self, has_one: bool, now: Time) -> bool {
        if has_one {
            self.starved_since = None;
            return false;
        }
        let since = *self.starved_since.get_or_insert(now);
        now.since(since) < STARVED
    }
}
