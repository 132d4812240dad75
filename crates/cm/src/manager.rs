//! The communication manager: listeners, connections, input and output.

use std::collections::{BTreeMap, VecDeque};
use std::net::IpAddr;

use iba::Time;
use wire::cm::{CmaHeader, CommId, Mad, Message, Rej, SidrRep};

use crate::conn::{Conn, Pending, QpInfo, State};
use crate::event::{Event, Route, Transmit, Unanswered};
use crate::listen_id::ListenId;
use crate::param::{Local, Peer};
use crate::table::Table;
use crate::{CmError, Ignored, PortSpace, RejReason, SidrStatus};

/// The addresses for which a listener on a port takes requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(clippy::exhaustive_enums, reason = "the kinds of address that a program binds")]
pub enum ListenAddr {
    /// For all addresses, and for services that are not ports.
    Any,
    /// For those of IPv4.
    AnyV4,
    /// For those of IPv6.
    AnyV6,
    /// For this one.
    Ip(IpAddr),
}

impl ListenAddr {
    fn takes(self, dst: Option<IpAddr>) -> bool {
        match (self, dst) {
            (Self::Any, _) => true,
            (Self::AnyV4, Some(ip)) => ip.is_ipv4(),
            (Self::AnyV6, Some(ip)) => ip.is_ipv6(),
            (Self::Ip(own), Some(ip)) => own == ip,
            (_, None) => false,
        }
    }

    /// Whether two listeners would take the same request.
    fn overlaps(self, other: Self) -> bool {
        match (self, other) {
            (Self::Any, _) | (_, Self::Any) => true,
            // A listener on one address takes precedence over those on all addresses.
            (a, b) => a == b,
        }
    }

    /// The more exact mask takes precedence.
    fn rank(self) -> u8 {
        match self {
            Self::Ip(_) => 0,
            Self::AnyV4 | Self::AnyV6 => 1,
            Self::Any => 2,
        }
    }
}

#[derive(Debug)]
pub(crate) struct Listener {
    service_id: u64,
    mask: u64,
    addr: ListenAddr,
    backlog: u32,
    /// The number of requests that wait for the owner.
    pub(crate) waiting: u32,
}

/// The most requests that wait for their owners or for their peers, over all listeners: beyond
/// that, a flood of requests is dropped and costs nothing.
const MAX_HALF_OPEN: u32 = 4096;
/// The most connections without an owner that proceed to their end.
const MAX_ORPHANS: usize = 16384;

/// The communication manager of one channel adapter. The owner must take events and messages after
/// each call.
#[derive(Debug)]
pub struct Cm {
    pub(crate) local: Local,
    pub(crate) table: Table,
    pub(crate) listeners: BTreeMap<ListenId, Listener>,
    next_listener: u32,
    /// Connections of a REQ or SIDR_REQ that nobody has answered or taken.
    half_open: u32,
    orphans: usize,
    events: VecDeque<Event>,
    out: VecDeque<Transmit>,
}

impl Cm {
    /// A communication manager without connections.
    pub fn new(local: Local) -> Self {
        Self {
            table: Table::new(&local),
            local,
            listeners: BTreeMap::new(),
            next_listener: 0,
            half_open: 0,
            orphans: 0,
            events: VecDeque::new(),
            out: VecDeque::new(),
        }
    }

    /// Takes requests for services: those that agree with `service_id` in the bits of `mask`, and
    /// with `addr` if they name an address. At most `backlog` wait for [`Cm::taken`]; further ones
    /// are ignored, so that the peer retries.
    ///
    /// # Errors
    /// [`CmError::ServiceInUse`] if another listener takes any of them.
    #[doc(alias = "ib_cm_listen")]
    pub fn listen(
        &mut self,
        service_id: u64,
        mask: u64,
        addr: ListenAddr,
        backlog: u32,
    ) -> Result<ListenId, CmError> {
        let overlaps = |other: &Listener| {
            (service_id ^ other.service_id) & mask & other.mask == 0 && addr.overlaps(other.addr)
        };
        if self.listeners.values().any(overlaps) {
            return Err(CmError::ServiceInUse(service_id));
        }
        let id = ListenId(self.next_listener);
        self.next_listener = self.next_listener.wrapping_add(1);
        self.listeners.insert(id, Listener { service_id, mask, addr, backlog, waiting: 0 });
        Ok(id)
    }

    /// Stops taking requests. Those that have arrived stay.
    pub fn unlisten(&mut self, listener: ListenId) {
        self.listeners.remove(&listener);
    }

    /// The listener for a service and, if that is a port, an address.
    pub fn listener(&self, service_id: u64, dst: Option<IpAddr>) -> Option<ListenId> {
        let takes = |listener: &Listener| {
            (service_id ^ listener.service_id) & listener.mask == 0 && listener.addr.takes(dst)
        };
        let takers = self.listeners.iter().filter(|(_, listener)| takes(listener));
        takers.min_by_key(|(_, listener)| listener.addr.rank()).map(|(id, _)| *id)
    }

    /// Whether a request for this service would find a listener here.
    pub fn has_listener(&self, service_id: u64, dst: Option<IpAddr>) -> bool {
        self.listener(service_id, dst).is_some()
    }

    /// Whether a listener takes another request now. One that is gone refuses it at once.
    pub fn has_room(&self, listener: ListenId) -> bool {
        let has_room = |of: &Listener| of.waiting < of.backlog && self.half_open < MAX_HALF_OPEN;
        self.listeners.get(&listener).is_none_or(has_room)
    }

    /// The owner has taken a request: it no longer counts towards its listener's backlog.
    pub fn taken(&mut self, conn: CommId) {
        let Some(listener) = self.table.get_mut(conn).and_then(|conn| conn.waits_at.take()) else {
            return;
        };
        self.half_open = self.half_open.saturating_sub(1);
        if let Some(listener) = self.listeners.get_mut(&listener) {
            listener.waiting = listener.waiting.saturating_sub(1);
        }
    }

    /// Lets a request wait for its owner, if there is room.
    pub(crate) fn admit(&mut self, listener: ListenId) -> bool {
        if !self.has_room(listener) {
            return false;
        }
        let Some(found) = self.listeners.get_mut(&listener) else { return false };
        found.waiting += 1;
        self.half_open += 1;
        true
    }

    /// Handles a datagram.
    ///
    /// # Errors
    /// Why it was ignored. The owner is not at fault: it may be a duplicate, late or forged.
    pub fn handle(&mut self, now: Time, from: Peer, bytes: &[u8]) -> Result<(), Ignored> {
        let Mad { tid, attr_mod, message } = Mad::parse(bytes)?;
        match message {
            Message::Req(req) => self.handle_req(now, from, (tid, attr_mod), req),
            Message::Mra(mra) => self.handle_mra(now, from, &mra),
            Message::Rej(rej) => self.handle_rej(now, from, rej),
            Message::Rep(rep) => self.handle_rep(now, from, (tid, attr_mod), rep),
            Message::Rtu(rtu) => self.handle_rtu(from, rtu),
            Message::Dreq(dreq) => self.handle_dreq(now, from, tid, &dreq),
            Message::Drep(drep) => self.handle_drep(now, from, &drep),
            Message::SidrReq(req) => self.handle_sidr_req(from, tid, req),
            Message::SidrRep(rep) => self.handle_sidr_rep(from, rep),
            // The kernel does not answer these over RoCE, either.
            Message::Lap(_) | Message::Apr(_) => Err(Ignored::NotSupported(message.name())),
        }
    }

    /// When to call [`Cm::handle_timeout`] next.
    pub fn poll_timeout(&self) -> Option<Time> {
        self.table.first_deadline().map(|(at, _)| at)
    }

    /// Repeats unanswered messages, and gives up those that were sent often enough.
    pub fn handle_timeout(&mut self, now: Time) {
        while let Some((at, id)) = self.table.first_deadline()
            && at <= now
        {
            self.table.set_deadline(id, None);
            self.overdue(now, id);
        }
    }

    fn overdue(&mut self, now: Time, id: CommId) {
        let Some(conn) = self.table.get_mut(id) else { return };
        if conn.state == State::Timewait {
            self.finish(id);
            return;
        }
        let Some(pending) = &mut conn.pending else { return };
        if pending.retries_left > 0 {
            pending.retries_left -= 1;
            // An MRA made this one wait longer, not those after it.
            let timeout = std::mem::replace(&mut pending.timeout, conn.response);
            let (mad, route, peer) = (pending.mad.clone(), pending.route, conn.peer);
            self.send(peer, route, Some(id), mad);
            self.table.set_deadline(id, Some(now + timeout));
            return;
        }
        conn.pending = None;
        let to = match conn.state {
            State::ReqSent | State::MraReqRcvd => Unanswered::Req,
            State::RepSent | State::MraRepRcvd => Unanswered::Rep,
            State::SidrReqSent => Unanswered::SidrReq,
            _ => Unanswered::Dreq,
        };
        self.report(id, Event::NoAnswer { conn: id, to });
        if to == Unanswered::Dreq {
            self.enter_timewait(now, id);
        } else {
            self.reset(id);
        }
    }

    /// Takes the oldest event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Takes the oldest message to send.
    pub fn poll_transmit(&mut self) -> Option<Transmit> {
        self.out.pop_front()
    }

    /// Notes that a message of ours went to this process of the peer's host: later ones go there as
    /// well.
    pub fn set_via(&mut self, conn: CommId, via: u16) {
        if let Some(conn) = self.table.get_mut(conn) {
            conn.peer.via.get_or_insert(via);
        }
    }

    /// The attributes of the QP of a connection.
    pub fn qp_info(&self, conn: CommId) -> Result<QpInfo, CmError> {
        let conn = self.conn(conn)?;
        Ok(QpInfo {
            state: conn.state,
            qp_type: conn.qp_type,
            peer: conn.peer,
            remote_qpn: conn.remote.qpn,
            rq_psn: conn.rq_psn,
            sq_psn: conn.sq_psn,
            responder_resources: conn.responder_resources,
            initiator_depth: conn.initiator_depth,
            retry_count: conn.retry_count,
            rnr_retry_count: conn.rnr_retry_count,
            mtu: conn.mtu,
            ack_timeout: conn.ack_timeout,
        })
    }

    /// The state of a connection.
    pub fn state(&self, conn: CommId) -> Option<State> {
        self.table.get(conn).map(|conn| conn.state)
    }

    /// How many connections and requests there are, including those that no longer have an owner.
    pub fn len(&self) -> usize {
        self.table.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub(crate) fn conn(&self, id: CommId) -> Result<&Conn, CmError> {
        self.table.get(id).filter(|conn| !conn.is_orphan).ok_or(CmError::NoSuchConnection(id))
    }

    /// The connection if it is in one of `states`.
    pub(crate) fn conn_in(
        &mut self,
        id: CommId,
        call: &'static str,
        states: &[State],
    ) -> Result<&mut Conn, CmError> {
        let conn = self.table.get_mut(id).filter(|conn| !conn.is_orphan);
        let conn = conn.ok_or(CmError::NoSuchConnection(id))?;
        if states.contains(&conn.state) {
            Ok(conn)
        } else {
            Err(CmError::State { call, state: conn.state })
        }
    }

    /// Reports to the owner, if there is one.
    pub(crate) fn report(&mut self, id: CommId, event: Event) {
        if self.table.get(id).is_some_and(|conn| !conn.is_orphan) {
            self.events.push_back(event);
        }
    }

    pub(crate) fn send(
        &mut self,
        peer: Peer,
        route: Route,
        conn: Option<CommId>,
        mad: Box<[u8; wire::mad::LEN]>,
    ) {
        self.out.push_back(Transmit { peer, route, conn, mad });
    }

    /// Sends a message of a connection once.
    pub(crate) fn send_once(&mut self, id: CommId, message: impl Into<Message>) {
        let Some(conn) = self.table.get(id) else { return };
        let (peer, route) = (conn.peer, Self::route_to(conn));
        let mad = Box::new(Mad::new(conn.tid, message).to_bytes());
        self.send(peer, route, Some(id), mad);
    }

    /// Sends a message of a connection until it is answered.
    pub(crate) fn send_until_answered(
        &mut self,
        now: Time,
        id: CommId,
        message: impl Into<Message>,
        route: Route,
    ) {
        self.send_with_options(now, id, (0, message), route);
    }

    /// The same for a message with options of a vendor.
    pub(crate) fn send_with_options(
        &mut self,
        now: Time,
        id: CommId,
        (attr_mod, message): (u32, impl Into<Message>),
        route: Route,
    ) {
        let Some(conn) = self.table.get_mut(id) else { return };
        let mad = Box::new(Mad { tid: conn.tid, attr_mod, message: message.into() }.to_bytes());
        let (peer, timeout) = (conn.peer, conn.response);
        conn.pending =
            Some(Pending { mad: mad.clone(), route, timeout, retries_left: conn.max_retries });
        self.send(peer, route, Some(id), mad);
        self.table.set_deadline(id, Some(now + timeout));
    }

    /// Sends a message of a connection, and repeats it whenever the one that it answers comes
    /// again.
    pub(crate) fn send_reply(&mut self, id: CommId, message: impl Into<Message>) {
        self.keep_reply(id, message);
        self.repeat_reply(id);
    }

    /// Keeps a message for when the one that it answers comes again.
    pub(crate) fn keep_reply(&mut self, id: CommId, message: impl Into<Message>) {
        let Some(conn) = self.table.get_mut(id) else { return };
        conn.reply = Some(Box::new(Mad::new(conn.tid, message).to_bytes()));
    }

    pub(crate) fn repeat_reply(&mut self, id: CommId) {
        let Some(conn) = self.table.get(id) else { return };
        if let Some(mad) = conn.reply.clone() {
            let (peer, route) = (conn.peer, Self::route_to(conn));
            self.send(peer, route, Some(id), mad);
        }
    }

    pub(crate) fn route_to(conn: &Conn) -> Route {
        if conn.remote.id == 0 { Route::Unknown } else { Route::Comm(conn.remote.id) }
    }

    /// Notes that the last message was answered.
    pub(crate) fn answered(&mut self, id: CommId) {
        if let Some(conn) = self.table.get_mut(id) {
            conn.pending = None;
        }
        self.table.set_deadline(id, None);
    }

    /// Ends an attempt that left nothing in flight.
    pub(crate) fn reset(&mut self, id: CommId) {
        self.answered(id);
        self.taken(id);
        self.table.forget_remote(id);
        let Some(conn) = self.table.get_mut(id) else { return };
        conn.state = State::Idle;
        if conn.is_orphan {
            self.finish(id);
        }
    }

    /// Ends a connection whose packets may be in flight. Its peer may reuse its QP, but not its id.
    pub(crate) fn enter_timewait(&mut self, now: Time, id: CommId) {
        self.answered(id);
        self.taken(id);
        self.table.forget_remote_qpn(id);
        let Some(conn) = self.table.get_mut(id) else { return };
        conn.state = State::Timewait;
        let wait = crate::time::duration(conn.ack_timeout);
        self.table.set_deadline(id, Some(now + wait));
    }

    /// Removes a connection.
    fn finish(&mut self, id: CommId) {
        self.report(id, Event::TimewaitExit { conn: id });
        if self.table.get(id).is_some_and(|conn| conn.is_orphan) {
            self.orphans -= 1;
        }
        self.taken(id);
        self.table.remove(id);
    }

    /// Releases a connection: nothing more is reported. An attempt is refused; a connection is
    /// ended by the protocol, which proceeds without the owner.
    #[doc(alias = "ib_destroy_cm_id")]
    pub fn destroy(&mut self, now: Time, id: CommId) {
        use crate::RejReason as R;
        let Some(conn) = self.table.get(id).filter(|conn| !conn.is_orphan) else { return };
        // Errors come from states in which there is nothing to send.
        let _ = match conn.state {
            State::ReqSent | State::MraReqRcvd => {
                let guid = self.local.ca_guid.0.to_be_bytes();
                self.reject(now, id, R::TIMEOUT, &guid, &[])
            }
            State::ReqRcvd
            | State::MraReqSent
            | State::RepSent
            | State::MraRepRcvd
            | State::RepRcvd
            | State::MraRepSent => self.reject(now, id, R::CONSUMER_DEFINED, &[], &[]),
            State::Established => self.disconnect(now, id, &[]),
            State::DreqRcvd => self.confirm_disconnect(now, id, &[]),
            State::SidrReqRcvd => self.refuse_sidr(id, SidrStatus::REJECT),
            State::Idle | State::DreqSent | State::Timewait | State::SidrReqSent => Ok(()),
        };
        self.taken(id);
        let Some(conn) = self.table.get_mut(id) else { return };
        conn.is_orphan = true;
        self.orphans += 1;
        let goes_on = matches!(conn.state, State::DreqSent | State::Timewait);
        if !goes_on || self.orphans > MAX_ORPHANS {
            self.finish(id);
        }
    }

    /// The process that we thought was the peer's is gone: the next message finds the right one.
    pub fn forget_via(&mut self, conn: CommId) {
        if let Some(conn) = self.table.get_mut(conn) {
            conn.peer.via = None;
        }
    }

    /// Ends all connections and requests of a peer's process that is gone, as if it had
    /// disconnected and refused them, as the kernel does for a process that ends.
    pub fn peer_gone(&mut self, now: Time, remote: iba::Gid, via: u16) {
        let is_its = |conn: &Conn| conn.peer.remote == remote && conn.peer.via == Some(via);
        let mut theirs: Vec<_> =
            self.table.iter().filter(|(_, conn)| is_its(conn)).map(|(id, _)| id).collect();
        theirs.sort_unstable();
        for id in theirs {
            let Some(conn) = self.table.get_mut(id) else { continue };
            let refused = || {
                let reason = RejReason::CONSUMER_DEFINED.0;
                Event::Rej {
                    conn: id,
                    rej: Box::new(Rej { remote_comm_id: id, reason, ..Rej::default() }),
                }
            };
            match conn.state {
                State::ReqSent
                | State::MraReqRcvd
                | State::RepSent
                | State::MraRepRcvd
                | State::ReqRcvd
                | State::MraReqSent => {
                    self.report(id, refused());
                    self.reset(id);
                }
                State::RepRcvd | State::MraRepSent => {
                    self.report(id, refused());
                    self.enter_timewait(now, id);
                }
                State::SidrReqSent => {
                    let status = SidrStatus::REJECT.0;
                    let rep = SidrRep { request_id: id, status, ..SidrRep::default() };
                    self.report(id, Event::SidrRep { conn: id, rep: Box::new(rep) });
                    self.reset(id);
                }
                State::DreqSent => {
                    self.report(id, Event::Drep { conn: id });
                    self.enter_timewait(now, id);
                }
                State::Established => {
                    conn.state = State::DreqRcvd;
                    self.report(id, Event::Dreq { conn: id });
                }
                State::Idle | State::DreqRcvd | State::Timewait | State::SidrReqRcvd => {}
            }
        }
    }
}

/// The addresses that a request to a port begins with: `None` for services that are not ports.
pub(crate) fn addresses(
    service_id: u64,
    private_data: &[u8],
) -> Option<Result<CmaHeader, wire::cm::CmaError>> {
    PortSpace::of_service(service_id)?;
    private_data.first_chunk().map(CmaHeader::parse)
}
