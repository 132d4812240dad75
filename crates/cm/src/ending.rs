//! Refusals and ends: REJ, DREQ, DREP (IBA 12.9.6 and 12.9.7).

use iba::Time;
use wire::cm::{CommId, Drep, Dreq, Mad, Rej};

use crate::active::{ABOUT_OTHER, ABOUT_REP, ABOUT_REQ};
use crate::conn::State;
use crate::event::{Event, Route};
use crate::param::Peer;
use crate::{Cm, CmError, Ignored, RejReason, fit};

impl Cm {
    /// Refuses a request or a response, or gives up an attempt.
    ///
    /// # Errors
    /// [`CmError::State`] if there is nothing to refuse, [`CmError::TooLong`].
    #[doc(alias = "ib_send_cm_rej")]
    pub fn reject(
        &mut self,
        now: Time,
        id: CommId,
        reason: RejReason,
        ari: &[u8],
        private_data: &[u8],
    ) -> Result<(), CmError> {
        use State as S;
        let info_length = ari.len() as u8;
        let ari = fit("additional information of a REJ", ari)?;
        let private_data = fit("private data of a REJ", private_data)?;
        let states = [
            S::ReqSent,
            S::MraReqRcvd,
            S::ReqRcvd,
            S::MraReqSent,
            S::RepRcvd,
            S::MraRepSent,
            S::RepSent,
            S::MraRepRcvd,
        ];
        let conn = self.conn_in(id, "REJ", &states)?;
        // A peer that has got no answer yet does not know our id.
        let (local_comm_id, message) = match conn.state {
            S::ReqRcvd => (0, ABOUT_REQ),
            S::MraReqSent => (id, ABOUT_REQ),
            S::RepRcvd | S::MraRepSent => (id, ABOUT_REP),
            _ => (id, ABOUT_OTHER),
        };
        let peer_may_send = matches!(conn.state, S::RepSent | S::MraRepRcvd);
        let rej = Rej {
            local_comm_id,
            remote_comm_id: conn.remote.id,
            message,
            info_length,
            reason: reason.0,
            ari,
            private_data,
        };
        self.send_once(id, rej);
        if peer_may_send {
            self.enter_timewait(now, id);
        } else {
            self.reset(id);
        }
        Ok(())
    }

    /// Refuses a message for which there is no connection. `ids` are our id and the peer's.
    pub(crate) fn issue_rej(
        &mut self,
        to: Peer,
        tid: u64,
        ids: (CommId, CommId),
        message: u8,
        reason: RejReason,
        ari: &[u8],
    ) {
        let mut rej = Rej {
            local_comm_id: ids.0,
            remote_comm_id: ids.1,
            message,
            info_length: ari.len() as u8,
            reason: reason.0,
            ..Rej::default()
        };
        rej.ari[..ari.len()].copy_from_slice(ari);
        let mad = Box::new(Mad::new(tid, rej).to_bytes());
        self.send(to, Route::Comm(ids.1), None, mad);
    }

    pub(crate) fn handle_rej(&mut self, now: Time, from: Peer, rej: Rej) -> Result<(), Ignored> {
        use State as S;
        let id = if RejReason(rej.reason) == RejReason::TIMEOUT && rej.remote_comm_id == 0 {
            // A peer that gives up before it gets an answer does not know our id; it names its own.
            let guid = rej.ari.first_chunk().map_or(0, |guid| u64::from_be_bytes(*guid));
            let id = self.table.with_remote_id(from.origin(), iba::Guid(guid), rej.local_comm_id);
            id.ok_or(Ignored::NoConnection("REJ"))?
        } else {
            rej.remote_comm_id
        };
        let conn = self.table.get(id).ok_or(Ignored::NoConnection("REJ"))?;
        let knows_us = rej.message == ABOUT_REQ || conn.remote.id == rej.local_comm_id;
        if !conn.is_from_peer(&from) || !knows_us {
            return Err(Ignored::WrongSource("REJ"));
        }
        let is_stale = RejReason(rej.reason) == RejReason::STALE_CONN;
        let ends_later = match conn.state {
            S::ReqSent
            | S::MraReqRcvd
            | S::RepSent
            | S::MraRepRcvd
            | S::ReqRcvd
            | S::MraReqSent => is_stale,
            S::DreqSent | S::RepRcvd | S::MraRepSent | S::Established => true,
            state => return Err(Ignored::State("REJ", state)),
        };
        self.report(id, Event::Rej { conn: id, rej: Box::new(rej) });
        if ends_later {
            self.enter_timewait(now, id);
        } else {
            self.reset(id);
        }
        Ok(())
    }

    /// Ends a connection.
    ///
    /// # Errors
    /// [`CmError::State`] if there is none, [`CmError::TooLong`].
    #[doc(alias = "ib_send_cm_dreq")]
    pub fn disconnect(
        &mut self,
        now: Time,
        id: CommId,
        private_data: &[u8],
    ) -> Result<(), CmError> {
        let private_data = fit("private data of a DREQ", private_data)?;
        self.conn_in(id, "DREQ", &[State::Established])?;
        self.send_dreq(now, id, private_data);
        Ok(())
    }

    fn send_dreq(&mut self, now: Time, id: CommId, private_data: [u8; 220]) {
        // A transaction of its own.
        self.set_tid(id);
        let Some(conn) = self.table.get_mut(id) else { return };
        conn.state = State::DreqSent;
        conn.reply = None;
        let dreq = Dreq {
            local_comm_id: id,
            remote_comm_id: conn.remote.id,
            remote_qpn: conn.remote.qpn,
            private_data,
        };
        let route = Self::route_to(conn);
        self.send_until_answered(now, id, dreq, route);
    }

    /// Ends a connection that the peer no longer knows.
    pub(crate) fn end_stale(&mut self, now: Time, id: CommId) {
        let Some(conn) = self.table.get(id) else { return };
        if conn.state == State::Established {
            self.send_dreq(now, id, [0; 220]);
        }
    }

    /// Confirms that the peer ended a connection.
    ///
    /// # Errors
    /// [`CmError::State`] if it has not, [`CmError::TooLong`].
    #[doc(alias = "ib_send_cm_drep")]
    pub fn confirm_disconnect(
        &mut self,
        now: Time,
        id: CommId,
        private_data: &[u8],
    ) -> Result<(), CmError> {
        let private_data = fit("private data of a DREP", private_data)?;
        let conn = self.conn_in(id, "DREP", &[State::DreqRcvd])?;
        let drep = Drep { local_comm_id: id, remote_comm_id: conn.remote.id, private_data };
        self.send_reply(id, drep);
        if private_data == Drep::default().private_data
            && let Some(conn) = self.table.get_mut(id)
        {
            // It is made again if the peer asks again. Many connections may be in TIMEWAIT.
            conn.reply = None;
        }
        self.enter_timewait(now, id);
        Ok(())
    }

    pub(crate) fn handle_dreq(
        &mut self,
        now: Time,
        from: Peer,
        tid: u64,
        dreq: &Dreq,
    ) -> Result<(), Ignored> {
        use State as S;
        let id = dreq.remote_comm_id;
        let Some(conn) = self.table.get_mut(id).filter(|conn| conn.remote.id == dreq.local_comm_id)
        else {
            // It ended here already, and the DREP may have been lost.
            let drep = Drep {
                local_comm_id: dreq.remote_comm_id,
                remote_comm_id: dreq.local_comm_id,
                ..Drep::default()
            };
            let mad = Box::new(Mad::new(tid, drep).to_bytes());
            self.send(from, Route::Comm(dreq.local_comm_id), None, mad);
            return Ok(());
        };
        if !conn.is_from_peer(&from) {
            return Err(Ignored::WrongSource("DREQ"));
        }
        if conn.local_qpn != dreq.remote_qpn {
            return Err(Ignored::WrongQp);
        }
        match conn.state {
            S::RepSent | S::MraRepRcvd | S::Established => {}
            // Both sides end it at once: each confirms the other's request (IBA 12.9.6, figure
            // 130).
            S::DreqSent => {
                conn.tid = tid;
                let remote_comm_id = conn.remote.id;
                let drep = Drep { local_comm_id: id, remote_comm_id, ..Drep::default() };
                self.report(id, Event::Drep { conn: id });
                self.send_reply(id, drep);
                self.enter_timewait(now, id);
                return Ok(());
            }
            S::Timewait => {
                if conn.reply.is_none() {
                    let remote_comm_id = conn.remote.id;
                    conn.tid = tid;
                    let drep = Drep { local_comm_id: id, remote_comm_id, ..Drep::default() };
                    self.keep_reply(id, drep);
                }
                self.repeat_reply(id);
                return Ok(());
            }
            state => return Err(Ignored::State("DREQ", state)),
        }
        conn.state = S::DreqRcvd;
        conn.tid = tid;
        self.answered(id);
        self.report(id, Event::Dreq { conn: id });
        Ok(())
    }

    pub(crate) fn handle_drep(
        &mut self,
        now: Time,
        from: Peer,
        drep: &Drep,
    ) -> Result<(), Ignored> {
        let id = drep.remote_comm_id;
        let conn = self.table.get(id).ok_or(Ignored::NoConnection("DREP"))?;
        if !conn.is_from_peer(&from) || conn.remote.id != drep.local_comm_id {
            return Err(Ignored::WrongSource("DREP"));
        }
        match conn.state {
            State::DreqSent | State::DreqRcvd => {}
            state => return Err(Ignored::State("DREP", state)),
        }
        self.report(id, Event::Drep { conn: id });
        self.enter_timewait(now, id);
        Ok(())
    }
}
