//! What the communication manager reports to its owner.

use wire::cm::{CommId, Rej, Rep, Req, Rtu, SidrRep, SidrReq};
use wire::mad;

use crate::{Ece, ListenId, Peer};

/// Something happened.
#[derive(Clone, Debug, PartialEq, Eq)]
#[doc(alias = "ib_cm_event_type")]
#[non_exhaustive]
pub enum Event {
    /// A listener got a REQ.
    Req {
        /// The listener.
        listener: ListenId,
        /// The connection created for it.
        conn: CommId,
        /// The sender.
        from: Peer,
        /// Its contents.
        req: Box<Req>,
        /// What the peer requests from an end of the same vendor.
        ece: Ece,
    },
    /// The peer accepted.
    Rep {
        /// The connection.
        conn: CommId,
        /// Its contents.
        rep: Box<Rep>,
        /// What the peer grants to an end of the same vendor.
        ece: Ece,
    },
    /// The connection is established, at the passive side. `None` if a packet came before the RTU.
    Rtu {
        /// The connection.
        conn: CommId,
        /// The contents of the RTU.
        rtu: Option<Box<Rtu>>,
    },
    /// The peer refused, or ended the attempt.
    Rej {
        /// The connection.
        conn: CommId,
        /// Its contents.
        rej: Box<Rej>,
    },
    /// The peer ends the connection.
    Dreq {
        /// The connection.
        conn: CommId,
    },
    /// The peer confirmed the end.
    Drep {
        /// The connection.
        conn: CommId,
    },
    /// A message was not answered, however often it was sent.
    NoAnswer {
        /// The connection.
        conn: CommId,
        /// Which message.
        to: Unanswered,
    },
    /// No packet of the connection can be in flight any more. The connection is gone.
    TimewaitExit {
        /// The connection.
        conn: CommId,
    },
    /// A listener got a SIDR_REQ.
    SidrReq {
        /// The listener.
        listener: ListenId,
        /// Our id for the request.
        conn: CommId,
        /// The sender.
        from: Peer,
        /// Its contents.
        req: Box<SidrReq>,
    },
    /// The answer to a SIDR_REQ of ours. The request is gone.
    SidrRep {
        /// Our id for the request.
        conn: CommId,
        /// Its contents.
        rep: Box<SidrRep>,
    },
}

/// A message that was not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "the messages that call for an answer")]
pub enum Unanswered {
    /// A request for a connection.
    Req,
    /// The answer to one.
    Rep,
    /// The end of a connection, which has ended all the same.
    Dreq,
    /// A request for a service.
    SidrReq,
}

/// A datagram to send from our QP 1 to another.
#[derive(Clone, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_structs, reason = "an owner may send one again")]
pub struct Transmit {
    /// The sender and the receiver.
    pub peer: Peer,
    /// The receiver, if several share the address and `peer` does not say which.
    pub route: Route,
    /// The connection it is about, if it is one of ours.
    pub conn: Option<CommId>,
    /// The datagram.
    pub mad: Box<[u8; mad::LEN]>,
}

/// How a message finds its receiver among those that share an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "a message names a service or a connection")]
pub enum Route {
    /// The process that listens on this service, for this address if the service is a port.
    Service(u64, Option<std::net::IpAddr>),
    /// The process that assigned this communication id.
    Comm(CommId),
    /// It names neither.
    Unknown,
}
