//! A listener and its requests.

use std::collections::BTreeMap;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use super::connection::{Connection, established, is_elsewhere, outcome};
use super::error::ConnectError;
use super::events::{End, Mailbox};
use super::nic::{ConnectionOptions, Drive, Nic, addresses};
use super::off::off_the_task;
use crate::aio::Qp;
use crate::cm::{ConnParam, Event, EventKind, Id};
use crate::{Kind, Refusal};

/// Takes requests for connections. Dropping it ends that; connections stay.
#[derive(Debug)]
#[doc(alias = "rdma_listen")]
pub struct Listener {
    nic: Nic,
    at: SocketAddr,
    end: End,
    /// Accepted, and not yet established.
    pending: Mutex<BTreeMap<usize, Pending>>,
}

#[derive(Debug)]
struct Pending {
    end: End,
    qp: Qp,
    param: ConnParam,
}

impl Listener {
    pub(super) fn new(nic: Nic, end: End, at: SocketAddr) -> Self {
        Self { nic, at, end, pending: Mutex::default() }
    }

    /// Listens at `HOST:PORT`, an address of the first device that has it, or at the wildcard of
    /// the first device. Port 0 is a free one. [`Nic::listen`] picks the device.
    ///
    /// # Errors
    ///
    /// As [`Nic::listen`]; [`Kind::NoDevice`] if there is no device.
    pub async fn bind(at: &str) -> Result<Self, ConnectError> {
        let of = at.to_owned();
        let addresses = off_the_task(move || addresses(&of)).await?;
        let mut last = None;
        for device in crate::devices()? {
            let nic = Nic::new(&device.open()?, Drive::default())?;
            for at in &addresses {
                match nic.listen(*at) {
                    Err(refusal) if is_elsewhere(&refusal) => {
                        last.get_or_insert(refusal);
                    }
                    result => return result.map_err(ConnectError::from),
                }
            }
        }
        let none = || Refusal::new(Kind::NoDevice, "rdma_listen: there is no device");
        Err(last.unwrap_or_else(none).into())
    }

    /// The NIC that it listens at.
    pub fn nic(&self) -> &Nic {
        &self.nic
    }

    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.at
    }

    /// The next connection, with a QP as usual. Peers that gave up before they were connected are
    /// not reported, and none holds up another. For private data and other options there is
    /// [`request`](Self::request); a listener uses one of the two.
    ///
    /// # Errors
    ///
    /// Of this side: no QP can be made, or no events can be had any more.
    #[doc(alias = "rdma_accept")]
    pub async fn accept(&self) -> Result<Connection, ConnectError> {
        self.accept_with(&ConnectionOptions::default()).await
    }

    /// The same with other options.
    ///
    /// # Errors
    ///
    /// As [`accept`](Self::accept).
    pub async fn accept_with(
        &self,
        options: &ConnectionOptions,
    ) -> Result<Connection, ConnectError> {
        poll_fn(|cx| self.poll_accept(cx, options)).await
    }

    fn poll_accept(
        &self,
        cx: &Context<'_>,
        options: &ConnectionOptions,
    ) -> Poll<Result<Connection, ConnectError>> {
        // Held over all: an event of a handshake comes behind its request.
        let mut pending = self.pending();
        loop {
            let event = match self.end.mailbox().poll(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(event) => event?,
            };
            match event.kind {
                EventKind::ConnectRequest { param } => {
                    let (key, begun) = (event.id.key(), self.begin(event.id, param, options)?);
                    // A peer that gave up meanwhile is nobody's error.
                    pending.extend(begun.map(|begun| (key, begun)));
                }
                kind => match outcome(kind) {
                    None => {}
                    Some(result) => {
                        let Some(Pending { mut end, qp, param }) = pending.remove(&event.id.key())
                        else {
                            continue;
                        };
                        if result.is_ok() {
                            end.on_its_own();
                            return Poll::Ready(Ok(self.connection(end, qp, param)));
                        }
                    }
                },
            }
        }
    }

    /// Accepts a request, whose handshake goes on.
    fn begin(
        &self,
        id: Id,
        param: ConnParam,
        options: &ConnectionOptions,
    ) -> Result<Option<Pending>, ConnectError> {
        let qp = self.nic.create_qp(&options.qp)?;
        let end = self.nic.events().register(id, Arc::clone(self.end.mailbox()));
        let accepted = end.id().accept(qp.inner().qp(), &options.param);
        Ok(accepted.is_ok().then_some(Pending { end, qp, param }))
    }

    fn connection(&self, end: End, qp: Qp, param: ConnParam) -> Connection {
        Connection::new(self.nic.clone(), end, qp, param)
    }

    fn pending(&self) -> MutexGuard<'_, BTreeMap<usize, Pending>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next request.
    ///
    /// # Errors
    ///
    /// [`Kind::Io`] if no events can be had any more.
    #[doc(alias = "RDMA_CM_EVENT_CONNECT_REQUEST")]
    pub async fn request(&self) -> crate::Result<ConnectRequest> {
        loop {
            let Event { id, kind, .. } = self.end.next().await?;
            if let EventKind::ConnectRequest { param } = kind {
                return Ok(ConnectRequest { nic: self.nic.clone(), id, param });
            }
        }
    }
}

/// A request for a connection. Dropping it refuses.
#[derive(Debug)]
pub struct ConnectRequest {
    nic: Nic,
    id: Id,
    param: ConnParam,
}

impl ConnectRequest {
    /// Who asks.
    pub fn peer_addr(&self) -> Option<SocketAddr> {
        self.id.peer_addr()
    }

    /// What the peer says. Its private data are padded with zeros.
    pub fn param(&self) -> &ConnParam {
        &self.param
    }

    /// Accepts it, and waits until the connection is established.
    ///
    /// # Errors
    ///
    /// See [`ConnectError`].
    #[doc(alias = "rdma_accept")]
    pub async fn accept(self, options: &ConnectionOptions) -> Result<Connection, ConnectError> {
        let qp = self.nic.create_qp(&options.qp)?;
        let end = self.nic.events().register(self.id, Arc::<Mailbox>::default());
        end.id().accept(qp.inner().qp(), &options.param)?;
        established(&end).await?;
        Ok(Connection::new(self.nic, end, qp, self.param))
    }

    /// Refuses it, with a reason for the program at the other end.
    ///
    /// # Errors
    ///
    /// [`Kind::Invalid`] if the peer gave up, or the private data are too long.
    #[doc(alias = "rdma_reject")]
    pub fn reject(self, private_data: &[u8]) -> crate::Result<()> {
        self.id.reject(private_data)
    }
}
