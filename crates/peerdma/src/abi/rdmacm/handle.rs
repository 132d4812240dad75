//! An identifier for the library's own use, on which rsockets stand: the same endpoint that a
//! `rdma_cm_id` has, without the C structure, and with a channel of its own.
//!
//! A call that only begins something leaves the outcome on the channel: [`Handle::happened`] takes
//! it, and waits for it unless the channel's descriptor is non-blocking.

use std::ffi::c_int;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, RawFd};
use std::sync::Arc;

use device::rdma_cm::{ConnParam, EventKind, RejReason};
use iba::{Av, QpType};

use super::addr::{bind, listen, resolve_addr, resolve_route};
use super::channel::Channel;
use super::endpoint::{Endpoint, Entry, What};
use super::handshake::{Depths, answer, ask, refuse};
use super::objects::{Domain, Pair};
use super::path::{record, vector};
use super::qp_state::{Modify, follow, prepare, to_error};
use super::state::Inner;
use super::{Answer, Failure, option};
use crate::abi::types::rdma::{PathData, SaPathRec, port_space};

/// See the module.
pub(in crate::abi) struct Handle {
    endpoint: Arc<Endpoint>,
    channel: Arc<Channel<Entry>>,
}

/// What happened to one.
#[derive(Debug)]
pub(in crate::abi) enum Event {
    /// What was begun is done. Of a connection: what the peer said.
    Done(Vec<u8>),
    /// The connection ended.
    Disconnected,
    /// The device is gone.
    Removed,
}

impl Handle {
    /// One of streams: its QP is an RC one.
    pub(in crate::abi) fn stream() -> Answer<Self> {
        Self::new(port_space::TCP, QpType::Rc)
    }

    /// One of datagrams: its QP is a UD one.
    pub(in crate::abi) fn datagram() -> Answer<Self> {
        Self::new(port_space::UDP, QpType::Ud)
    }

    fn new(space: u32, qp_type: QpType) -> Answer<Self> {
        let channel = Arc::new(Channel::new()?);
        let endpoint = Arc::new(Endpoint::new(Arc::clone(&channel), space, qp_type as u32));
        Ok(Self { endpoint, channel })
    }

    /// The descriptor that is readable while something has happened.
    pub(in crate::abi) fn fd(&self) -> RawFd {
        self.channel.descriptor().as_raw_fd()
    }

    /// The same, if it still is what it was and not a file of the program's.
    pub(in crate::abi) fn own_fd(&self) -> Option<RawFd> {
        self.channel.descriptor().is_ours().then(|| self.fd())
    }

    /// Whether [`Handle::happened`] waits.
    pub(in crate::abi) fn set_blocking(&self, blocks: bool) -> Answer {
        let descriptor = self.channel.descriptor();
        let set = || rustix::io::ioctl_fionbio(descriptor, !blocks);
        descriptor.look().and_then(|()| set()).map_err(|error| {
            Failure::new(error.raw_os_error(), format!("rsocket: its event channel: {error}"))
        })
    }

    pub(in crate::abi) fn bind(&self, addr: SocketAddr) -> Answer {
        bind(&self.endpoint, &mut self.endpoint.inner(), addr)
    }

    pub(in crate::abi) fn listen(&self, backlog: c_int) -> Answer {
        listen(&self.endpoint, &mut self.endpoint.inner(), backlog)
    }

    /// Begins to look for the NIC and the way to `to`, from `from` or from where the route says.
    pub(in crate::abi) fn resolve_addr(
        &self,
        from: Option<SocketAddr>,
        to: SocketAddr,
        timeout_ms: c_int,
    ) -> Answer {
        resolve_addr(&self.endpoint, &mut self.endpoint.inner(), from, to, timeout_ms)
    }

    /// Begins to look for the route to the address that was resolved.
    pub(in crate::abi) fn resolve_route(&self) -> Answer {
        resolve_route(&self.endpoint, &mut self.endpoint.inner(), "rdma_resolve_route")
    }

    /// The same with a path that the program has.
    pub(in crate::abi) fn set_path(&self, path: &PathData) -> Answer {
        option::set_path(&self.endpoint, &mut self.endpoint.inner(), path)
    }

    pub(in crate::abi) fn set_tos(&self, tos: u8) -> Answer {
        option::set_tos(&mut self.endpoint.inner(), tos)
    }

    pub(in crate::abi) fn set_reuse_addr(&self, wanted: bool) -> Answer {
        option::set_reuse_addr(&mut self.endpoint.inner(), wanted)
    }

    pub(in crate::abi) fn set_af_only(&self, wanted: bool) -> Answer {
        option::set_af_only(&mut self.endpoint.inner(), wanted)
    }

    /// Its own address, once it has one.
    pub(in crate::abi) fn local(&self) -> Option<SocketAddr> {
        self.endpoint.inner().route.local
    }

    /// The peer's.
    pub(in crate::abi) fn remote(&self) -> Option<SocketAddr> {
        self.endpoint.inner().route.remote
    }

    /// The way to the peer, as a subnet manager would describe it.
    pub(in crate::abi) fn path_record(&self) -> Option<SaPathRec> {
        self.endpoint.inner().route.path.as_ref().map(record)
    }

    /// The address vector of datagrams to the peer.
    ///
    /// # Errors
    /// EHOSTUNREACH before the route is resolved.
    pub(in crate::abi) fn address(&self) -> Answer<Av> {
        let path = self.endpoint.inner().route.path;
        path.as_ref().map(vector).ok_or_else(|| {
            Failure::new(libc::EHOSTUNREACH, "rsocket: there is no route to the peer yet")
        })
    }

    /// A protection domain on the NIC that it is bound to.
    pub(in crate::abi) fn domain(&self) -> Answer<Arc<Domain>> {
        let nic = self.endpoint.inner().end("rsocket")?.nic;
        Domain::alloc(&nic.hca, nic.context_id())
    }

    /// Makes a new QP ready for receives; one of datagrams for everything.
    pub(in crate::abi) fn prepare(&self, qp: &Pair) -> Answer {
        prepare(&self.endpoint.inner(), &|attr, mask| qp.modify(attr, mask))
    }

    /// Begins to connect a QP to the peer to whom the route leads. It has no READs and atomics.
    pub(in crate::abi) fn connect(&self, qp: &Pair, private_data: &[u8]) -> Answer {
        let mut inner = self.endpoint.inner();
        let all = ConnParam {
            private_data: private_data.to_vec(),
            flow_control: true,
            retry_count: 7,
            rnr_retry_count: 7,
            qpn: qp.qpn(),
            ..ConnParam::default()
        };
        ask(&mut inner, Some(Depths { initiator_depth: 0, responder_resources: 0 }), all)
    }

    /// Begins to accept the request that it was made for, whose parameters are `asked`.
    pub(in crate::abi) fn accept(
        &self,
        qp: &Pair,
        asked: ConnParam,
        private_data: &[u8],
    ) -> Answer {
        let mut inner = self.endpoint.inner();
        let depths = depths(&inner, &asked)?;
        let all = ConnParam {
            private_data: private_data.to_vec(),
            qpn: qp.qpn(),
            srq: false,
            qkey: iba::QKey(0),
            ..asked
        };
        let modify: Modify<'_> = &|attr, mask| qp.modify(attr, mask);
        answer(&self.endpoint, &mut inner, Some(depths), all, Some(modify))
    }

    /// Refuses it. One that was answered cannot be refused any more.
    pub(in crate::abi) fn reject(&self) {
        let inner = self.endpoint.inner();
        // Then the peer learns it when the endpoint goes.
        let _ = refuse("rsocket", &inner, RejReason::CONSUMER_DEFINED, &[]);
    }

    /// Takes what happened to it. `qp` is the QP that is connected, which follows the peer's
    /// response.
    ///
    /// # Errors
    /// EAGAIN if nothing happened and the descriptor does not block; EINTR; ECONNREFUSED if the
    /// peer refused, ETIMEDOUT if nobody answered; why what was begun has failed.
    pub(in crate::abi) fn happened(&self, qp: Option<&Pair>) -> Answer<Event> {
        loop {
            let event = match self.take()? {
                What::Addr(found) => found.map(|()| Some(Event::Done(Vec::new()))),
                What::Route => Ok(Some(Event::Done(Vec::new()))),
                What::Cm(kind) => self.connection(kind, qp),
                _ => Ok(None),
            };
            if let Some(event) = event? {
                return Ok(event);
            }
        }
    }

    fn connection(&self, kind: EventKind, qp: Option<&Pair>) -> Answer<Option<Event>> {
        let modify = qp.map(|qp| move |attr: &_, mask| qp.modify(attr, mask));
        let modify = modify.as_ref().map(|modify| modify as Modify<'_>);
        let has_failed = self.endpoint.inner().has_failed;
        Ok(Some(match kind {
            EventKind::ConnectResponse { param } => {
                if let Err(failure) = follow(&self.endpoint, modify, param.ece) {
                    self.endpoint.inner().has_failed = true;
                    return Err(failure);
                }
                Event::Done(param.private_data)
            }
            EventKind::Established { param } => Event::Done(param.private_data),
            EventKind::Unreachable => {
                return Err(Failure::new(libc::ETIMEDOUT, "rsocket: the peer does not answer"));
            }
            EventKind::Rejected { .. } | EventKind::Disconnected { .. } if has_failed => {
                return Ok(None);
            }
            EventKind::Rejected { .. } => {
                if let Some(modify) = modify {
                    to_error(modify);
                }
                return Err(Failure::new(libc::ECONNREFUSED, "the peer refused the connection"));
            }
            EventKind::Disconnected { .. } => Event::Disconnected,
            EventKind::DeviceRemoval => Event::Removed,
            _ => return Ok(None),
        }))
    }

    /// Takes a request that came to a listener, and what it says.
    ///
    /// # Errors
    /// EAGAIN if there is none and the descriptor does not block; EINTR; why a request was dropped.
    pub(in crate::abi) fn request(&self) -> Answer<(Self, ConnParam)> {
        loop {
            let What::Request { child, param } = self.take()? else { continue };
            let channel = Arc::new(Channel::new()?);
            let new = Self { endpoint: child, channel };
            self.endpoint.adopt(&new.endpoint, &param)?;
            new.endpoint.move_to(Arc::clone(&new.channel));
            return Ok((new, param));
        }
    }

    fn take(&self) -> Answer<What> {
        let Entry { endpoint, what } = Entry::take(&self.channel)?;
        // Nobody else has it, so that nobody waits for its acknowledgement.
        endpoint.acks.acknowledge(1);
        Ok(what)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if let Some(nic) = self.endpoint.end() {
            nic.release();
        }
    }
}

/// What the peer said of READs and atomics, as far as the device can do it.
fn depths(inner: &Inner, asked: &ConnParam) -> Answer<Depths> {
    let nic = inner.end("rdma_accept")?.nic;
    Ok(Depths {
        initiator_depth: asked.initiator_depth.min(nic.max_initiator_depth),
        responder_resources: asked.responder_resources.min(nic.max_responder_resources),
    })
}
