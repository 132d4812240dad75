//! Resolution of a service to a QP, for datagrams: SIDR_REQ and SIDR_REP (IBA 12.11).

use iba::Time;
use wire::cm::{CommId, Mad, SidrRep, SidrReq};

use crate::conn::{Conn, Remote, State};
use crate::event::{Event, Route};
use crate::manager::addresses;
use crate::param::{Peer, SidrRepParam, SidrReqParam};
use crate::time::duration;
use crate::{Cm, CmError, Ignored, SidrStatus, fit};

impl Cm {
    /// Requests the QP of a service.
    ///
    /// # Errors
    /// [`CmError::TooLong`] and [`CmError::NoIds`].
    #[doc(alias = "ib_send_cm_sidr_req")]
    pub fn resolve(&mut self, now: Time, param: &SidrReqParam) -> Result<CommId, CmError> {
        let private_data = fit("private data of a SIDR_REQ", &param.private_data)?;
        let dst =
            addresses(param.service_id, &private_data).and_then(Result::ok).map(|cma| cma.dst);
        let mut conn = Conn::new(State::SidrReqSent, param.peer);
        conn.service_id = param.service_id;
        conn.response = duration(param.patience.response_timeout);
        conn.max_retries = param.patience.max_retries & 15;
        let id = self.table.insert(conn)?;
        self.set_tid(id);
        let req = SidrReq {
            request_id: id,
            pkey: self.local.pkey,
            service_id: param.service_id,
            private_data,
        };
        self.send_until_answered(now, id, req, Route::Service(param.service_id, dst));
        Ok(id)
    }

    pub(crate) fn handle_sidr_req(
        &mut self,
        from: Peer,
        tid: u64,
        req: SidrReq,
    ) -> Result<(), Ignored> {
        if let Some(known) = self.table.with_request(from.origin(), req.request_id) {
            let state = self.table.get(known).map_or(State::Idle, |conn| conn.state);
            return Err(Ignored::State("SIDR_REQ", state));
        }
        let dst = match addresses(req.service_id, &req.private_data) {
            None => None,
            Some(Ok(cma)) => Some(cma.dst),
            Some(Err(_)) => {
                self.issue_sidr_rep(from, tid, &req, SidrStatus::REJECT);
                return Ok(());
            }
        };
        let Some(listener) = self.listener(req.service_id, dst) else {
            self.issue_sidr_rep(from, tid, &req, SidrStatus::UNSUPPORTED);
            return Ok(());
        };
        if !self.admit(listener) {
            return Err(Ignored::Backlog("SIDR_REQ"));
        }
        let mut conn = Conn::new(State::SidrReqRcvd, from);
        conn.waits_at = Some(listener);
        conn.remote = Remote { id: req.request_id, ..Remote::default() };
        conn.tid = tid;
        conn.service_id = req.service_id;
        let Ok(id) = self.table.insert(conn) else {
            return Err(Ignored::Backlog("SIDR_REQ"));
        };
        self.table.remember_request(id);
        let req = Box::new(req);
        self.report(id, Event::SidrReq { listener, conn: id, from, req });
        Ok(())
    }

    fn issue_sidr_rep(&mut self, to: Peer, tid: u64, req: &SidrReq, status: SidrStatus) {
        let rep = SidrRep {
            request_id: req.request_id,
            status: status.0,
            service_id: req.service_id,
            ..SidrRep::default()
        };
        let mad = Box::new(Mad::new(tid, rep).to_bytes());
        self.send(to, Route::Comm(req.request_id), None, mad);
    }

    /// Answers a SIDR_REQ. The request is done; if the answer is lost, the peer retries.
    ///
    /// # Errors
    /// [`CmError::State`] if there is none, [`CmError::TooLong`].
    #[doc(alias = "ib_send_cm_sidr_rep")]
    pub fn answer(&mut self, id: CommId, param: &SidrRepParam) -> Result<(), CmError> {
        let private_data = fit("private data of a SIDR_REP", &param.private_data)?;
        let conn = self.conn_in(id, "SIDR_REP", &[State::SidrReqRcvd])?;
        let rep = SidrRep {
            request_id: conn.remote.id,
            status: param.status.0,
            qpn: param.qpn,
            service_id: conn.service_id,
            qkey: param.qkey,
            private_data,
            ..SidrRep::default()
        };
        self.send_once(id, rep);
        self.reset(id);
        Ok(())
    }

    pub(crate) fn refuse_sidr(&mut self, id: CommId, status: SidrStatus) -> Result<(), CmError> {
        let param = SidrRepParam {
            status,
            qpn: iba::Qpn::default(),
            qkey: iba::QKey(0),
            private_data: Vec::new(),
        };
        self.answer(id, &param)
    }

    pub(crate) fn handle_sidr_rep(&mut self, from: Peer, rep: SidrRep) -> Result<(), Ignored> {
        let id = rep.request_id;
        let conn = self.table.get(id).ok_or(Ignored::NoConnection("SIDR_REP"))?;
        if !conn.is_from_peer(&from) {
            return Err(Ignored::WrongSource("SIDR_REP"));
        }
        if conn.state != State::SidrReqSent {
            return Err(Ignored::State("SIDR_REP", conn.state));
        }
        self.report(id, Event::SidrRep { conn: id, rep: Box::new(rep) });
        self.reset(id);
        Ok(())
    }
}
