//! One connection, or one request for a service.

use core::time::Duration;

use iba::{Guid, Mtu, Psn, QpType, Qpn, Time};
use wire::cm::CommId;
use wire::mad;

use crate::event::Route;
use crate::param::Origin;
use crate::{ListenId, Peer};

/// The state of a connection (IBA 12.9.5, with the kernel's names).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[doc(alias = "ib_cm_state")]
#[expect(clippy::exhaustive_enums, reason = "IBA 12.9.5 defines these")]
pub enum State {
    /// The attempt ended.
    Idle,
    /// A REQ is out.
    ReqSent,
    /// A REQ is out, and the peer reported that its answer takes longer.
    MraReqRcvd,
    /// A REQ came.
    ReqRcvd,
    /// A REQ came, and the peer was told, or will be if it repeats the REQ, that the answer takes
    /// longer.
    MraReqSent,
    /// A REP is out.
    RepSent,
    /// A REP is out, and the peer reported that its answer takes longer.
    MraRepRcvd,
    /// A REP came.
    RepRcvd,
    /// A REP came, and the peer was told that the answer takes longer.
    MraRepSent,
    /// It is established.
    Established,
    /// A DREQ is out.
    DreqSent,
    /// A DREQ came.
    DreqRcvd,
    /// It ended, and packets may still be in flight.
    Timewait,
    /// A SIDR_REQ is out.
    SidrReqSent,
    /// A SIDR_REQ came.
    SidrReqRcvd,
}

/// A message that calls for an answer.
#[derive(Debug)]
pub(crate) struct Pending {
    pub(crate) mad: Box<[u8; mad::LEN]>,
    pub(crate) route: Route,
    pub(crate) timeout: Duration,
    pub(crate) retries_left: u8,
}

/// The other end of a connection, which identifies duplicates and late messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Remote {
    /// Its id for the connection; 0 while that is not known.
    pub(crate) id: CommId,
    pub(crate) guid: Guid,
    pub(crate) qpn: Qpn,
}

#[derive(Debug)]
pub(crate) struct Conn {
    pub(crate) state: State,
    /// Whether its owner has released it: nothing is reported any more.
    pub(crate) is_orphan: bool,
    /// The listener of the request, until the owner answers or takes it.
    pub(crate) waits_at: Option<ListenId>,
    pub(crate) peer: Peer,
    pub(crate) remote: Remote,
    /// The sender under which `remote` is listed in the tables of remote ids, QPs and requests, if
    /// it is.
    pub(crate) known_by_id: Option<Origin>,
    pub(crate) known_by_qpn: Option<Origin>,
    pub(crate) known_by_request: Option<Origin>,
    pub(crate) tid: u64,
    pub(crate) qp_type: QpType,
    pub(crate) service_id: u64,
    pub(crate) local_qpn: Qpn,
    pub(crate) rq_psn: Psn,
    pub(crate) sq_psn: Psn,
    pub(crate) responder_resources: u8,
    pub(crate) initiator_depth: u8,
    pub(crate) retry_count: u8,
    pub(crate) rnr_retry_count: u8,
    pub(crate) mtu: Mtu,
    /// The ACK timeout of the QP.
    pub(crate) ack_timeout: u8,
    /// How long the peer's communication manager may take, and how often a message is sent.
    pub(crate) response: Duration,
    pub(crate) max_retries: u8,
    pub(crate) pending: Option<Pending>,
    /// The last message sent, which is repeated when the message that it answers comes again: MRA,
    /// RTU or DREP.
    pub(crate) reply: Option<Box<[u8; mad::LEN]>>,
    pub(crate) deadline: Option<Time>,
}

impl Conn {
    pub(crate) fn new(state: State, peer: Peer) -> Self {
        Self {
            state,
            is_orphan: false,
            waits_at: None,
            peer,
            remote: Remote::default(),
            known_by_id: None,
            known_by_qpn: None,
            known_by_request: None,
            tid: 0,
            qp_type: QpType::Ud,
            service_id: 0,
            local_qpn: Qpn::default(),
            rq_psn: Psn::new(0),
            sq_psn: Psn::new(0),
            responder_resources: 0,
            initiator_depth: 0,
            retry_count: 0,
            rnr_retry_count: 0,
            mtu: Mtu::Mtu1024,
            ack_timeout: 0,
            response: Duration::ZERO,
            max_retries: 0,
            pending: None,
            reply: None,
            deadline: None,
        }
    }

    /// Whether a message may be about this connection, judging by its sender.
    pub(crate) fn is_from_peer(&self, from: &Peer) -> bool {
        from.remote == self.peer.remote && (self.peer.via.is_none() || self.peer.via == from.via)
    }
}

/// The attributes of the QP of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct QpInfo {
    /// The state of the connection.
    pub state: State,
    /// Its service.
    pub qp_type: QpType,
    /// The two ends.
    pub peer: Peer,
    /// The peer's QP; 0 until it is known.
    pub remote_qpn: Qpn,
    /// The first PSN to expect.
    pub rq_psn: Psn,
    /// The first PSN to send.
    pub sq_psn: Psn,
    /// READs and atomics to accept at once.
    pub responder_resources: u8,
    /// READs and atomics to have outstanding at once.
    pub initiator_depth: u8,
    /// Transport retries.
    pub retry_count: u8,
    /// RNR retries.
    pub rnr_retry_count: u8,
    /// The path MTU.
    pub mtu: Mtu,
    /// The ACK timeout, as a code.
    pub ack_timeout: u8,
}
