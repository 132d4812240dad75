//! An open NIC with what connections need.

use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::connection::{Connection, established};
use super::error::ConnectError;
use super::events::{Events, Mailbox};
use super::listener::Listener;
use super::off::off_the_task;
use crate::aio::{Cq, Qp, QpOptions, Srq, SrqOptions};
use crate::cm::{ConnParam, Id};
use crate::{Context, Kind, Pd, Refusal, Result};

/// Who looks at the completion queues of a [`Nic`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Drive {
    /// The thread of this library, one for the process ([`Cq::driven`]).
    #[default]
    Thread,
    /// The tasks that wait, which never sleep ([`Cq::polled`]).
    Polled,
    /// Tasks of tokio (`Cq::spawn`).
    #[cfg(feature = "tokio")]
    Tokio,
}

/// What a connection is like.
#[derive(Clone, Debug)]
#[expect(clippy::exhaustive_structs, reason = "programs change its fields")]
pub struct ConnectionOptions {
    /// Its QP, of the service RC.
    pub qp: QpOptions,
    /// What this side says in the handshake: private data, READs and atomics, retries.
    pub param: ConnParam,
    /// The address that it leaves from, if the route is not to choose. Of the side that connects.
    pub from: Option<SocketAddr>,
    /// How long the look for the address may take, and again that for the route. Of the side that
    /// connects.
    pub resolve_timeout: Duration,
}

impl Default for ConnectionOptions {
    fn default() -> Self {
        Self {
            qp: QpOptions::default(),
            param: ConnParam::default(),
            from: None,
            resolve_timeout: Duration::from_secs(2),
        }
    }
}

/// An open NIC with what connections need: a protection domain, completion queues, and the events
/// of `rdma_cm`. Clones are the same one.
#[derive(Clone, Debug)]
pub struct Nic(Arc<Open>);

#[derive(Debug)]
struct Open {
    pd: Pd,
    drive: Drive,
    events: Events,
    /// The queue that has room, perhaps.
    cq: Mutex<Option<Cq>>,
}

/// How many requests share a completion queue, if the device has as many.
const ENTRIES: u32 = 4096;

impl Nic {
    /// For connections of an open device.
    ///
    /// # Errors
    ///
    /// As [`EventChannel::new`](crate::cm::EventChannel::new); [`Kind::Io`] if the process has no
    /// thread left.
    pub fn new(context: &Context, drive: Drive) -> Result<Self> {
        let (pd, events) = (context.alloc_pd()?, Events::new(context)?);
        Ok(Self(Arc::new(Open { pd, drive, events, cq: Mutex::default() })))
    }

    /// The domain of its memory.
    pub fn pd(&self) -> &Pd {
        &self.0.pd
    }

    /// An address that peers reach it by ([`Context::default_gid`]), if its port has one.
    pub fn ip_addr(&self) -> Option<IpAddr> {
        self.0.pd.context().default_gid().map(|gid| gid.gid.to_ip())
    }

    pub(super) fn events(&self) -> &Events {
        &self.0.events
    }

    pub(super) fn create_qp(&self, options: &QpOptions) -> Result<Qp> {
        if let Some(srq) = &options.srq {
            return Cq::of(srq.shared().cq()).create_qp(&self.0.pd, options);
        }
        let mut cq = self.0.cq.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(cq) = &*cq {
            match cq.create_qp(&self.0.pd, options) {
                // There may be room in another.
                Err(refusal) if refusal.kind() == Kind::NoMemory => {}
                result => return result,
            }
        }
        let most = self.0.pd.context().device_attr().max_cqe;
        let least = options.sends.saturating_add(options.receives);
        let new = self.create_cq(ENTRIES.min(most).max(least))?;
        let qp = new.create_qp(&self.0.pd, options)?;
        *cq = Some(new);
        Ok(qp)
    }

    fn create_cq(&self, entries: u32) -> Result<Cq> {
        let context = self.0.pd.context();
        match self.0.drive {
            Drive::Thread => Cq::driven(context, entries),
            Drive::Polled => Cq::polled(context, entries),
            #[cfg(feature = "tokio")]
            Drive::Tokio => Cq::spawn(context, entries),
        }
    }

    /// Creates a shared receive queue for connections of this NIC ([`QpOptions::srq`]), with a
    /// completion queue of its own for its receives and for `requests` requests of the connections
    /// at once: the sum of their [`QpOptions::sends`].
    ///
    /// # Errors
    ///
    /// [`Kind::Invalid`] for more than a completion queue can have; otherwise as
    /// [`Cq::create_srq`].
    #[doc(alias = "ibv_create_srq")]
    pub fn create_srq(&self, options: &SrqOptions, requests: u32) -> Result<Srq> {
        let cq = self.create_cq(options.receives.saturating_add(requests))?;
        cq.create_srq(&self.0.pd, options)
    }

    /// Connects to `HOST:PORT`. A name is looked up, and the route is looked for, by a thread that
    /// ends with that.
    ///
    /// # Errors
    ///
    /// See [`ConnectError`]. A future that is dropped gives up.
    #[doc(alias("rdma_resolve_addr", "rdma_resolve_route", "rdma_connect"))]
    pub async fn connect(
        &self,
        to: &str,
        options: &ConnectionOptions,
    ) -> std::result::Result<Connection, ConnectError> {
        let id = self.resolved(to, options).await?;
        let qp = self.create_qp(&options.qp)?;
        let end = self.0.events.register(id, Arc::<Mailbox>::default());
        end.id().connect(qp.inner().qp(), &options.param)?;
        let param = established(&end).await?;
        Ok(Connection::new(self.clone(), end, qp, param))
    }

    /// An identifier whose route is known.
    async fn resolved(
        &self,
        to: &str,
        options: &ConnectionOptions,
    ) -> std::result::Result<Id, ConnectError> {
        let channel = self.0.events.channel().clone();
        let (to, from, timeout) = (to.to_owned(), options.from, options.resolve_timeout);
        off_the_task(move || {
            let mut last = None;
            for addr in addresses(&to)? {
                let id = channel.create_id()?;
                match id.resolve_within(from, addr, timeout) {
                    Ok(()) => return Ok(id),
                    Err(refusal) => last = Some(refusal),
                }
            }
            let none = || Refusal::new(Kind::NotFound, format!("rdma_resolve_addr: no {to}"));
            Err(last.unwrap_or_else(none).into())
        })
        .await
    }

    /// Listens at an address of the NIC, or at the wildcard; port 0 is a free one.
    ///
    /// # Errors
    ///
    /// As [`Id::bind`] and [`Id::listen`].
    #[doc(alias("rdma_bind_addr", "rdma_listen"))]
    pub fn listen(&self, at: SocketAddr) -> Result<Listener> {
        let id = self.0.events.channel().create_id()?;
        let end = self.0.events.register(id, Arc::<Mailbox>::default());
        let at = end.id().bind(at)?;
        end.id().listen(BACKLOG)?;
        Ok(Listener::new(self.clone(), end, at))
    }
}

/// How many requests wait. They do not wait for the program: the events are taken at once.
const BACKLOG: u32 = 1024;

/// The addresses of `HOST:PORT`.
pub(super) fn addresses(of: &str) -> std::result::Result<Vec<SocketAddr>, ConnectError> {
    let found = of.to_socket_addrs();
    let found = found.map_err(|error| ConnectError::Name(of.to_owned(), Arc::new(error)))?;
    Ok(found.collect())
}
