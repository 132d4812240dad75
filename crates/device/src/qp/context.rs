//! What the device knows of a QP beside its protocol state.

use std::time::Duration;

use iba::{Av, Mtu, QpAttr, QpType, Qpn, WcFlags};
use transport::Time;
use transport::env::Side;

use crate::carrier::Route;
use crate::carrier::shm::RingPosition;
use crate::ids::{CqId, CtxId, PdId, QpId, RwqTableId, SrqId, XrcdId};
use crate::objects::comp_cntr::QpCntrs;
use crate::objects::uses::{Use, Uses};
use crate::rss::RxHash;

/// How long a packet waits for a receive before it is dropped.
const STARVED: Duration = Duration::from_millis(100);

/// What an entry of the table of QPs is, if it is no QP with two queues.
#[derive(Debug)]
pub(crate) enum Role {
    /// A work queue, and the places it has in indirection tables.
    Wq { uses: Uses },
    /// A QP that only spreads frames over work queues.
    Rss { table: RwqTableId, hash: RxHash },
}

/// What the engine knows of a QP beside its protocol state.
#[derive(Debug)]
pub(crate) struct QpContext {
    pub(crate) id: QpId,
    pub(crate) qpn: Qpn,
    pub(crate) qp_type: QpType,
    pub(crate) ctx: CtxId,
    /// The domain of what peers name. The lists of the program's requests have one of their own
    /// ([`QpContext::pd_of`]).
    pub(crate) pd: PdId,
    /// That of a shared queue which its receives are taken from.
    pub(crate) srq_pd: Option<PdId>,
    /// Whether that queue matches tags.
    pub(crate) has_tags: bool,
    pub(crate) send_cq: CqId,
    pub(crate) recv_cq: CqId,
    pub(crate) srq: Option<SrqId>,
    /// The domain of a receiving QP of XRC, whose other objects are those of the queue last named.
    pub(crate) xrcd: Option<XrcdId>,
    pub(crate) cookie: u64,
    /// Who counts its operations.
    pub(crate) cntrs: QpCntrs,
    /// Contexts and cookies of further handles of a receiving QP of XRC.
    pub(crate) others: Vec<(CtxId, u64)>,
    /// These three follow the attributes of the QP ([`QpContext::follow`]): its environment needs
    /// them while the QP itself is borrowed.
    pub(crate) dest_qpn: Qpn,
    pub(crate) av: Av,
    pub(crate) path_mtu: Mtu,
    pub(crate) route: Route,
    /// Which QP of this NIC in this process it is, from 1 in the order of creation.
    pub(crate) ordinal: u64,
    /// The work request that packets are sent for.
    pub(crate) wr_id: u64,
    /// Where in the ring to the peer the last packet ends.
    pub(crate) ring_position: RingPosition,
    /// Whether the peer had yet to take that packet when a timer last fired.
    pub(crate) peer_is_behind: bool,
    /// Whether a receive completed that the program was not yet given the chance to answer.
    pub(crate) has_received: bool,
    /// What the completions of its receives say beside what the message says.
    pub(crate) recv_flags: WcFlags,
    /// The objects that it uses.
    pub(crate) _holds: Vec<Use>,
    /// What it is if not a QP with two queues.
    pub(crate) role: Option<Box<Role>>,
    /// Since when packets have met no receive, of an unreliable QP.
    pub(crate) starved_since: Option<Time>,
}

impl QpContext {
    /// The domain of the lists of a side's requests. Receives of a shared queue are in the queue's
    /// (IBA 10.2.9), and so are the READs that it makes of tagged messages: a QP over such a queue
    /// has no sends of the program.
    #[inline]
    pub(crate) fn pd_of(&self, side: Side) -> PdId {
        match (side, self.srq_pd) {
            (Side::Recv, Some(pd)) => pd,
            (Side::Send, Some(pd)) if self.has_tags => pd,
            _ => self.pd,
        }
    }

    /// Takes over what the environment of the QP needs to know of its attributes. A datagram QP has
    /// no path MTU of its own: it is that of the port.
    pub(crate) fn follow(&mut self, attr: &QpAttr, port_mtu: Mtu) {
        (self.dest_qpn, self.av) = (attr.dest_qpn, attr.av);
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

    /// Whether a packet for the QP waits in its carrier for a receive that the program has yet to
    /// post. The background thread empties carriers while the program is not running, and would
    /// soon use up the receives of a program that posts new ones for those it saw filled.
    pub(crate) fn waits_for_receive(&mut self, has_one: bool, now: Time) -> bool {
        if has_one {
            self.starved_since = None;
            return false;
        }
        let since = *self.starved_since.get_or_insert(now);
        now.since(since) < STARVED
    }
}
