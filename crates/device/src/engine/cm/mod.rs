//! Connection management: the calls of an endpoint (see [`crate::cm`]).

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use iba::{AttrMask, QpAttr, QpState};

use super::Engine;
use crate::cm::{Addresses, BindOptions, ConnParam, Path, RejReason, Sink, Spec, Timeouts};
use crate::ids::CmId;
use crate::refusal::{Result, refuse};

impl Engine {
    /// Makes an endpoint.
    ///
    /// # Errors
    /// [`Kind::Invalid`](crate::Kind) if the QP type does not suit the port space, [`Kind::NoMemory`](crate::Kind) at
    /// the limit of endpoints.
    #[doc(alias = "rdma_create_id")]
    pub fn cm_create(&mut self, spec: &Spec, sink: Arc<dyn Sink>) -> Result<CmId> {
        let _ = (spec, sink);
        refuse!(NotSupported, "cm_create")
    }

    /// Sends the events of an endpoint elsewhere from now on, with another cookie. Those that the old sink has stay there.
    #[doc(alias = "rdma_migrate_id")]
    pub fn cm_set_sink(&mut self, id: CmId, sink: Arc<dyn Sink>, cookie: u64) -> Result<()> {
        let _ = (id, sink, cookie);
        refuse!(NotSupported, "cm_set_sink")
    }

    /// Binds an endpoint to an address of this device, or to the wildcard. Port 0 is a free one. Returns what it is bound
    /// to.
    ///
    /// # Errors
    /// [`Kind::AddressInUse`](crate::Kind) if the port is another's, of this process or of another one of this host;
    /// [`Kind::AddressNotAvailable`](crate::Kind) if the address is not one of the device's;
    /// [`Kind::Invalid`](crate::Kind) if it is bound already.
    #[doc(alias = "rdma_bind_addr")]
    pub fn cm_bind(
        &mut self,
        id: CmId,
        addr: SocketAddr,
        options: BindOptions,
    ) -> Result<SocketAddr> {
        let _ = (id, addr, options);
        refuse!(NotSupported, "cm_bind")
    }

    /// Takes requests from now on. `backlog` is how many may wait for [`Engine::cm_taken`]; those beyond are refused.
    ///
    /// # Errors
    /// [`Kind::AddressInUse`](crate::Kind) as in [`Engine::cm_bind`], if the address is shared.
    #[doc(alias = "rdma_listen")]
    pub fn cm_listen(&mut self, id: CmId, backlog: u32) -> Result<()> {
        let _ = (id, backlog);
        refuse!(NotSupported, "cm_listen")
    }

    /// The program knows of a request: it no longer counts towards its listener's backlog.
    pub fn cm_taken(&mut self, id: CmId) -> Result<()> {
        let _ = id;
        refuse!(NotSupported, "cm_taken")
    }

    /// The way from an address of this device (any suitable one if `None`) to `to`, without an endpoint.
    ///
    /// # Errors
    /// [`Kind::AddressNotAvailable`](crate::Kind) if `from` is not one of the device's or of another family than `to`.
    pub fn cm_path(&self, from: Option<IpAddr>, to: IpAddr) -> Result<Path> {
        let _ = (from, to);
        refuse!(NotSupported, "cm_path")
    }

    /// Gives an endpoint its peer's address, binds it to a free port if it is not bound, and finds the way.
    ///
    /// # Errors
    /// As [`Engine::cm_bind`] and [`Engine::cm_path`].
    #[doc(alias("rdma_resolve_addr", "rdma_resolve_route"))]
    pub fn cm_resolve(
        &mut self,
        id: CmId,
        from: Option<SocketAddr>,
        to: SocketAddr,
    ) -> Result<Path> {
        let _ = (id, from, to);
        refuse!(NotSupported, "cm_resolve")
    }

    /// Replaces the type of service of an endpoint's packets, and the life time of a packet if given.
    #[doc(alias("RDMA_OPTION_ID_TOS", "RDMA_OPTION_ID_ACK_TIMEOUT"))]
    pub fn cm_set_service(
        &mut self,
        id: CmId,
        tos: Option<u8>,
        ack_timeout: Option<u8>,
    ) -> Result<()> {
        let _ = (id, tos, ack_timeout);
        refuse!(NotSupported, "cm_set_service")
    }

    /// Sets how long the endpoint waits for answers.
    pub fn cm_set_timeouts(&mut self, id: CmId, timeouts: Timeouts) -> Result<()> {
        let _ = (id, timeouts);
        refuse!(NotSupported, "cm_set_timeouts")
    }

    /// Asks the peer for a connection (REQ), or for a QP (SIDR_REQ).
    ///
    /// # Errors
    /// [`Kind::Invalid`](crate::Kind) if the endpoint is not resolved or the private data is too long.
    #[doc(alias = "rdma_connect")]
    pub fn cm_connect(&mut self, id: CmId, param: &ConnParam) -> Result<()> {
        let _ = (id, param);
        refuse!(NotSupported, "cm_connect")
    }

    /// Accepts a request (REP, or SIDR_REP).
    ///
    /// # Errors
    /// [`Kind::Invalid`](crate::Kind) if there is no request to accept, or not any more.
    #[doc(alias = "rdma_accept")]
    pub fn cm_accept(&mut self, id: CmId, param: &ConnParam) -> Result<()> {
        let _ = (id, param);
        refuse!(NotSupported, "cm_accept")
    }

    /// Refuses a request, or a response.
    ///
    /// # Errors
    /// [`Kind::Invalid`](crate::Kind) if there is neither.
    #[doc(alias = "rdma_reject")]
    pub fn cm_reject(
        &mut self,
        id: CmId,
        reason: RejReason,
        ari: &[u8],
        private_data: &[u8],
    ) -> Result<()> {
        let _ = (id, reason, ari, private_data);
        refuse!(NotSupported, "cm_reject")
    }

    /// Tells the peer that the answer takes long (MRA): it waits for `4.096 us * 2^service_timeout` longer.
    pub fn cm_delay(&mut self, id: CmId, service_timeout: u8) -> Result<()> {
        let _ = (id, service_timeout);
        refuse!(NotSupported, "cm_delay")
    }

    /// The QP of the active side is ready: confirms the response (RTU).
    ///
    /// # Errors
    /// [`Kind::Invalid`](crate::Kind) if no response came, or the connection ended meanwhile.
    pub fn cm_ready(&mut self, id: CmId, private_data: &[u8]) -> Result<()> {
        let _ = (id, private_data);
        refuse!(NotSupported, "cm_ready")
    }

    /// The QP of the passive side has received a packet before the RTU came (`IBV_EVENT_COMM_EST`).
    #[doc(alias = "rdma_notify")]
    pub fn cm_established(&mut self, id: CmId) -> Result<()> {
        let _ = id;
        refuse!(NotSupported, "cm_established")
    }

    /// Ends a connection (DREQ), or confirms that the peer did (DREP).
    ///
    /// # Errors
    /// [`Kind::Invalid`](crate::Kind) if there is none.
    #[doc(alias = "rdma_disconnect")]
    pub fn cm_disconnect(&mut self, id: CmId) -> Result<()> {
        let _ = id;
        refuse!(NotSupported, "cm_disconnect")
    }

    /// What the QP of an endpoint is to be set to for its way to `state` (INIT, RTR or RTS).
    ///
    /// # Errors
    /// [`Kind::Invalid`](crate::Kind) if the endpoint does not know it yet.
    #[doc(alias = "rdma_init_qp_attr")]
    pub fn cm_qp_attr(&self, id: CmId, state: QpState) -> Result<(QpAttr, AttrMask)> {
        let _ = (id, state);
        refuse!(NotSupported, "cm_qp_attr")
    }

    /// The addresses of an endpoint.
    #[doc(alias("rdma_get_local_addr", "rdma_get_peer_addr"))]
    pub fn cm_addresses(&self, id: CmId) -> Result<Addresses> {
        let _ = id;
        refuse!(NotSupported, "cm_addresses")
    }

    /// The way to an endpoint's peer, once it is resolved or came with a request.
    #[doc(alias = "rdma_query_route")]
    pub fn cm_route(&self, id: CmId) -> Result<Path> {
        let _ = id;
        refuse!(NotSupported, "cm_route")
    }

    /// Destroys an endpoint: no event of it comes any more. A request that waits is refused, a connection ended.
    #[doc(alias = "rdma_destroy_id")]
    pub fn cm_destroy(&mut self, id: CmId) -> Result<()> {
        let _ = id;
        refuse!(NotSupported, "cm_destroy")
    }
}
