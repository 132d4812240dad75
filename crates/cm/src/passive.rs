//! The passive side: REQ in, REP out, RTU in (IBA 12.9.5, figures 130 and 131).

use iba::{Mtu, QpType, Time};
use wire::cm::{CommId, Rep, Req, Rtu};

use crate::active::ABOUT_REQ;
use crate::conn::{Conn, Remote, State};
use crate::event::Event;
use crate::manager::addresses;
use crate::param::{Ece, Peer, RepParam};
use crate::time::duration;
use crate::{Cm, CmError, Ignored, RejReason, fit};

/// The type of the QP that answers a REQ.
fn qp_type(req: &Req) -> Option<QpType> {
    match (req.transport_service_type, req.extended_transport_type) {
        (0, _) => Some(QpType::Rc),
        (1, _) => Some(QpType::Uc),
        (3, 1) => Some(QpType::XrcRecv),
        _ => None,
    }
}

impl Cm {
    pub(crate) fn handle_req(
        &mut self,
        now: Time,
        from: Peer,
        (tid, attr_mod): (u64, u32),
        req: Req,
    ) -> Result<(), Ignored> {
        let origin = from.origin();
        if let Some(known) = self.table.with_remote_id(origin, req.local_ca_guid, req.local_comm_id)
        {
            return self.handle_copy(from, tid, &req, known);
        }
        let refuse = |cm: &mut Self, reason: RejReason, ari: &[u8]| {
            cm.issue_rej(from, tid, (0, req.local_comm_id), ABOUT_REQ, reason, ari);
            Ok(())
        };
        let dst = match addresses(req.service_id, &req.private_data) {
            None => None,
            Some(Ok(cma)) => Some(cma.dst),
            // The kernel refuses a header that it cannot read on the consumer's behalf
            // (cma_get_net_info).
            Some(Err(_)) => return refuse(self, RejReason::CONSUMER_DEFINED, &[]),
        };
        let Some(listener) = self.listener(req.service_id, dst) else {
            return refuse(self, RejReason::INVALID_SERVICE_ID, &[]);
        };
        let Some(qp_type) = qp_type(&req) else {
            return refuse(self, RejReason::INVALID_TRANSPORT_TYPE, &[]);
        };
        let Some(mtu) = Mtu::from_code(req.path_mtu.into()) else {
            return refuse(self, RejReason::INVALID_MTU, &[]);
        };
        if req.primary_remote_gid != from.local {
            return refuse(self, RejReason::INVALID_GID, &from.local.0);
        }
        if let Some(stale) = self.table.with_remote_qpn(origin, req.local_ca_guid, req.local_qpn) {
            // IBA 12.9.8.3.1: the peer has forgotten a connection of that QP.
            let _ = refuse(self, RejReason::STALE_CONN, &[]);
            self.end_stale(now, stale);
            return Ok(());
        }
        if !self.admit(listener) {
            return Err(Ignored::Backlog("REQ"));
        }
        let mut conn = Conn::new(State::ReqRcvd, from);
        conn.waits_at = Some(listener);
        conn.remote = Remote { id: req.local_comm_id, guid: req.local_ca_guid, qpn: req.local_qpn };
        conn.tid = tid;
        conn.qp_type = qp_type;
        conn.service_id = req.service_id;
        conn.sq_psn = req.starting_psn;
        conn.initiator_depth = req.responder_resources;
        conn.responder_resources = req.initiator_depth;
        conn.retry_count = req.retry_count;
        conn.rnr_retry_count = req.rnr_retry_count;
        conn.mtu = mtu;
        conn.ack_timeout = req.primary_local_ack_timeout.max(1);
        conn.response = duration(req.local_cm_response_timeout);
        conn.max_retries = req.max_cm_retries;
        let Ok(id) = self.table.insert(conn) else {
            return refuse(self, RejReason::NO_RESOURCES, &[]);
        };
        self.table.remember_remote(id, origin);
        let ece = Ece { vendor_id: req.vendor_id, attr_mod };
        let req = Box::new(req);
        self.report(id, Event::Req { listener, conn: id, from, req, ece });
        Ok(())
    }

    /// Handles a duplicate of a REQ (IBA 12.9.8.3.2).
    fn handle_copy(
        &mut self,
        from: Peer,
        tid: u64,
        req: &Req,
        known: CommId,
    ) -> Result<(), Ignored> {
        let conn = self.table.get(known).ok_or(Ignored::NoConnection("REQ"))?;
        if !conn.is_from_peer(&from) {
            return Err(Ignored::WrongSource("REQ"));
        }
        match conn.state {
            State::MraReqSent => self.repeat_reply(known),
            State::Timewait => {
                let ids = (known, req.local_comm_id);
                self.issue_rej(from, tid, ids, ABOUT_REQ, RejReason::STALE_CONN, &[]);
            }
            state => return Err(Ignored::State("REQ", state)),
        }
        Ok(())
    }

    /// Accepts a REQ.
    ///
    /// # Errors
    /// [`CmError::State`] if there is none, or it is gone; [`CmError::TooLong`].
    #[doc(alias = "ib_send_cm_rep")]
    pub fn accept(&mut self, now: Time, id: CommId, param: &RepParam) -> Result<(), CmError> {
        let private_data = fit("private data of a REP", &param.private_data)?;
        let (ca_guid, ack_delay) = (self.local.ca_guid, self.local.ack_delay);
        let conn = self.conn_in(id, "REP", &[State::ReqRcvd, State::MraReqSent])?;
        conn.state = State::RepSent;
        conn.reply = None;
        conn.local_qpn = param.qpn;
        conn.rq_psn = param.starting_psn;
        conn.responder_resources = param.responder_resources;
        conn.initiator_depth = param.initiator_depth;
        let is_xrc = conn.qp_type == QpType::XrcRecv;
        let none = iba::Qpn::default();
        let mut rep = Rep {
            local_comm_id: id,
            remote_comm_id: conn.remote.id,
            // The number of an XRC target is in the field of the EE context.
            local_qpn: if is_xrc { none } else { param.qpn },
            local_eecn: if is_xrc { param.qpn.value() } else { 0 },
            starting_psn: param.starting_psn,
            responder_resources: param.responder_resources,
            initiator_depth: if is_xrc { 0 } else { param.initiator_depth },
            target_ack_delay: ack_delay,
            flow_control: !is_xrc && param.flow_control,
            rnr_retry_count: param.rnr_retry_count,
            srq: is_xrc || param.srq,
            local_ca_guid: ca_guid,
            private_data,
            ..Rep::default()
        };
        rep.set_vendor_id(param.ece.vendor_id);
        let route = Self::route_to(conn);
        self.taken(id);
        self.send_with_options(now, id, (param.ece.attr_mod, rep), route);
        Ok(())
    }

    pub(crate) fn handle_rtu(&mut self, from: Peer, rtu: Rtu) -> Result<(), Ignored> {
        let id = rtu.remote_comm_id;
        let conn = self.table.get_mut(id).ok_or(Ignored::NoConnection("RTU"))?;
        if !conn.is_from_peer(&from) || conn.remote.id != rtu.local_comm_id {
            return Err(Ignored::WrongSource("RTU"));
        }
        match conn.state {
            State::RepSent | State::MraRepRcvd => {}
            state => return Err(Ignored::State("RTU", state)),
        }
        conn.state = State::Established;
        self.answered(id);
        self.report(id, Event::Rtu { conn: id, rtu: Some(Box::new(rtu)) });
        Ok(())
    }

    /// Notes that a packet arrived on the QP, so the peer is ready, although its RTU has not
    /// arrived.
    ///
    /// # Errors
    /// [`CmError::State`] if no RTU is expected. A connection that is already established is no
    /// error.
    #[doc(alias = "ib_cm_notify")]
    pub fn established(&mut self, id: CommId) -> Result<(), CmError> {
        let states = [State::RepSent, State::MraRepRcvd, State::Established];
        let conn = self.conn_in(id, "COMM_EST", &states)?;
        if conn.state != State::Established {
            conn.state = State::Established;
            self.answered(id);
            self.report(id, Event::Rtu { conn: id, rtu: None });
        }
        Ok(())
    }
}
