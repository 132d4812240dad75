//! The calls of an endpoint up to its connection: addresses, ports, path.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use ::cm::ListenAddr;
use iba::QpType;

use super::Engine;
use super::endpoint::{Endpoint, Role};
use super::ports::Bound;
use crate::ids::CmId;
use crate::rdma_cm::{Addresses, BindOptions, Path, PortSpace, Sink, Spec, Timeouts};
use crate::refusal::{Kind, Refusal, Result, refuse};

impl Engine {
    /// Creates an endpoint.
    ///
    /// # Errors
    /// [`Kind::Invalid`] if the QP type does not suit the port space, [`Kind::NoMemory`] at the
    /// limit of endpoints.
    #[doc(alias = "rdma_create_id")]
    pub fn cm_create(&mut self, spec: &Spec, sink: Arc<dyn Sink>) -> Result<CmId> {
        self.cm_alive()?;
        let suits = match spec.port_space {
            PortSpace::Udp => spec.qp_type == QpType::Ud,
            PortSpace::Ib => spec.qp_type.is_connected() || spec.qp_type == QpType::Ud,
            _ => spec.qp_type.is_connected(),
        };
        if !suits {
            refuse!(Invalid, "{:?} does not support QPs of type {}", spec.port_space, spec.qp_type);
        }
        self.cm.insert(Endpoint::new(*spec, sink))
    }

    /// Refuses if the device failed, or is the husk in a forked child; otherwise reads the clock.
    pub(super) fn cm_alive(&mut self) -> Result<()> {
        if let Some(why) = self.failure() {
            refuse!(Io, "the device failed: {why}");
        }
        if self.is_husk() {
            refuse!(Io, "the device is the parent's: it was opened before a fork");
        }
        self.common.now = self.clock.now();
        Ok(())
    }

    /// Sends the events of an endpoint elsewhere from now on, with another cookie. Events that the
    /// old sink has stay there.
    ///
    /// # Errors
    /// [`Kind::NotFound`] if there is no such endpoint, here as everywhere below.
    #[doc(alias = "rdma_migrate_id")]
    pub fn cm_set_sink(&mut self, id: CmId, sink: Arc<dyn Sink>, cookie: u64) -> Result<()> {
        let endpoint = self.cm.get_mut(id)?;
        endpoint.sink = sink;
        endpoint.cookie = cookie;
        Ok(())
    }

    /// Binds an endpoint to an address of this device, or to the wildcard. Port 0 means any free
    /// port. Returns the address that it is bound to.
    ///
    /// # Errors
    /// [`Kind::AddressInUse`] if another endpoint has the port of this address, in this process or
    /// another one of this host; [`Kind::AddressNotAvailable`] if either of the two is the
    /// wildcard, or the address is not one of the device's; [`Kind::Invalid`] if the endpoint is
    /// bound already.
    #[doc(alias = "rdma_bind_addr")]
    pub fn cm_bind(
        &mut self,
        id: CmId,
        addr: SocketAddr,
        options: BindOptions,
    ) -> Result<SocketAddr> {
        self.cm_alive()?;
        let endpoint = self.cm.get(id)?;
        if let Some(local) = endpoint.local {
            refuse!(Invalid, "bind: endpoint {} is bound to {local}", id.handle());
        }
        let ip = addr.ip();
        let own = self.own_addresses();
        if !ip.is_unspecified() && !own.contains(&ip) {
            refuse!(
                AddressNotAvailable,
                "bind: {ip} is not an address of {}",
                self.common.nic.port.netdev
            );
        }
        let bound = Bound {
            space: endpoint.spec.port_space,
            ip,
            port: addr.port(),
            reuse: options.reuse_addr,
            af_only: options.af_only,
            listening: false,
        };
        let super::CmService { ports, directory, .. } = &mut self.cm;
        let Some(directory) = directory else {
            refuse!(NoMemory, "bind: this process had no descriptors for a directory of ports");
        };
        let local = ports.bind(directory, id, bound, &own)?;
        self.cm.get_mut(id)?.local = Some(local);
        Ok(local)
    }

    /// The addresses of the netdev may have changed.
    pub(crate) fn cm_follow_addresses(&mut self) {
        let own = self.own_addresses();
        let super::CmService { ports, directory, .. } = &mut self.cm;
        if let Some(directory) = directory {
            ports.follow(directory, &own);
        }
    }

    fn own_addresses(&self) -> Vec<IpAddr> {
        self.common.nic.port.gids.iter().map(|gid| gid.to_ip()).collect()
    }

    /// Takes requests from now on. `backlog` is how many may wait for [`Engine::cm_taken`], at
    /// least one; requests beyond those are ignored, so that their senders retry. An endpoint that
    /// is not bound gets a free port on all addresses.
    ///
    /// # Errors
    /// As for [`Engine::cm_bind`], if the address is shared; [`Kind::Invalid`] if the endpoint is
    /// something else already.
    #[doc(alias = "rdma_listen")]
    pub fn cm_listen(&mut self, id: CmId, backlog: u32) -> Result<()> {
        self.cm_alive()?;
        let endpoint = self.cm.get(id)?;
        if endpoint.role != Role::Idle || endpoint.remote.is_some() {
            refuse!(Invalid, "listen: endpoint {} is {:?}", id.handle(), endpoint.role);
        }
        if endpoint.local.is_none() {
            let any = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0));
            self.cm_bind(id, any, BindOptions::default())?;
        }
        let own = self.own_addresses();
        let super::CmService { ports, directory, .. } = &mut self.cm;
        let Some(directory) = directory else {
            refuse!(NoMemory, "listen: this process had no descriptors for a directory of ports");
        };
        let bound = ports.listen(directory, id, &own)?;
        let addr = match bound.ip {
            IpAddr::V4(Ipv4Addr::UNSPECIFIED) => ListenAddr::AnyV4,
            IpAddr::V6(Ipv6Addr::UNSPECIFIED) if bound.af_only => ListenAddr::AnyV6,
            IpAddr::V6(Ipv6Addr::UNSPECIFIED) => ListenAddr::Any,
            ip => ListenAddr::Ip(ip),
        };
        let service = bound.space.service_id(bound.port);
        let listener = self.cm.cm.listen(service, u64::MAX, addr, backlog.max(1));
        let listener = listener
            .map_err(|error| Refusal::new(Kind::AddressInUse, format!("listen: {error}")))?;
        self.cm.by_listener.insert(listener, id);
        self.cm.get_mut(id)?.role = Role::Listener(listener);
        Ok(())
    }

    /// The path from an address of this device (any suitable one if `None`) to `to`, without an
    /// endpoint.
    ///
    /// # Errors
    /// [`Kind::AddressNotAvailable`] if `from` is not one of the device's or of another family than
    /// `to`.
    pub fn cm_path(&self, from: Option<IpAddr>, to: IpAddr) -> Result<Path> {
        self.common.path(from, to)
    }

    /// Sets the address of an endpoint's peer, binds it to a free port if it is not bound, and
    /// finds the path.
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
        self.cm_alive()?;
        let endpoint = self.cm.get(id)?;
        if endpoint.role != Role::Idle {
            refuse!(Invalid, "resolve: endpoint {} is {:?}", id.handle(), endpoint.role);
        }
        let source = endpoint.local.or(from);
        let path = self.common.path(source.map(|addr| addr.ip()), to.ip())?;
        if self.cm.get(id)?.local.is_none() {
            let addr = SocketAddr::new(path.sgid.to_ip(), from.map_or(0, |addr| addr.port()));
            self.cm_bind(id, addr, BindOptions::default())?;
        }
        let endpoint = self.cm.get_mut(id)?;
        if let Some(local) = &mut endpoint.local {
            local.set_ip(path.sgid.to_ip());
        }
        endpoint.remote = Some(SocketAddr::new(path.dgid.to_ip(), to.port()));
        endpoint.path = Some(path);
        self.cm_route(id)
    }

    /// Sets the type of service of an endpoint's packets, and the ACK timeout of its QP
    /// (`4.096 us * 2^code`, 1 to 31), if given.
    ///
    /// # Errors
    /// [`Kind::Invalid`] if the ACK timeout is out of range.
    #[doc(alias("RDMA_OPTION_ID_TOS", "RDMA_OPTION_ID_ACK_TIMEOUT"))]
    pub fn cm_set_service(
        &mut self,
        id: CmId,
        tos: Option<u8>,
        ack_timeout: Option<u8>,
    ) -> Result<()> {
        if let Some(code) = ack_timeout
            && !(1..32).contains(&code)
        {
            refuse!(Invalid, "an ACK timeout of {code}, which is not in 1 to 31");
        }
        let endpoint = self.cm.get_mut(id)?;
        endpoint.tos = tos.or(endpoint.tos);
        endpoint.ack_timeout = ack_timeout.or(endpoint.ack_timeout);
        Ok(())
    }

    /// Sets how long the endpoint waits for answers.
    ///
    /// # Errors
    /// [`Kind::Invalid`] if a number does not fit in its field.
    pub fn cm_set_timeouts(&mut self, id: CmId, timeouts: Timeouts) -> Result<()> {
        if timeouts.response_timeout > 31 || timeouts.max_retries > 15 {
            refuse!(Invalid, "{timeouts:?}: five bits and four bits");
        }
        self.cm.get_mut(id)?.timeouts = timeouts;
        Ok(())
    }

    /// The addresses of an endpoint.
    #[doc(alias("rdma_get_local_addr", "rdma_get_peer_addr"))]
    pub fn cm_addresses(&self, id: CmId) -> Result<Addresses> {
        let endpoint = self.cm.get(id)?;
        Ok(Addresses { local: endpoint.local, remote: endpoint.remote })
    }

    /// The path to an endpoint's peer, once it is resolved or came with a request.
    ///
    /// # Errors
    /// [`Kind::Invalid`] before that.
    #[doc(alias = "rdma_query_route")]
    pub fn cm_route(&self, id: CmId) -> Result<Path> {
        let endpoint = self.cm.get(id)?;
        let Some(path) = endpoint.path else {
            refuse!(Invalid, "endpoint {} is not resolved", id.handle());
        };
        Ok(Path {
            traffic_class: endpoint.tos.unwrap_or(path.traffic_class),
            packet_life_time: endpoint.ack_timeout.map_or(path.packet_life_time, |code| code - 1),
            ..path
        })
    }
}
