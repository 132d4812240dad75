//! The active side: REQ out, REP in, RTU out (IBA 12.9.5, figures 128 and 129).

use iba::{QpType, Time};
use wire::cm::{CommId, Mra, Rep, Req, Rtu};

use crate::conn::{Conn, Remote, State};
use crate::event::{Event, Route};
use crate::manager::addresses;
use crate::param::{Ece, Peer, ReqParam};
use crate::time::{ack_timeout, duration};
use crate::{Cm, CmError, Ignored, RejReason, fit};

/// The LID of ports that are reached through routing (`IB_LID_PERMISSIVE`).
const LID_PERMISSIVE: u16 = 0xffff;
/// A vendor's id has 24 bits.
const VENDOR_MASK: u32 = 0xff_ffff;
/// Codes for the message that an MRA or a REJ is about.
pub(crate) const ABOUT_REQ: u8 = 0;
pub(crate) const ABOUT_REP: u8 = 1;
pub(crate) const ABOUT_OTHER: u8 = 2;

impl Cm {
    /// Requests a connection.
    ///
    /// # Errors
    /// [`CmError::QpType`], [`CmError::TooLong`] and [`CmError::NoIds`].
    #[doc(alias = "ib_send_cm_req")]
    pub fn connect(&mut self, now: Time, param: &ReqParam) -> Result<CommId, CmError> {
        let (service, extended) = match param.qp_type {
            QpType::Rc => (0, 0),
            QpType::Uc => (1, 0),
            QpType::XrcSend => (3, 1),
            other => return Err(CmError::QpType(other)),
        };
        let private_data = fit("private data of a REQ", &param.private_data)?;
        let dst =
            addresses(param.service_id, &private_data).and_then(Result::ok).map(|cma| cma.dst);
        let path = &param.path;
        let mut conn = Conn::new(State::ReqSent, param.peer);
        conn.qp_type = param.qp_type;
        conn.service_id = param.service_id;
        conn.local_qpn = param.qpn;
        conn.rq_psn = param.starting_psn;
        conn.responder_resources = param.responder_resources;
        conn.initiator_depth = param.initiator_depth;
        conn.retry_count = param.retry_count & 7;
        conn.mtu = path.mtu;
        conn.ack_timeout = path.packet_life_time.saturating_add(1).min(31);
        conn.response =
            2 * duration(path.packet_life_time) + duration(param.patience.response_timeout);
        conn.max_retries = param.patience.max_retries & 15;
        let id = self.table.insert(conn)?;
        self.set_tid(id);
        let is_xrc = param.qp_type == QpType::XrcSend;
        let req = Req {
            local_comm_id: id,
            vendor_id: param.ece.vendor_id & VENDOR_MASK,
            service_id: param.service_id,
            local_ca_guid: self.local.ca_guid,
            local_qpn: param.qpn,
            responder_resources: if is_xrc { 0 } else { param.responder_resources },
            initiator_depth: param.initiator_depth,
            remote_cm_response_timeout: param.patience.response_timeout,
            transport_service_type: service,
            flow_control: param.flow_control,
            starting_psn: param.starting_psn,
            local_cm_response_timeout: param.patience.response_timeout,
            retry_count: if is_xrc { 0 } else { param.retry_count },
            pkey: self.local.pkey,
            path_mtu: path.mtu as u8,
            rnr_retry_count: if is_xrc { 0 } else { param.rnr_retry_count },
            max_cm_retries: param.patience.max_retries,
            srq: !is_xrc && param.srq,
            extended_transport_type: extended,
            primary_local_lid: LID_PERMISSIVE,
            primary_remote_lid: LID_PERMISSIVE,
            primary_local_gid: param.peer.local,
            primary_remote_gid: param.peer.remote,
            primary_flow_label: path.flow_label,
            primary_traffic_class: path.traffic_class,
            primary_hop_limit: path.hop_limit,
            primary_local_ack_timeout: ack_timeout(self.local.ack_delay, path.packet_life_time),
            private_data,
            ..Req::default()
        };
        let route = Route::Service(param.service_id, dst);
        self.send_with_options(now, id, (param.ece.attr_mod, req), route);
        Ok(id)
    }

    /// Sets the transaction of a connection that begins here.
    pub(crate) fn set_tid(&mut self, id: CommId) {
        let high = u64::from(self.local.start) << 32;
        if let Some(conn) = self.table.get_mut(id) {
            conn.tid = high | u64::from(id);
        }
    }

    pub(crate) fn handle_rep(
        &mut self,
        now: Time,
        from: Peer,
        (tid, attr_mod): (u64, u32),
        rep: Rep,
    ) -> Result<(), Ignored> {
        let id = rep.remote_comm_id;
        let conn = self.table.get_mut(id).ok_or(Ignored::NoConnection("REP"))?;
        if !conn.is_from_peer(&from) {
            return Err(Ignored::WrongSource("REP"));
        }
        match conn.state {
            State::ReqSent | State::MraReqRcvd => {}
            // The RTU, or the MRA, was lost.
            State::Established | State::MraRepSent if conn.remote.id == rep.local_comm_id => {
                self.repeat_reply(id);
                return Ok(());
            }
            state => return Err(Ignored::State("REP", state)),
        }
        let origin = from.origin();
        let is_xrc = conn.qp_type == QpType::XrcSend;
        let qpn = if is_xrc { iba::Qpn::new(rep.local_eecn) } else { rep.local_qpn };
        if self.table.with_remote_id(origin, rep.local_ca_guid, rep.local_comm_id).is_some() {
            return Err(Ignored::State("REP", State::RepRcvd));
        }
        if let Some(stale) = self.table.with_remote_qpn(origin, rep.local_ca_guid, qpn) {
            // The peer's QP was in a connection that the peer has forgotten (IBA 12.9.8.3.1).
            self.issue_rej(
                from,
                tid,
                (id, rep.local_comm_id),
                ABOUT_REP,
                RejReason::STALE_CONN,
                &[],
            );
            self.end_stale(now, stale);
            return Ok(());
        }
        let conn = self.table.get_mut(id).ok_or(Ignored::NoConnection("REP"))?;
        conn.state = State::RepRcvd;
        conn.remote = Remote { id: rep.local_comm_id, guid: rep.local_ca_guid, qpn };
        conn.peer.via = conn.peer.via.or(from.via);
        // We may have as many outstanding as the peer accepts, and vice versa.
        conn.initiator_depth = rep.responder_resources;
        conn.responder_resources = rep.initiator_depth;
        conn.sq_psn = rep.starting_psn;
        conn.rnr_retry_count = rep.rnr_retry_count;
        conn.ack_timeout = ack_timeout(rep.target_ack_delay, conn.ack_timeout.saturating_sub(1));
        self.answered(id);
        self.table.remember_remote(id, origin);
        let ece = Ece { vendor_id: rep.vendor_id(), attr_mod };
        self.report(id, Event::Rep { conn: id, rep: Box::new(rep), ece });
        Ok(())
    }

    /// Confirms a REP: the QP is ready.
    ///
    /// # Errors
    /// [`CmError::State`] if there is no REP to confirm, [`CmError::TooLong`].
    #[doc(alias = "ib_send_cm_rtu")]
    pub fn ready(&mut self, id: CommId, private_data: &[u8]) -> Result<(), CmError> {
        let private_data = fit("private data of an RTU", private_data)?;
        let conn = self.conn_in(id, "RTU", &[State::RepRcvd, State::MraRepSent])?;
        conn.state = State::Established;
        let rtu = Rtu { local_comm_id: id, remote_comm_id: conn.remote.id, private_data };
        self.send_reply(id, rtu);
        Ok(())
    }

    /// Tells the peer that an answer takes `4.096 us * 2^service_timeout` longer: at once, or if
    /// `when_asked`, when the peer repeats its message.
    ///
    /// # Errors
    /// [`CmError::State`] if nothing waits for an answer.
    #[doc(alias = "ib_send_cm_mra")]
    pub fn delay(
        &mut self,
        id: CommId,
        service_timeout: u8,
        when_asked: bool,
    ) -> Result<(), CmError> {
        let waiting = [State::ReqRcvd, State::MraReqSent, State::RepRcvd, State::MraRepSent];
        let conn = self.conn_in(id, "MRA", &waiting)?;
        let (state, message) = match conn.state {
            State::ReqRcvd | State::MraReqSent => (State::MraReqSent, ABOUT_REQ),
            _ => (State::MraRepSent, ABOUT_REP),
        };
        conn.state = state;
        let mra = Mra {
            local_comm_id: id,
            remote_comm_id: conn.remote.id,
            message,
            service_timeout: service_timeout & 31,
            ..Mra::default()
        };
        self.keep_reply(id, mra);
        if !when_asked {
            self.repeat_reply(id);
        }
        Ok(())
    }

    pub(crate) fn handle_mra(&mut self, now: Time, from: Peer, mra: &Mra) -> Result<(), Ignored> {
        let id = mra.remote_comm_id;
        let conn = self.table.get_mut(id).ok_or(Ignored::NoConnection("MRA"))?;
        if !conn.is_from_peer(&from) {
            return Err(Ignored::WrongSource("MRA"));
        }
        conn.state = match (conn.state, mra.message) {
            (State::ReqSent | State::MraReqRcvd, ABOUT_REQ) => State::MraReqRcvd,
            (State::RepSent | State::MraRepRcvd, ABOUT_REP) => State::MraRepRcvd,
            (state, _) => return Err(Ignored::State("MRA", state)),
        };
        let wait = duration(mra.service_timeout) + duration(conn.ack_timeout);
        self.table.set_deadline(id, Some(now + wait));
        Ok(())
    }
}
