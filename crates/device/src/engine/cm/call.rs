//! The calls of an endpoint from its connection on.

use std::cmp;

use ::cm::{
    CmError, PathParam, Patience, Peer, RepParam, ReqParam, SidrRepParam, SidrReqParam, State,
};
use iba::{Access, AckTimeout, AttrMask, Av, Psn, QKey, QpAttr, QpState, QpType, RnrTimer};
use wire::cm::CmaHeader;

use super::Engine;
use super::endpoint::Role;
use crate::ids::CmId;
use crate::random::random;
use crate::rdma_cm::{ConnParam, RejReason, SidrStatus};
use crate::refusal::{Kind, Refusal, Result, refuse};

/// The Q_Key of datagram QPs for which the program sets none (`RDMA_UDP_QKEY`).
const UDP_QKEY: QKey = QKey(0x0123_4567);

fn refusal(error: &CmError) -> Refusal {
    let kind = match error {
        CmError::NoIds => Kind::NoMemory,
        CmError::ServiceInUse(_) => Kind::AddressInUse,
        _ => Kind::Invalid,
    };
    Refusal::new(kind, error.to_string())
}

impl Engine {
    /// Requests a connection from the peer (REQ), or a QP (SIDR_REQ).
    ///
    /// # Errors
    /// [`Kind::Invalid`] if the endpoint is not resolved, is something else already, or must reach
    /// a multicast group, or the private data is too long.
    #[doc(alias = "rdma_connect")]
    pub fn cm_connect(&mut self, id: CmId, param: &ConnParam) -> Result<()> {
        self.cm_alive()?;
        let path = self.cm_route(id)?;
        let endpoint = self.cm.get(id)?;
        let (Role::Idle, Some(local), Some(remote)) =
            (endpoint.role, endpoint.local, endpoint.remote)
        else {
            refuse!(Invalid, "connect: endpoint {} is {:?}", id.handle(), endpoint.role);
        };
        if remote.ip().is_multicast() {
            let to = remote.ip();
            refuse!(Invalid, "{to} is a multicast group, which cannot be connected to");
        }
        let spec = endpoint.spec;
        let header = CmaHeader { port: local.port(), src: local.ip(), dst: remote.ip() };
        let mut private_data = header.to_bytes().to_vec();
        private_data.extend(&param.private_data);
        let service_id = spec.port_space.service_id(remote.port());
        let peer = Peer { local: path.sgid, remote: path.dgid, via: None };
        let patience = Patience {
            response_timeout: endpoint.timeouts.response_timeout,
            max_retries: endpoint.timeouts.max_retries,
        };
        let now = self.common.now;
        let conn = if spec.qp_type == QpType::Ud {
            let req = SidrReqParam { peer, service_id, patience, private_data };
            self.cm.cm.resolve(now, &req)
        } else {
            let req = ReqParam {
                peer,
                service_id,
                qp_type: spec.qp_type,
                qpn: param.qpn,
                starting_psn: endpoint.rq_psn,
                path: PathParam {
                    mtu: path.mtu,
                    traffic_class: path.traffic_class,
                    flow_label: path.flow_label,
                    hop_limit: path.hop_limit,
                    packet_life_time: path.packet_life_time,
                },
                patience,
                responder_resources: param.responder_resources,
                initiator_depth: param.initiator_depth,
                flow_control: param.flow_control,
                retry_count: param.retry_count.min(7),
                rnr_retry_count: param.rnr_retry_count.min(7),
                srq: param.srq,
                ece: param.ece,
                private_data,
            };
            self.cm.cm.connect(now, &req)
        };
        let conn = conn.map_err(|error| refusal(&error))?;
        self.cm.by_conn.insert(conn, id);
        let endpoint = self.cm.get_mut(id)?;
        endpoint.role = Role::Conn(conn);
        endpoint.local_qpn = param.qpn;
        self.cm_called();
        Ok(())
    }

    /// The program has taken a request: it no longer counts towards its listener's backlog.
    ///
    /// # Errors
    /// [`Kind::Invalid`] if the endpoint is not a connection.
    pub fn cm_taken(&mut self, id: CmId) -> Result<()> {
        if let Role::Conn(conn) = self.cm.get(id)?.role {
            self.cm.cm.taken(conn);
        }
        if !self.cm.mads.crowded.is_empty() {
            self.cm_called();
        }
        Ok(())
    }

    /// Accepts a request (REP, or SIDR_REP).
    ///
    /// # Errors
    /// [`Kind::Invalid`] if there is no request to accept, or it is gone, or the private data is
    /// too long.
    #[doc(alias = "rdma_accept")]
    pub fn cm_accept(&mut self, id: CmId, param: &ConnParam) -> Result<()> {
        self.cm_alive()?;
        let conn = self.cm.conn(id, "accept")?;
        let now = self.common.now;
        let endpoint = self.cm.get(id)?;
        let accepted = if endpoint.spec.qp_type == QpType::Ud {
            let qkey = if param.qkey == QKey(0) { UDP_QKEY } else { param.qkey };
            let rep = SidrRepParam {
                status: SidrStatus::SUCCESS,
                qpn: param.qpn,
                qkey,
                private_data: param.private_data.clone(),
            };
            self.cm.cm.answer(conn, &rep)
        } else {
            let rep = RepParam {
                qpn: param.qpn,
                starting_psn: endpoint.rq_psn,
                responder_resources: param.responder_resources,
                initiator_depth: param.initiator_depth,
                flow_control: param.flow_control,
                rnr_retry_count: param.rnr_retry_count.min(7),
                srq: param.srq,
                ece: param.ece,
                private_data: param.private_data.clone(),
            };
            self.cm.cm.accept(now, conn, &rep)
        };
        accepted.map_err(|error| refusal(&error))?;
        self.cm.get_mut(id)?.local_qpn = param.qpn;
        self.cm_called();
        Ok(())
    }

    /// Refuses a request, or a response. A request for a datagram QP is refused whatever the reason
    /// ([`SidrStatus::REJECT`]).
    ///
    /// # Errors
    /// [`Kind::Invalid`] if there is neither, or the private data is too long.
    #[doc(alias = "rdma_reject")]
    pub fn cm_reject(
        &mut self,
        id: CmId,
        reason: RejReason,
        ari: &[u8],
        private_data: &[u8],
    ) -> Result<()> {
        self.cm_alive()?;
        let conn = self.cm.conn(id, "reject")?;
        let now = self.common.now;
        let rejected = if self.cm.get(id)?.spec.qp_type == QpType::Ud {
            let rep = SidrRepParam {
                status: SidrStatus::REJECT,
                qpn: iba::Qpn::default(),
                qkey: QKey(0),
                private_data: private_data.to_vec(),
            };
            self.cm.cm.answer(conn, &rep)
        } else {
            self.cm.cm.reject(now, conn, reason, ari, private_data)
        };
        rejected.map_err(|error| refusal(&error))?;
        self.cm_called();
        Ok(())
    }

    /// Tells the peer that the answer will take long (MRA): it waits for `4.096 us *
    /// 2^service_timeout` longer. A peer that repeats its request is told so in any case.
    ///
    /// # Errors
    /// [`Kind::Invalid`] if nothing waits for an answer.
    pub fn cm_delay(&mut self, id: CmId, service_timeout: u8) -> Result<()> {
        self.cm_alive()?;
        let conn = self.cm.conn(id, "delay")?;
        self.cm.cm.delay(conn, service_timeout, false).map_err(|error| refusal(&error))?;
        self.cm_called();
        Ok(())
    }

    /// The QP of the active side is ready: confirms the response (RTU).
    ///
    /// # Errors
    /// [`Kind::Invalid`] if no response came, or the connection has ended.
    pub fn cm_ready(&mut self, id: CmId, private_data: &[u8]) -> Result<()> {
        self.cm_alive()?;
        let conn = self.cm.conn(id, "ready")?;
        self.cm.cm.ready(conn, private_data).map_err(|error| refusal(&error))?;
        self.cm_called();
        Ok(())
    }

    /// The QP of the passive side has received a packet before the RTU came (`IBV_EVENT_COMM_EST`).
    ///
    /// # Errors
    /// [`Kind::Invalid`] if no RTU is expected. A connection that is already established is no
    /// error.
    #[doc(alias = "rdma_notify")]
    pub fn cm_established(&mut self, id: CmId) -> Result<()> {
        self.cm_alive()?;
        let conn = self.cm.conn(id, "established")?;
        self.cm.cm.established(conn).map_err(|error| refusal(&error))?;
        self.cm_called();
        Ok(())
    }

    /// Ends a connection (DREQ), or confirms that the peer did (DREP). If it is not established,
    /// nothing happens, as with the kernel's `rdma_disconnect`.
    ///
    /// # Errors
    /// [`Kind::Invalid`] if the endpoint has never been a connection.
    #[doc(alias = "rdma_disconnect")]
    pub fn cm_disconnect(&mut self, id: CmId) -> Result<()> {
        self.cm_alive()?;
        if self.cm.get(id)?.role == Role::Over {
            return Ok(());
        }
        let conn = self.cm.conn(id, "disconnect")?;
        let now = self.common.now;
        let done = match self.cm.cm.state(conn) {
            Some(State::Established) => self.cm.cm.disconnect(now, conn, &[]),
            Some(State::DreqRcvd) => self.cm.cm.confirm_disconnect(now, conn, &[]),
            _ => Ok(()),
        };
        done.map_err(|error| refusal(&error))?;
        self.cm_called();
        Ok(())
    }

    /// Destroys an endpoint: it has no more events. A request that waits is refused, and a
    /// connection is ended. Requests that came to a listener, and were reported, are endpoints of
    /// their own.
    ///
    /// # Errors
    /// [`Kind::NotFound`] if there is no such endpoint.
    #[doc(alias = "rdma_destroy_id")]
    pub fn cm_destroy(&mut self, id: CmId) -> Result<()> {
        self.common.now = self.clock.now();
        let role = self.cm.get(id)?.role;
        self.cm.endpoints.remove(&id);
        let super::CmService { ports, directory, .. } = &mut self.cm;
        if let Some(directory) = directory {
            ports.release(directory, id);
        }
        match role {
            Role::Listener(listener) => {
                self.cm.by_listener.remove(&listener);
                self.cm.cm.unlisten(listener);
            }
            Role::Conn(conn) => {
                self.cm.by_conn.remove(&conn);
                let now = self.common.now;
                self.cm.cm.destroy(now, conn);
            }
            Role::Idle | Role::Over => {}
        }
        if !self.is_dead() {
            self.cm_called();
        }
        Ok(())
    }

    /// The attributes of an endpoint's QP for its transition to `state` (INIT, RTR or RTS).
    ///
    /// # Errors
    /// [`Kind::Invalid`] if the endpoint does not know it yet, or for another state.
    #[doc(alias = "rdma_init_qp_attr")]
    pub fn cm_qp_attr(&self, id: CmId, state: QpState) -> Result<(QpAttr, AttrMask)> {
        use AttrMask as A;
        let endpoint = self.cm.get(id)?;
        let mut attr = QpAttr { state, port_num: 1, ..QpAttr::default() };
        let conn = match endpoint.role {
            Role::Conn(conn) => self.cm.cm.qp_info(conn).ok(),
            _ => None,
        };
        if endpoint.spec.qp_type == QpType::Ud {
            attr.qkey = UDP_QKEY;
            attr.sq_psn = Psn::new(random() as u32);
            let mask = match state {
                QpState::Init => A::PKEY_INDEX | A::PORT | A::QKEY,
                QpState::Rtr => A::empty(),
                QpState::Rts => A::SQ_PSN,
                other => refuse!(Invalid, "a datagram QP on its way to {other}"),
            };
            return Ok((attr, mask | A::STATE));
        }
        if state == QpState::Init {
            // Before a connection is requested, no peer has any rights (cma_ib_init_qp_attr of the
            // kernel).
            if let Some(info) = conn {
                attr.access_flags = Access::REMOTE_WRITE;
                if info.responder_resources > 0 {
                    attr.access_flags |= Access::REMOTE_READ | Access::REMOTE_ATOMIC;
                }
            }
            return Ok((attr, A::STATE | A::PKEY_INDEX | A::PORT | A::ACCESS_FLAGS));
        }
        let known = conn.filter(|info| info.remote_qpn != iba::Qpn::default());
        let (Some(info), Some(path)) = (known, endpoint.path) else {
            refuse!(Invalid, "endpoint {} does not know its peer's QP", id.handle());
        };
        let is_reliable = endpoint.spec.qp_type.is_reliable();
        let most = u8::try_from(self.common.nic.attr.max_qp_rd_atom).unwrap_or(u8::MAX);
        match state {
            QpState::Rtr => {
                attr.av = Av {
                    dgid: path.dgid,
                    sgid_index: path.sgid_index,
                    flow_label: path.flow_label,
                    hop_limit: path.hop_limit,
                    traffic_class: endpoint.tos.unwrap_or(path.traffic_class),
                    port_num: 1,
                    is_global: true,
                    ..Av::default()
                };
                attr.path_mtu = info.mtu;
                attr.dest_qpn = info.remote_qpn;
                attr.rq_psn = endpoint.rq_psn;
                let mut mask = A::STATE | A::AV | A::PATH_MTU | A::DEST_QPN | A::RQ_PSN;
                if matches!(endpoint.spec.qp_type, QpType::Rc | QpType::XrcRecv) {
                    // A peer may request more than is available.
                    attr.max_dest_rd_atomic = cmp::min(info.responder_resources, most);
                    attr.min_rnr_timer = RnrTimer::default();
                    mask |= A::MAX_DEST_RD_ATOMIC | A::MIN_RNR_TIMER;
                }
                Ok((attr, mask))
            }
            QpState::Rts => {
                attr.sq_psn = info.sq_psn;
                let mut mask = A::STATE | A::SQ_PSN;
                if is_reliable {
                    let timeout = endpoint.ack_timeout.unwrap_or(info.ack_timeout);
                    attr.timeout = AckTimeout::from_code(timeout).unwrap_or_default();
                    mask |= A::TIMEOUT;
                }
                if matches!(endpoint.spec.qp_type, QpType::Rc | QpType::XrcSend) {
                    attr.retry_cnt = info.retry_count;
                    attr.rnr_retry = info.rnr_retry_count;
                    attr.max_rd_atomic = cmp::min(info.initiator_depth, most);
                    mask |= A::RETRY_CNT | A::RNR_RETRY | A::MAX_QP_RD_ATOMIC;
                }
                Ok((attr, mask))
            }
            other => refuse!(Invalid, "a QP on its way to {other}"),
        }
    }
}
