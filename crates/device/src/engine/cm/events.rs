//! Turns reports of the communication manager into events of an endpoint (the kernel's
//! `cma_ib_handler`).

use std::net::SocketAddr;

use ::cm::{Ece, Event as CmEvent, ListenId, Peer, PortSpace, Unanswered};
use iba::QpType;
use wire::cm::{CmaHeader, CommId, Req, SidrReq};

use super::Engine;
use super::endpoint::{Endpoint, Role};
use crate::rdma_cm::{ConnParam, EventKind, Path, RejReason, SidrStatus, Spec};

/// A peer that repeats its request while the program decides about it is told to wait for `4.096 us
/// * 2^24`, 69 s (the kernel's `CMA_CM_MRA_SETTING`).
const MRA_SERVICE_TIMEOUT: u8 = 24;

impl Engine {
    /// Passes the events of the communication manager to their endpoints.
    pub(super) fn deliver_cm_events(&mut self) {
        while let Some(event) = self.cm.cm.poll_event() {
            match event {
                CmEvent::Req { listener, conn, from, req, ece } => {
                    self.request(listener, conn, from, (&req, ece));
                }
                CmEvent::SidrReq { listener, conn, from, req } => {
                    self.service_request(listener, conn, from, &req);
                }
                CmEvent::Rep { conn, rep, ece } => {
                    // The program must bring up its QP, which can take a while.
                    let _ = self.cm.cm.delay(conn, MRA_SERVICE_TIMEOUT, true);
                    let qpn =
                        self.cm.cm.qp_info(conn).map_or(rep.local_qpn, |info| info.remote_qpn);
                    let param = ConnParam {
                        private_data: rep.private_data.to_vec(),
                        responder_resources: rep.initiator_depth,
                        initiator_depth: rep.responder_resources,
                        flow_control: rep.flow_control,
                        retry_count: 0,
                        rnr_retry_count: rep.rnr_retry_count,
                        srq: rep.srq,
                        ece,
                        qpn,
                        qkey: rep.local_qkey,
                    };
                    self.tell(conn, EventKind::ConnectResponse { param });
                }
                CmEvent::Rtu { conn, rtu } => {
                    let private_data = rtu.map_or_else(Vec::new, |rtu| rtu.private_data.to_vec());
                    let param = ConnParam { private_data, ..ConnParam::default() };
                    self.tell(conn, EventKind::Established { param });
                }
                CmEvent::Rej { conn, rej } => {
                    let length = usize::from(rej.info_length).min(rej.ari.len());
                    let kind = EventKind::Rejected {
                        reason: RejReason(rej.reason),
                        ari: rej.ari[..length].to_vec(),
                        private_data: rej.private_data.to_vec(),
                    };
                    self.tell(conn, kind);
                }
                CmEvent::Dreq { conn } | CmEvent::Drep { conn } => self.ended(conn, false),
                CmEvent::NoAnswer { conn, to: Unanswered::Dreq } => self.ended(conn, true),
                CmEvent::NoAnswer { conn, .. } => self.tell(conn, EventKind::Unreachable),
                CmEvent::TimewaitExit { conn } => {
                    self.tell(conn, EventKind::TimewaitExit);
                    if let Some(id) = self.cm.by_conn.remove(&conn)
                        && let Some(endpoint) = self.cm.endpoints.get_mut(&id)
                    {
                        endpoint.role = Role::Over;
                    }
                }
                CmEvent::SidrRep { conn, rep } => {
                    let private_data = rep.private_data.to_vec();
                    let status = SidrStatus(rep.status);
                    let kind = if status == SidrStatus::SUCCESS {
                        let (qpn, qkey) = (rep.qpn, rep.qkey);
                        let param = ConnParam { private_data, qpn, qkey, ..ConnParam::default() };
                        EventKind::Established { param }
                    } else {
                        EventKind::SidrRefused { status, private_data }
                    };
                    self.tell(conn, kind);
                }
                other => {
                    tracing::debug!(target: "peerdma::cm", ?other, "no endpoint for this event")
                }
            }
        }
    }

    fn tell(&mut self, conn: CommId, kind: EventKind) {
        if let Some(id) = self.cm.by_conn.get(&conn)
            && let Some(endpoint) = self.cm.endpoints.get(id)
        {
            endpoint.tell(*id, kind, &mut self.common.objects.bells);
        }
    }

    /// A connection ended, which is reported once, whatever the two sides send at the end.
    fn ended(&mut self, conn: CommId, timed_out: bool) {
        if let Some(id) = self.cm.by_conn.get(&conn)
            && let Some(endpoint) = self.cm.endpoints.get_mut(id)
            && !std::mem::replace(&mut endpoint.ended, true)
        {
            let kind = EventKind::Disconnected { timed_out };
            endpoint.tell(*id, kind, &mut self.common.objects.bells);
        }
    }

    fn request(&mut self, listener: ListenId, conn: CommId, from: Peer, (req, ece): (&Req, Ece)) {
        let path = self.common.path_of_req(&from, req);
        let qp_type = self.cm.cm.qp_info(conn).map_or(QpType::Rc, |info| info.qp_type);
        let param = ConnParam {
            private_data: req.private_data[CmaHeader::LEN..].to_vec(),
            responder_resources: req.initiator_depth,
            initiator_depth: req.responder_resources,
            flow_control: req.flow_control,
            retry_count: req.retry_count,
            rnr_retry_count: req.rnr_retry_count,
            srq: req.srq,
            ece,
            qpn: req.local_qpn,
            qkey: req.local_qkey,
        };
        let addresses = addresses(req.service_id, &req.private_data);
        self.offer(listener, conn, qp_type, path, addresses, param);
        let _ = self.cm.cm.delay(conn, MRA_SERVICE_TIMEOUT, true);
    }

    fn service_request(&mut self, listener: ListenId, conn: CommId, from: Peer, req: &SidrReq) {
        let path = self.common.path_between(from.local, from.remote);
        let private_data = req.private_data[CmaHeader::LEN..].to_vec();
        let param = ConnParam { private_data, ..ConnParam::default() };
        let addresses = addresses(req.service_id, &req.private_data);
        self.offer(listener, conn, QpType::Ud, path, addresses, param);
    }

    /// Creates an endpoint for a request, and notifies the listener.
    fn offer(
        &mut self,
        listener: ListenId,
        conn: CommId,
        qp_type: QpType,
        path: Path,
        addresses: Option<(SocketAddr, SocketAddr)>,
        param: ConnParam,
    ) {
        let now = self.common.now;
        let found = self.cm.by_listener.get(&listener);
        let found = found.and_then(|id| Some((*id, self.cm.endpoints.get(id)?)));
        let Some((listener, of)) = found else {
            self.cm.cm.destroy(now, conn);
            return;
        };
        if of.spec.qp_type != qp_type {
            // As in cma_ib_check_req_qp_type of the kernel: refused on behalf of the consumer.
            let wanted = of.spec.qp_type;
            tracing::info!(target: "peerdma::cm", "a request for {qp_type}; the listener accepts {wanted}");
            self.cm.cm.destroy(now, conn);
            return;
        }
        let spec = Spec { qp_type, cookie: of.cookie, ..of.spec };
        let mut endpoint = Endpoint::new(spec, of.sink.clone());
        endpoint.role = Role::Conn(conn);
        endpoint.path = Some(path);
        endpoint.timeouts = of.timeouts;
        endpoint.tos = of.tos;
        endpoint.ack_timeout = of.ack_timeout;
        (endpoint.local, endpoint.remote) = addresses.unzip();
        let Ok(new) = self.cm.insert(endpoint) else {
            self.cm.cm.destroy(now, conn);
            return;
        };
        self.cm.by_conn.insert(conn, new);
        if let Some(of) = self.cm.endpoints.get(&listener) {
            let kind = EventKind::ConnectRequest { new, param };
            of.tell(listener, kind, &mut self.common.objects.bells);
        }
    }
}

/// The addresses that a request names: ours and the peer's.
fn addresses(service_id: u64, private_data: &[u8]) -> Option<(SocketAddr, SocketAddr)> {
    let (_, port) = PortSpace::of_service(service_id)?;
    let header = CmaHeader::parse(private_data.first_chunk()?).ok()?;
    Some((SocketAddr::new(header.dst, port), SocketAddr::new(header.src, header.port)))
}
